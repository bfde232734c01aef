"""Tests of programs as contestants of benchmarks: the plain ring adds correctly, and a fault ends
the benchmark."""

import shutil
import stat
from pathlib import Path

import pytest
from _harness import openmpi
from _harness.programs import ProgramError, Programs, compile_program

ROOT = Path(__file__).resolve().parents[3]
RING = ROOT / "benchmarks" / "wire-cost" / "ring_allreduce.cc"

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="c++ is not installed")


@pytest.fixture(scope="module")
def ring_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("ring") / "ring_allreduce"
    compile_program(["c++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"], RING, program)
    return program


def start_ring(ring: Programs, program: Path, size: int) -> None:
    for rank in range(size):
        ring.start([str(program), str(ring.folder), str(rank), str(size), "127.0.0.1"])
    ports = [greeting.port for greeting in ring.greet()]
    ring.say([f"connect 127.0.0.1 {ports[(rank + 1) % size]}" for rank in range(size)])


@needs_compiler
@pytest.mark.parametrize("size", [2, 4])
def test_the_ring_adds_buffers_of_any_length_any_number_of_times(
    ring_program: Path, size: int
) -> None:
    with Programs("ring_allreduce", size) as ring:
        start_ring(ring, ring_program, size)
        # The cases are a buffer shorter than a chunk per rank, one of many pieces, and more calls
        # than one filling allows.
        for count, calls, warm_up in ((1, 1, 0), (3, 2, 1), (70_001, 3, 2), (1 << 20, 2, 0)):
            used = ring.turn(count, calls, warm_up, salt=1)
            assert len(used) == size
            assert all(usage.seconds > 0 for usage in used)
        ring.turn(5000, 250, 0, salt=3)


@needs_compiler
def test_a_ring_with_a_dead_rank_ends_with_its_error(ring_program: Path) -> None:
    with Programs("ring_allreduce", 2) as ring:
        for rank, address in enumerate(("127.0.0.1", "x")):
            ring.start([str(ring_program), str(ring.folder), str(rank), "2", address])
        words = "ring_allreduce ended with 2: not an IPv4 address: x"
        with pytest.raises(ProgramError, match=words):
            ring.greet()


@pytest.mark.skipif(openmpi.missing() is not None, reason=f"{openmpi.missing()}")
def test_openmpi_takes_turns() -> None:
    with openmpi.on_this_host(2, "tcp") as ranks:
        assert len({greeting.pid for greeting in ranks.greet()}) == 2
        assert len(ranks.turn(1000, 3, 2, salt=2)) == 2


def script(folder: Path, answer: str) -> Path:
    """Write a program for a rank that sends its first message and then answers the first question
    by `answer`; return the program's path."""
    path = folder / "rank"
    path.write_text(
        "#!/bin/sh\n"
        'exec < "$1/ask.0" > "$1/answer.0"\n'
        "echo ready $$ 7\n"
        "read -r question\n"
        f"{answer}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_answer_of_a_rank_is_shared_among_the_calls(tmp_path: Path) -> None:
    rank = script(
        tmp_path, 'test "$question" = "turn 9 2 1 3" && echo 6000 4000 2000 10 3 8000; read -r end'
    )
    with Programs("rank", 1) as programs:
        programs.start([str(rank), str(programs.folder)])
        (greeting,) = programs.greet()
        (used,) = programs.turn(9, 2, 1, 3)
        assert greeting.port == 7
    assert used.seconds == pytest.approx(3e-6)
    assert used.user_s == pytest.approx(2e-6)
    assert used.system_s == pytest.approx(1e-6)
    assert (used.voluntary, used.involuntary, used.idle_s) == (5.0, 1.5, 4e-6)


def test_a_wrong_result_names_the_rank_and_the_question(tmp_path: Path) -> None:
    rank = script(tmp_path, "echo wrong; read -r end")
    with Programs("rank", 1) as programs:
        programs.start([str(rank), str(programs.folder)])
        programs.greet()
        with pytest.raises(ProgramError, match="rank: rank 0 answered 'turn 9 2 1 3': wrong"):
            programs.turn(9, 2, 1, 3)


def test_the_end_of_a_rank_is_reported_with_its_words(tmp_path: Path) -> None:
    rank = script(tmp_path, "echo no more >&2; exit 5")
    with Programs("rank", 1) as programs:
        programs.start([str(rank), str(programs.folder)])
        programs.greet()
        with pytest.raises(ProgramError, match="rank ended with 5: no more"):
            programs.turn(9, 2, 1, 3)


def test_the_compilers_words_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"sh ended with 2: .*no-such-option"):
        compile_program(["sh", "no-such-option"], tmp_path / "nothing.c", tmp_path / "nothing")

"""The hashes of recorded runs: printed, compared, and runs without any."""

import json

import pytest
from made_records import START_NS, header, write

from slackline.bits import Evidence, bisect, compare
from slackline.causes import Watch
from slackline.cli import main
from slackline.errors import UsageError
from slackline.history import Job
from slackline.records import (
    Conditions,
    Decision,
    GroupOpened,
    HashedTensors,
    Setting,
    StateHash,
    TensorHashes,
)
from slackline.views import summary_of

NOW = {"rank": 0, "time_ns": START_NS}


def hashed(step, text, part=0, parts=1, **options):
    return StateHash(**NOW, step=step, part=part, parts=parts, hash=text * 32, **options)


def made(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, 0, header(0), *records)
    return folder


def read(folder):
    return Evidence(folder, pytest.fail)


def test_the_chain_is_printed_in_the_order_of_the_steps(tmp_path, capsys):
    made(
        tmp_path,
        GroupOpened(**NOW, size=3, epoch=1, members=(0, 1, 2)),
        Conditions(**NOW, values={"torch": "2.13.0", "threads": "1", "instruction set": "AVX2"}),
        *(hashed(step, "abcdef"[step]) for step in (0, 2, 1, 3, 4)),
    )
    assert main(["certify", str(tmp_path)]) == 0
    *steps, chain, facts = capsys.readouterr().out.splitlines()
    assert steps == [f"step {step:<8} {'abcdef'[step] * 32}" for step in range(5)]
    assert facts == "3 ranks, torch 2.13.0, instruction set AVX2, threads 1"
    assert main(["certify", str(tmp_path), "--every", "2"]) == 0
    *steps, same, _ = capsys.readouterr().out.splitlines()
    assert ([each.split()[1] for each in steps], same) == (["1", "3", "4"], chain)
    assert main(["certify", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["exact"], found["hashes"]["4"]) == (3, True, "e" * 32)
    assert chain.split() == ["all", "5", found["chain"]]


def test_inexact_runs_and_repeated_steps_are_marked(tmp_path, capsys):
    made(
        tmp_path,
        Decision(**NOW, subject="exact", choice="False", reason="rank 1 computes other bits"),
        hashed(0, "a", exact=False),
        hashed(0, "b", exact=False),
    )
    assert main(["certify", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "step 0 was computed again with other bits\n" in out
    assert f"{tmp_path} is inexact: rank 1 computes other bits" in out


def test_the_parts_of_all_ranks_are_added(tmp_path):
    folder = made(tmp_path / "one", hashed(0, "a", 0, 3), hashed(0, "b", 2, 3))
    with pytest.raises(UsageError, match="lacks the part of a rank"):
        read(folder)
    write(folder, 1, header(1), hashed(0, "c", 1, 3))
    half = f"{(0xA + 0xB + 0xC) * 0x1111111111111111 % 2**64:016x}"
    assert read(folder).hashes == {0: half * 2}
    # A rank that does a step again must get the same bits.
    assert read(folder).conflicts == set()
    write(folder, 1, hashed(0, "d", 1, 3))
    assert read(folder).conflicts == {0}


def test_the_summary_of_a_run_has_its_latest_hash(tmp_path):
    made(tmp_path, hashed(0, "a"), hashed(1, "b"))
    text = {each.name: each.text for each in summary_of(Watch.recorded(tmp_path, START_NS))}
    assert text["steps"] == f"hash {'b' * 32} after step 1"
    write(tmp_path, 0, hashed(2, "c", exact=False))
    text = {each.name: each.text for each in summary_of(Watch.recorded(tmp_path, START_NS))}
    assert text["steps"].endswith("after step 2, which holds for these ranks alone")
    assert Job(tmp_path).state_hash is None


def test_runs_are_compared_in_the_steps_that_both_have(tmp_path, capsys):
    one = made(tmp_path / "one", *(hashed(step, "a") for step in range(6)))
    other = made(tmp_path / "other", *(hashed(step, "aabb"[step // 2]) for step in range(1, 8, 2)))
    found = compare(read(one), read(other))
    assert (found.steps, found.last_equal, found.first_different) == (3, 3, 5)
    assert main(["certify", str(one), str(other)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "the hashes differ from step 5 on; the last equal one is 3",
        f"slackline bisect {one} {other} shows where",
    ]
    far = made(tmp_path / "far", hashed(9, "a"))
    with pytest.raises(UsageError, match=r"has steps 0 to 5 and .*far has 9 to 9"):
        compare(read(one), read(far))


@pytest.mark.parametrize("records", [(), (Setting(**NOW, name="x", value="", origin="default"),)])
def test_a_run_without_hashes_is_refused_with_the_way_out(tmp_path, records):
    with pytest.raises(UsageError, match="virtual_ranks=8"):
        read(made(tmp_path, *records))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no telemetry"):
        read(tmp_path / "empty")


def tensors(what, texts, virtual_rank=-1, order=(), rank=0):
    return TensorHashes(
        rank=rank,
        time_ns=START_NS,
        step=1,
        what=what,
        virtual_rank=virtual_rank,
        hashes="".join(text * 16 for text in texts),
        order=order,
    )


NAMES = HashedTensors(**NOW, parameters=("first", "last"), state=("first", "last", "mean"))
SOUND = {
    ("gradients", 0): ("ab", (1, 0)),
    ("gradients", 1): ("cd", (1, 0)),
    ("sums", -1): ("ef", ()),
    ("state", -1): ("abc", ()),
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Of several gradients, the first one in the order of the backward pass is named.
        ({("gradients", 1): "99"}, ("gradients", 1, "last", 2)),
        ({("gradients", 1): "9d", ("sums", -1): "99"}, ("gradients", 1, "first", 1)),
        ({("gradients", 1): "c9", ("gradients", 0): "9b"}, ("gradients", 0, "first", 1)),
        ({("sums", -1): "e9", ("state", -1): "999"}, ("sums", -1, "last", 1)),
        ({("state", -1): "ab9"}, ("state", -1, "mean", 1)),
    ],
)
def test_the_first_tensor_that_differs_is_named(tmp_path, changes, expected):
    def run(name, changed, end):
        records = [
            tensors(what, changed.get((what, number), texts), number, order)
            for (what, number), (texts, order) in SOUND.items()
        ]
        return read(made(tmp_path / name, NAMES, hashed(0, "a"), hashed(1, end), *records))

    found = bisect(run("one", {}, "b"), run("other", changes, "c"))
    assert (found.what, found.virtual_rank, found.tensor, found.differing) == expected
    assert found.comparison.first_different == 1

import subprocess
import sys

import pytest

from slackline.cli.plan import run
from slackline.errors import UsageError


def test_a_plan_is_printed_as_a_grid_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["collective", "--ranks", "2", "--plan", "mesh", "--size", "1MiB"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "all_reduce mesh, 2 ranks",
        "     rank 0         rank 1",
        "  0  SEND_1C1       SEND_0C0",
        "  1  BUFFER_1C0     BUFFER_0C1",
        "  2  REDUCE_ALL_C0  REDUCE_ALL_C1",
        "  3  SEND_1C0       SEND_0C1",
        "  4  COPY_1C1       COPY_0C0",
        "",
        "valid",
        "steps: 2",
        "messages: 4",
        "rank order: yes",
        "port bytes: 1 MiB",
        "reduced bytes: 512 KiB",
        "chunks: 512 KiB, 512 KiB",
    ]


def test_without_a_name_all_plans_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["collective", "--ranks", "4", "--collective", "broadcast", "--size", "1MiB"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "plan    steps  messages  rank order  port bytes  reduced bytes",
        "direct  1      3         yes         3 MiB       0 B",
        "chain   3      2         yes         1 MiB       0 B",
    ]


def test_a_wrong_value_is_named() -> None:
    with pytest.raises(UsageError) as error:
        run(["collective", "--ranks", "0"])
    assert str(error.value) == "ranks must be a positive integer, not 0"
    with pytest.raises(UsageError) as error:
        run(["collective", "--ranks", "2", "--collective", "sum"])
    assert str(error.value) == (
        "collective must be one of all_reduce, reduce_scatter, all_gather, broadcast, reduce, "
        'gather, scatter, all_to_all, barrier, point_to_point, not "sum"'
    )


def test_plans_are_printed_without_torch_or_numpy() -> None:
    program = (
        "import sys; from slackline.cli.plan import run; "
        "run(['collective', '--ranks', '3']); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

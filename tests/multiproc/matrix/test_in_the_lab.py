"""The fault matrix on real packets: each rank runs on a host of a lab, and the lab's switch applies
the faults.

The receiving kernel drops damaged packets, so TCP repairs them. Without root the tests are skipped,
with the reason.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from matrix_table import CELLS, HOST_CELLS, HOST_FAULTS, Cell
from own_host import own_host_drops

from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions

RANKS = 3
ROUNDS = 2


class LabJob:
    """A set of ranks connected by one kind of rails, each on its own host of a lab, that work on
    request."""

    def __init__(self, rail: str, nics: int, folder: Path, stack: ExitStack) -> None:
        self.counted: list[dict[str, int]] = []
        """The counters of each rank after its latest work."""
        self.lab = stack.enter_context(Lab(LabOptions(hosts=RANKS, nics=nics, switch="user")))
        program = [sys.executable, str(Path(__file__).with_name("matrix_lab_rank.py"))]
        self._ranks = [
            stack.enter_context(
                subprocess.Popen(
                    self.lab.command(rank, [*program, str(rank), str(RANKS), str(folder), rail]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(RANKS)
        ]
        stack.callback(self._stop)
        self._answers()

    def work(self) -> list[dict[str, int]]:
        """Make every rank work, and return each rank's counters. A rank with a wrong result fails
        the test."""
        for rank in self._ranks:
            assert rank.stdin is not None
            print(ROUNDS, file=rank.stdin, flush=True)
        self.counted = self._answers()
        return self.counted

    def switch_counted(self) -> dict[str, int]:
        """Return the number of packets that each fault of the switch has affected so far, over all
        paths."""
        rows = self.lab.counters()
        return {name: sum(getattr(row, name) for row in rows) for name in SIGNS.values()}

    def _answers(self) -> list[dict[str, int]]:
        answers = []
        for number, rank in enumerate(self._ranks):
            assert rank.stdout is not None
            line = rank.stdout.readline()
            assert line, f"rank {number} ended with {rank.wait(60)}"
            answers.append(json.loads(line))
        return answers

    def _stop(self) -> None:
        """End the ranks without waiting for those that wait for a failed rank."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(60)
            except subprocess.TimeoutExpired:
                rank.kill()


Jobs = Callable[[Cell], LabJob]


@pytest.fixture(scope="module")
def jobs(lab_allowed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Provide jobs(cell), which returns ranks with the rails of the cell. Cells with equal rails
    share their ranks."""
    made: dict[str, LabJob] = {}
    with ExitStack() as stack:

        def get(cell: Cell) -> LabJob:
            if cell.rail not in made:
                folder = tmp_path_factory.mktemp(cell.rail)
                made[cell.rail] = LabJob(cell.rail, cell.rails.nics, folder, stack)
                made[cell.rail].work()
            return made[cell.rail]

        yield get


SIGNS = {
    "loss": "lost",
    "duplicate": "duplicated",
    "reorder": "reordered",
    "corrupt": "corrupted",
    "all-at-once": "corrupted",
    "down-for-a-while": "unplugged",
    "down-one-way-for-a-while": "unplugged",
    "silent-for-long": "unplugged",
}
"""The counters of the switch that must have increased, as proof that the fault was active."""

LAB_CELLS = [
    *(cell for cell in CELLS if cell.rail != "shm"),
    Cell(fault="nic-down", rail="two-tls-nics"),
    *(
        Cell(fault=fault, rail="tls")
        for fault in ("down-for-a-while", "down-one-way-for-a-while", "silent-for-long")
    ),
]
_QUICK = {
    ("loss", "udp"),
    ("all-at-once", "udp"),
    ("down-for-a-while", "tcp"),
    ("delay", "tcp"),
    ("nic-down", "two-tls-nics"),
    ("silent-for-long", "tls"),
}
REMADE = (Cell(fault="silent-for-long", rail="tls"),)
"""The cells in which connections end and are made again while the operations wait."""
QUICK = [cell for cell in LAB_CELLS if (cell.fault, cell.rail) in _QUICK]


def check(jobs: Jobs, cell: Cell) -> None:
    job = jobs(cell)
    before = job.switch_counted()
    with job.lab.inject(parse_all(cell.text)):
        counters = job.work()
        after = job.switch_counted()
    if cell in REMADE:
        assert sum(each["rails_lost"] for each in counters) > 0
    sign = SIGNS.get(cell.fault)
    assert sign is None or after[sign] > before[sign], f"the fault was not there: {after}"


@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_no_fault_of_real_packets_changes_a_bit(jobs: Jobs, cell: Cell) -> None:
    check(jobs, cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in LAB_CELLS if cell not in QUICK], ids=str)
def test_no_fault_of_real_packets_changes_a_bit_on_any_rails(jobs: Jobs, cell: Cell) -> None:
    check(jobs, cell)


MIDDLE = 1
"""The host that drops: its rank dials one of its peers, and is dialled by the other."""


def _lacks_nft() -> str:
    """Return the reason why nftables cannot be used on this machine, or an empty text."""
    if shutil.which("nft") is None:
        return "nft is missing"
    tried = subprocess.run(
        ["unshare", "--net", "nft", "add", "table", "inet", "trial"], capture_output=True, text=True
    )
    return f"nft does not work: {tried.stderr.strip()}" if tried.returncode else ""


_NO_NFT = _lacks_nft()
needs_nft = pytest.mark.skipif(bool(_NO_NFT), reason=_NO_NFT)
QUICK_HOST_CELLS = [Cell(fault="own-host-drops", rail="tcp")]


def check_own_host(jobs: Jobs, cell: Cell) -> None:
    job = jobs(cell)
    before = job.counted
    with own_host_drops(job.lab, MIDDLE, HOST_FAULTS[cell.fault][0]):
        counters = job.work()
    # Where another rail works, the work may end before the silent rails are given up.
    signs = ("rails_lost", "rails_suspected")
    assert any(counters[MIDDLE][sign] > before[MIDDLE][sign] for sign in signs), counters


@needs_nft
@pytest.mark.parametrize("cell", QUICK_HOST_CELLS, ids=str)
def test_connections_whose_packets_their_own_host_drops_are_made_again(
    jobs: Jobs, cell: Cell
) -> None:
    check_own_host(jobs, cell)


@needs_nft
@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", [cell for cell in HOST_CELLS if cell not in QUICK_HOST_CELLS], ids=str
)
def test_rails_of_any_kind_whose_packets_their_own_host_drops_are_made_again(
    jobs: Jobs, cell: Cell
) -> None:
    check_own_host(jobs, cell)

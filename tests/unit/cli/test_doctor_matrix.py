"""Tests of the findings from a matrix of measured links, and of the layout of the matrix."""

from dataclasses import asdict, replace
from io import StringIO

from made_records import link
from rich.console import Console

from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._doctor._matrix import Matrix, findings, link_findings
from slackline.cli._doctor._show import matrix_table, to_mend
from slackline.cli._doctor._transfers import Measured

HOSTS = ("a", "b", "c", "d")


def _matrix(
    hosts: tuple[str, ...] = HOSTS,
    rates: dict[tuple[int, int], float] | None = None,
    late: dict[tuple[int, int], int] | None = None,
) -> Matrix:
    size = len(hosts)
    measured = {
        (a, b): Measured(
            source=a,
            target=b,
            bytes_per_second=(rates or {}).get((a, b), 117.5e6),
            latency_ns=(late or {}).get((min(a, b), max(a, b)), 100_000),
        )
        for a in range(size)
        for b in range(size)
        if a != b
    }
    return Matrix(rails="tcp", hosts=hosts, measured=measured)


def test_links_that_are_alike_are_one_line() -> None:
    assert findings(_matrix()) == [
        Finding(name="transfers over tcp", value="940 Mbit/s and 100 us in the median")
    ]


def test_a_link_that_loses_packets_is_named_as_in_a_job() -> None:
    reports = [
        asdict(
            replace(
                link(
                    rank, peer, 5_000_000_000, packets=5000, resent=150 * ((rank, peer) == (0, 1))
                ),
                busy_ns=10**9,
                confirmed_bytes=10**7,
                least_round_trip_ns=200_000,
            )
        )
        for rank in range(4)
        for peer in range(4)
        if rank != peer
    ]
    assert link_findings(HOSTS, reports) == [
        Finding(
            name="link 0>1",
            value="it loses 3% of its packets; the other links lose 0% at most",
            level=Level.MEND,
            advice="link 0>1: look at the cables and switch ports between the two hosts "
            "(ip -s link, ethtool -S)",
        )
    ]
    assert link_findings(HOSTS, [each for each in reports if not each["resent"]]) == []


def test_a_slow_direction_is_named() -> None:
    (found,) = findings(_matrix(rates={(2, 3): 11e6}))
    assert found.level is Level.MEND
    assert found.value == "link 2>3 carries 88 Mbit/s, the median 940 Mbit/s"
    assert found.advice == (
        "link 2>3 from c to d is not like the others: look at the path between them"
    )
    assert found.command == "tracepath d"


def test_a_rank_whose_links_are_all_slow_is_named_instead_of_them() -> None:
    (found,) = findings(_matrix(rates={(1, b): 11e6 for b in (0, 2, 3)}))
    assert found.value == "rank 1 on b sends slowly"
    assert found.advice == (
        "all links of rank 1 are slow where it sends: look at b's NIC, its cable and its load"
    )


def test_a_late_link_is_named_once_as_a_round_trip_has_no_direction() -> None:
    (found,) = findings(_matrix(late={(0, 2): 30_000_000}))
    assert found.value == "link 0>2 takes 30 ms one way, the median 100 us"


def test_within_a_host_nothing_is_to_be_mended() -> None:
    (found,) = findings(_matrix(("a",) * 4, rates={(2, 3): 11e6}))
    assert found.level is Level.NOTE
    assert found.advice == (
        "link 2>3 within a is not like the others: something else used the machine"
    )


def test_one_rank_has_no_links() -> None:
    assert [found.value for found in findings(_matrix(("a",)))] == ["one rank has no links"]


def test_the_matrix_has_senders_as_rows() -> None:
    console = Console(width=100, record=True, file=StringIO())
    console.print(matrix_table(_matrix(("a", "b"), rates={(0, 1): 1.25e9})))
    text = console.export_text()
    row = next(line for line in text.splitlines() if line.startswith("│ rank 0"))
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["rank 0", "-", "10 Gbit/s"]


def test_advice_names_the_place_where_there_are_several() -> None:
    console = Console(width=100, record=True, file=StringIO())
    found = {
        "a": [Finding(name="x", value="y", level=Level.MEND, advice="do it", command="do")],
        "b": [Finding(name="x", value="y")],
    }
    console.print(to_mend(found))
    assert [line.rstrip() for line in console.export_text().splitlines()] == [
        "mend: a: do it",
        "      do",
    ]

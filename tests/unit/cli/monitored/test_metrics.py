"""Tests of the metrics for Prometheus: exact values, bounds, the endpoint and its token."""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from made_records import SECOND_NS, START_NS, link, operations, verdict, write
from monitored_files import header, write_job
from prometheus_client.parser import text_string_to_metric_families

from slackline.causes import Watch
from slackline.cli import main
from slackline.cli._serving import Served, served
from slackline.records import Counters, DeviceReport, GroupOpened
from slackline.views.metrics._collector import metrics_text
from slackline.views.metrics._endpoint import Endpoint
from slackline.views.metrics._labels import MOST_GROUPS, group_text

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """Return the value of each time series, by name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


@pytest.fixture
def recorded(tmp_path: Path) -> Watch:
    write_job(tmp_path)
    return Watch.recorded(tmp_path, time.time_ns())


@pytest.fixture
def endpoint(recorded: Watch) -> Iterator[Endpoint]:
    with Endpoint("127.0.0.1", 0) as opened:
        opened.serve(recorded)
        yield opened


def fetch(url: str, token: str | None = None) -> tuple[int, str, str]:
    """Return status, type and text of the answer to a request with a token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers["Content-Type"], refused.read().decode()


def test_a_scrape_has_the_values_of_the_files(endpoint: Endpoint, recorded: Watch) -> None:
    status, kind, text = fetch(endpoint.url)
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    found = parsed(text)
    assert value(found, "slackline_ranks") == 3
    assert value(found, "slackline_rank_info", rank="1", host="host1") == 1
    for name, wanted in {
        "slackline_rank_running": 0,
        "slackline_rank_ended": 0,
        "slackline_rank_last_record_timestamp_seconds": START_NS / 1e9 + 61,
        "slackline_processes_total": 1,
        "slackline_lost_records_total": 1,
        "slackline_steps_total": 4,
        "slackline_step_seconds_total": 0.08,
        "slackline_exposed_seconds_total": 0.02,
        "slackline_hidden_seconds_total": 0.012,
        "slackline_reduced_bytes_total": 8000,
        "slackline_pipeline_steps_total": 0,
        "slackline_pipeline_waiting_seconds_total": 0,
    }.items():
        assert value(found, name, rank="2") == wanted, name
    operations = {"rank": "1", "collective": "all_reduce", "group": "0-2"}
    assert value(found, "slackline_operations_total", **operations) == 2
    assert value(found, "slackline_operation_failures_total", **operations) == 0
    assert value(found, "slackline_operation_bytes_total", **operations) == 2000
    assert value(found, "slackline_operation_seconds_total", **operations) == 0.004
    assert value(found, "slackline_operation_waited_seconds_total", **operations) == 0.001
    rail = {"rank": "0", "peer": "1", "link": "0>1", "rail": "0"}
    back = {**rail, "link": "1>0"}
    moved = 25e6
    assert value(found, "slackline_link_bytes_total", direction="sent", **rail) == moved
    assert value(found, "slackline_link_bytes_total", direction="received", **back) == moved
    assert value(found, "slackline_link_packets_total", **rail) == 100
    assert value(found, "slackline_link_resent_packets_total", **rail) == 3
    assert value(found, "slackline_link_round_trip_seconds", **rail) == 0.0314
    assert value(found, "slackline_link_queued_bytes", **rail) == 4096
    assert value(found, "slackline_link_unconfirmed_bytes", **rail) == 8192
    assert value(found, "slackline_link_up", **rail) == 1
    slow = {"link": "0>1", "rail": "0"}
    assert value(found, "slackline_link_disturbed", cause="slow", **slow) == 1
    assert value(found, "slackline_link_disturbed", cause="cut", **slow) == 0
    assert value(found, "slackline_link_disturbed", cause="slow", link="1>0", rail="0") == 0
    assert value(found, "slackline_link_disturbances_total", **slow) == 1
    assert value(found, "slackline_link_excess_delay_seconds", **slow) == 0.031
    assert value(found, "slackline_decisions_total", rank="0", subject="plan") == 1
    assert {name for name, _ in found if name.startswith("slackline_")} == {n for n, _ in found}


def test_the_next_scrape_has_the_records_since(endpoint: Endpoint, recorded: Watch) -> None:
    before = parsed(fetch(endpoint.url)[2])
    back = verdict(0, 0, 1, 70 * SECOND_NS, "back")
    ended = Counters(rank=0, time_ns=START_NS + 71 * SECOND_NS, values={})
    write(recorded.job.directory, 0, back, ended)
    after = parsed(fetch(endpoint.url)[2])
    slow = ("slackline_link_disturbed", (("cause", "slow"), ("link", "0>1"), ("rail", "0")))
    seen = ("slackline_rank_last_record_timestamp_seconds", (("rank", "0"),))
    over = ("slackline_link_excess_delay_seconds", (("link", "0>1"), ("rail", "0")))
    ends = ("slackline_rank_ended", (("rank", "0"),))
    changed = {key: after[key] for key in after if after[key] != before.get(key)}
    cause = ("slackline_cause", (("kind", "link"), ("name", "link 0>1")))
    assert before[cause] == 1
    assert changed == {slow: 0, over: 0, cause: 0, ends: 1, seen: START_NS / 1e9 + 71}


def test_a_device_has_cycles_states_and_events(recorded: Watch) -> None:
    counters = {"cycles": 900, "busy": 300, "no_peer_data": 200, "accepted": 7}
    for device, counted in (("circuit", counters), ("twin", {"accepted": 4})):
        rank = 0 if device == "circuit" else 1
        write(recorded.job.directory, rank, DeviceReport.of(rank, START_NS, device, counted))
    found = parsed(metrics_text(recorded))
    circuit, twin = {"rank": "0", "device": "circuit"}, {"rank": "1", "device": "twin"}
    assert value(found, "slackline_device_cycles_total", **circuit) == 900
    states = "slackline_device_beat_cycles_total"
    assert value(found, states, state="busy", **circuit) == 300
    assert value(found, states, state="no_peer_data", **circuit) == 200
    assert value(found, "slackline_device_events_total", event="accepted", **circuit) == 7
    assert value(found, "slackline_device_events_total", event="accepted", **twin) == 4
    assert {dict(labels)["rank"] for name, labels in found if name.endswith("cycles_total")} == {
        "0"
    }


def test_a_rail_that_is_cut_is_down_at_both_ends(recorded: Watch) -> None:
    cut = verdict(1, 1, 2, 70 * SECOND_NS, "cut")
    write(recorded.job.directory, 1, cut)
    found = parsed(metrics_text(recorded))
    down = [dict(key[1])["link"] for key in found if key[0].endswith("link_up") and not found[key]]
    assert sorted(down) == ["1>2", "2>1"]
    assert value(found, "slackline_link_disturbed", cause="cut", link="1>2", rail="0") == 1


def test_a_restart_of_the_exporter_changes_no_value(recorded: Watch) -> None:
    again = Watch.recorded(recorded.job.directory, time.time_ns())
    assert parsed(metrics_text(recorded)) == parsed(metrics_text(again))


def test_rails_beyond_the_bound_are_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 6
    monkeypatch.setattr("slackline.views.metrics._labels.MOST_RAILS", bound)
    counts = {"sent_bytes": 10, "received_bytes": 20, "packets": 4, "resent": 1}
    told = {**counts, "kind": "udp", "state": "suspect"}
    beyond = [link(0, 1 + peer, 101 * SECOND_NS, **told) for peer in range(bound + 5)]
    write(tmp_path, 0, header(0), *beyond)
    job = Watch.recorded(tmp_path, time.time_ns())
    found = parsed(metrics_text(job))
    rails = {dict(labels)["link"] for name, labels in found if name == "slackline_link_up"}
    assert len(rails) == bound
    assert value(found, "slackline_link_rails_beyond_bound") == 5
    rest = {"rank": "0", "peer": "other", "link": "other", "rail": "other"}
    assert value(found, "slackline_link_bytes_total", direction="sent", **rest) == 50
    assert value(found, "slackline_link_bytes_total", direction="received", **rest) == 100
    assert value(found, "slackline_link_packets_total", **rest) == 20
    assert value(found, "slackline_link_resent_packets_total", **rest) == 5
    sent = sum(
        number
        for (name, labels), number in found.items()
        if name == "slackline_link_bytes_total" and ("direction", "sent") in labels
    )
    assert sent == 10 * (bound + 5), "no byte is missing"


def test_groups_beyond_the_bound_are_one_group(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0))
    for epoch in range(MOST_GROUPS + 2):
        members = (0, 10 + epoch)
        opened = GroupOpened(rank=0, time_ns=START_NS, size=2, epoch=epoch, members=members)
        row = (9, 0, -1, 7, 1, epoch, -1, 0, 0, 1, 1, 1000, 1100, 2000, 500, 1)
        write(tmp_path, 0, opened, operations(0, row))
    found = parsed(metrics_text(Watch.recorded(tmp_path, time.time_ns())))
    failures = {
        dict(labels)["group"]: number
        for (name, labels), number in found.items()
        if name == "slackline_operation_failures_total"
    }
    own = {f"0,{10 + epoch}": 1 for epoch in range(MOST_GROUPS)}
    assert failures == {**own, "other": 2}


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ((), "unknown"),
        ((3,), "3"),
        (range(4), "0-3"),
        ((0, 2, 3, 4, 9), "0,2-4,9"),
        ((3, 2, 1), "3,2,1"),
        (range(0, 200, 2), "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34... (100 ranks)"),
    ],
)
def test_a_group_is_named_by_its_ranks(members: tuple[int, ...], text: str) -> None:
    assert group_text(members) == text


def test_a_token_opens_the_endpoint(recorded: Watch) -> None:
    with Endpoint("127.0.0.1", 0, "correct-horse-battery") as opened:
        opened.serve(recorded)
        assert fetch(opened.url)[0] == 401
        assert fetch(opened.url, "correct-horse-batterx") == (
            401,
            "text/plain; charset=utf-8",
            "the request has no token, or another one\n",
        )
        assert fetch(opened.url, "correct-horse-battery")[0] == 200


def test_an_endpoint_answers_at_ipv6_too(recorded: Watch) -> None:
    with Endpoint("::1", 0) as opened:
        opened.serve(recorded)
        assert opened.url.startswith("http://[::1]:")
        assert fetch(opened.url)[0] == 200


def test_once_prints_the_metrics(recorded: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--metrics", "--once", str(recorded.job.directory)]) == 0
    assert parsed(capsys.readouterr().out) == parsed(metrics_text(recorded))


def served_at(address: str | None) -> AbstractContextManager[Served]:
    return served(
        page=False,
        page_listen=None,
        metrics=False,
        metrics_listen=address,
        metrics_token=None,
    )


def test_metrics_of_a_job_are_served_from_its_start_to_its_end(tmp_path: Path) -> None:
    with served_at("127.0.0.1:0") as servers:
        (said,) = servers.start(tmp_path)
        address = said.removeprefix("metrics for Prometheus at ")
        assert value(parsed(fetch(address)[2]), "slackline_ranks") == 0
        write_job(tmp_path)
        assert value(parsed(fetch(address)[2]), "slackline_ranks") == 3
    with pytest.raises(urllib.error.URLError):
        fetch(address)
    with served_at(None) as servers:
        assert not servers
        assert servers.start(tmp_path) == []


def test_the_command_serves_until_a_signal(recorded: Watch) -> None:
    command = "import sys; from slackline.cli import main; sys.exit(main(sys.argv[1:]))"
    asked = ("top", str(recorded.job.directory), "--metrics-listen", "127.0.0.1:0")
    with subprocess.Popen(
        [sys.executable, "-c", command, *asked], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said, _, address = process.stdout.readline().strip().rpartition(" at ")
            assert said == "metrics for Prometheus"
            address = address.removesuffix(" (Ctrl-C ends it)")
            assert fetch(address)[0] == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_port_in_use_is_named(recorded: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    script = str(Path(__file__))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (
            ("top", str(recorded.job.directory), "--metrics-listen", at),
            ("run", "--metrics-listen", at, script),
        ):
            assert main(command) == 2
            message = f"slackline: cannot listen at {at}: Address already in use\n"
            assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--listen", "0.0.0.0:9464"),
            "other machines can reach 0.0.0.0:9464: name a file with a token that Prometheus must "
            "send",
        ),
        (
            ("--listen", "[::]:9464"),
            "other machines can reach [::]:9464: name a file with a token that Prometheus must "
            "send",
        ),
        (
            ("--listen", "9464"),
            "an address must be like 10.0.0.9:7000 or [fd00::9]:7000, not '9464'",
        ),
        (
            ("--token", "nowhere"),
            "the token 'nowhere' cannot be read: No such file or directory",
        ),
        (
            ("--token", "short"),
            "the token 'short' must have at least 16 characters, not 5",
        ),
        (
            ("--token", "words"),
            "the token 'words' must be one word of ASCII characters",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(
    recorded: Watch,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(recorded.job.directory)
    Path("short").write_text("12345\n")
    Path("words").write_text("several words of a token\n")
    given = [word.replace("--", "--metrics-", 1) for word in arguments]
    assert main(["top", ".", "--metrics", *given]) == 2
    assert capsys.readouterr().err == f"slackline: {message}\n"
    assert main(["run", "--metrics", *given, __file__]) == 2
    assert capsys.readouterr().err == f"slackline: {message}\n"


def test_a_token_without_metrics_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--metrics-token", "file", __file__]) == 2
    assert capsys.readouterr().err == (
        "slackline: --metrics-token file is for --metrics and --metrics-listen\n"
    )


def test_a_directory_without_records_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--metrics", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"slackline: {str(tmp_path)!r} has no telemetry: no file rank-*.jsonl with a record\n"
    )

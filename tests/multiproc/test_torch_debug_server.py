"""Tests of slackline's pages in torch's debug server, by requests over HTTP."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.debug import _frontend

from slackline.backend import debug_handlers


@contextlib.contextmanager
def worker_of(rank, size):
    """Run the debug worker of this rank, whose address all ranks find in a store of their own, as
    torch's `start_debug_server` does."""
    port = [0]
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, 0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port[0]))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    from torch.distributed.debug._store import tcpstore_client

    worker = c10d._WorkerServer("127.0.0.1", 0)
    address = f"http://127.0.0.1:{worker.port}"
    tcpstore_client().set(f"rank{rank}", address)
    dist.barrier()
    try:
        yield address
        dist.barrier()
    finally:
        worker.shutdown()


def asked(address, name):
    """Return the status and the text of a worker's answer."""
    request = urllib.request.Request(f"{address}/handler/{name}", method="POST")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def links_of(rank, size):
    with worker_of(rank, size) as address:
        dist.all_reduce(torch.ones(1 << 18))
        status, text = asked(address, "slackline_links")
        off = asked(address, "slackline_flight")
        return status, json.loads(text)["links"], off


def test_each_rank_answers_with_the_rates_and_the_health_of_its_links(job):
    answers = job(2, links_of, environment={"SLACKLINE_RAILS": "tcp"})
    for rank, (status, (rail,), off) in enumerate(answers):
        assert status == 200
        assert (rail["rank"], rail["peer"], rail["kind"]) == (rank, 1 - rank, "tcp")
        assert rail["state"] == "up"
        for way in ("sent", "received"):
            assert rail[f"{way}_bytes"] >= 1 << 20
            rate = rail[f"{way}_bytes"] * 1e9 / rail["interval_ns"]
            assert rail[f"{way}_bytes_per_s"] == rate
        assert off[0] == 503
        assert off[1].startswith("UsageError: the flight recorder is off: ")


def pages_of(rank, size):
    dist.all_reduce(torch.ones(5))
    with worker_of(rank, size):
        if rank == 1:
            return {}
        from torch.distributed.debug._debug_handlers import default_handlers
        from torch.distributed.debug._frontend import FrontendServer

        server = FrontendServer(0, [*default_handlers(), *debug_handlers()])
        port = server._server.server_port
        pages = {}
        for page in ("", "slackline_links", "slackline_flight"):
            with urllib.request.urlopen(f"http://localhost:{port}/{page}") as answer:
                pages[page] = answer.read().decode()
        server._server.shutdown()
        server._server.server_close()
        server.join()
        return pages


@pytest.mark.skipif(
    not hasattr(_frontend, "format_fetch_summary"), reason="this torch has an older debug server"
)
def test_the_servers_pages_show_all_ranks(job):
    environment = {"SLACKLINE_RAILS": "tcp", "SLACKLINE_FLIGHT_RECORDER_ENTRIES": "100"}
    pages, _ = job(2, pages_of, environment=environment)
    assert '<a href="/slackline_links">slackline: links</a>' in pages[""]
    assert '<a href="/slackline_flight">slackline: flight recorder</a>' in pages[""]
    rows = re.findall(r"<td>(\d)</td><td>0</td><td>tcp</td><td>up</td>", pages["slackline_links"])
    assert rows == ["1", "0"]  # the peer of rank 0, and of rank 1
    assert "gloo:all_reduce" in pages["slackline_flight"]
    assert "[[5]]" in pages["slackline_flight"]


def started_by_torch(rank, size):
    from torch.distributed.debug import start_debug_server, stop_debug_server
    from torch.distributed.debug._debug_handlers import default_handlers

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    handlers = [*default_handlers(), *debug_handlers()]
    start_debug_server(port=port, start_method="spawn", handlers=handlers)
    page = None
    while page is None:  # until the server's process listens; the job has a limit
        with contextlib.suppress(urllib.error.URLError):
            address = f"http://localhost:{port}/slackline_links"
            with urllib.request.urlopen(address, timeout=30) as answer:
                page = answer.read().decode()
        threading.Event().wait(0.05)
    stop_debug_server()
    return page


@pytest.mark.slow
def test_torchs_own_start_of_the_server_takes_the_pages(job):
    (page,) = job(1, started_by_torch, timeout=timedelta(seconds=60))
    assert "slackline: links" in page
    assert "Rank 0: http://" in page


@pytest.mark.slow
def test_a_process_ends_in_good_order_when_python_has_dropped_the_handlers():
    drop = "from slackline.backend import _context as context; vars(context).clear()"
    ended = subprocess.run([sys.executable, "-c", drop], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")

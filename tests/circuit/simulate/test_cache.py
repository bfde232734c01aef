"""Tests of the cache of generated Verilog."""

import importlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import slackline
from slackline.circuit import NodeOptions, Verilog
from slackline.circuit.simulate import _cache

HOME = Path(slackline.__file__).parent
SMALL = NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)
VERILOG = Verilog(name="node", text="module node; endmodule", ports=())


def test_a_change_of_any_source_makes_cached_verilog_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for room in ("circuit", "wire"):
        shutil.copytree(HOME / room, tmp_path / room, ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr(_cache, "_HOME", tmp_path)
    assert _cache._cached("node", SMALL, lambda: VERILOG) == VERILOG
    sources = [path for room in ("circuit", "wire") for path in (tmp_path / room).rglob("*.py")]
    assert tmp_path / "circuit" / "ring" / "queue" / "_queues.py" in sources
    for path in sources:
        text = path.read_text()
        path.write_text(text + "# another line\n")
        assert _cache.cached_verilog("node", SMALL) is None, path
        path.write_text(text)
        assert _cache.cached_verilog("node", SMALL) == VERILOG, path


def test_a_change_of_a_source_elsewhere_makes_cached_verilog_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_classes.py").write_text(
        "class Meta(type):\n    __module__ = property(lambda cls: 3)\n\n"
        "class Odd(metaclass=Meta):\n    pass\n"
    )
    importlib.import_module("odd_classes")  # as some classes of C, whose module is no text
    part = tmp_path / "own_part_of_a_circuit.py"
    part.write_text("from amaranth.hdl import Module\n")
    importlib.import_module(part.stem)
    assert _cache._cached("node", SMALL, lambda: VERILOG) == VERILOG
    assert _cache.cached_verilog("node", SMALL) == VERILOG
    part.write_text("from amaranth.hdl import Module, Signal\n")
    assert _cache.cached_verilog("node", SMALL) is None
    other = replace(VERILOG, text="module node(); endmodule")
    assert _cache._cached("node", SMALL, lambda: other) == other
    for name in (part.stem, "odd_classes"):
        monkeypatch.delitem(sys.modules, name)


def test_another_yosys_makes_cached_verilog_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert _cache._cached("node", SMALL, lambda: VERILOG) == VERILOG
    monkeypatch.setattr(_cache, "_yosys", lambda: "another version")
    assert _cache.cached_verilog("node", SMALL) is None


def test_a_process_that_runs_cached_verilog_does_not_load_amaranth() -> None:
    code = """
import sys
from slackline.circuit import CheckedRing, NodeTwin, QueueDriver, RingCircuit, RingTwin, Simulation
from slackline.circuit import cached_node, cached_ring, cached_verilog, convert, resources
print("amaranth" in sys.modules)
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=110)
    assert done.stdout == "False\n"

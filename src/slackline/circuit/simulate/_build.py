"""Compilation of Verilog, with Verilator and C++, to shared libraries in the user's cache."""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from slackline._distribution import install
from slackline.circuit.simulate._commands import run_all
from slackline.circuit.simulate._verilog import Port, Verilog
from slackline.env import cache_folder
from slackline.errors import UsageError

__all__ = ["build", "built", "missing_tools"]

_HARNESS = Path(__file__).with_name("harness.cc")
_SUPPORT = (_HARNESS, *(_HARNESS.with_name(f"{name}.h") for name in ("dma", "model", "packets")))
_VERILATOR = (
    *("--cc", "-O3", "--x-assign", "0", "--x-initial", "0", "--no-timing", "-Wno-fatal"),
    "--savable",
)
_TRACED = ("--trace",)
"""The options with which Verilator makes a model that can write a VCD file. Such a model takes
twice as long to compile."""
_CXX = ("-std=c++20", "-fPIC", "-pthread")
_LEVEL = "-Og"
"""The optimisation level of the code that runs in every cycle. Compared with -O2, a ring NIC is
compiled in six tenths of the time and simulated a fifth slower; at -O0 it would be simulated ten
times slower."""
_PACKET_LEVEL = "-O2"
"""The level for circuits that serve real interfaces: at -O2 a node of 4 lanes simulates twice as
many cycles a second as at -Og, and such a circuit runs for long."""
_COMPILERS = ("c++", "g++", "clang++")
_CORES = min(4, len(os.sched_getaffinity(0)))
"""Compilers that run at once; each takes gigabytes of memory for a wide circuit."""

_ZEROED_MEMORY = re.compile(
    r"^  initial begin\n(?:    \S+ ?\[\d+\] = \d+'h0+;\n)+  end\n", re.MULTILINE
)

_MEMORY = (
    ("kReadRequests", "read_requests", False),
    ("kReadData", "read_data", True),
    ("kWriteRequests", "write_requests", False),
    ("kWriteData", "write_data", False),
)
"""The streams that the harness answers from memory: a constant of circuit.h, the stream's name, and
whether the stream is an input. The constant is -1 for a circuit without the stream."""


def missing_tools() -> str | None:
    """Return a sentence that names a missing tool for simulations, or None if none is missing."""
    for name in ("amaranth", "numpy"):
        if find_spec(name) is None:
            return f"{name} is not installed ({install('circuit')})"
    if shutil.which("verilator") is None:
        return "Verilator is not installed (Debian: apt install verilator)"
    if not any(map(shutil.which, _COMPILERS)):
        return "there is no C++ compiler (Debian: apt install g++)"
    return None


def build(verilog: Verilog, *, traced: bool = False) -> Path:
    """Return the path of the circuit's shared library in the user's cache; build it if missing.

    A build takes seconds to a minute. The library can write traces if `traced`. The file is named
    after a hash of the Verilog, the harness, Verilator's version and options. Raises UsageError
    when a tool is missing, and when a tool refuses the circuit, with the tool's own words.
    """
    if missing := missing_tools():
        raise UsageError(f"circuits cannot be simulated here: {missing}")
    toolchain = _toolchain(traced)
    library = _library(verilog, toolchain)
    folder = library.parent
    folder.mkdir(parents=True, exist_ok=True)
    # Ranks on one machine ask for the same circuit at once; the lock lets one of them build it.
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
                support = folder / f"verilator-{_hash(*toolchain)}.o"
                _build(verilog, Path(scratch), support, traced)
                os.replace(Path(scratch) / "circuit.so", library)
    return library


def built(verilog: Verilog) -> bool:
    """Return whether the user's cache has the circuit's shared library."""
    if missing_tools():
        return False
    return _library(verilog, _toolchain(traced=False)).exists()


def _toolchain(traced: bool) -> tuple[str, ...]:
    return (_run(["verilator", "--version"]), *_options(traced), *_CXX, _LEVEL)


def _options(traced: bool) -> tuple[str, ...]:
    return (*_VERILATOR, *_TRACED) if traced else _VERILATOR


def _library(verilog: Verilog, toolchain: tuple[str, ...]) -> Path:
    texts = (path.read_text() for path in _SUPPORT)
    key = _hash(verilog.key, *texts, *toolchain, _level(verilog))
    return cache_folder() / "circuits" / f"{verilog.name}-{key}.so"


def _level(verilog: Verilog) -> str:
    """Return the optimisation level of the code that runs in every cycle of a circuit."""
    return _PACKET_LEVEL if any(port.name == "address" for port in verilog.ports) else _LEVEL


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _build(verilog: Verilog, scratch: Path, support: Path, traced: bool) -> None:
    (scratch / f"{verilog.name}.v").write_text(_without_zeros(verilog.text))
    (scratch / "circuit.h").write_text(_header(verilog, traced))
    top = ["--top-module", verilog.name, "--prefix", "Vcircuit", "-Mdir", str(scratch)]
    _run(["verilator", *_options(traced), *top, str(scratch / f"{verilog.name}.v")])
    root = Path(_variable("VERILATOR_ROOT")) / "include"
    # Code that runs once in a simulation is not worth the time of an optimising compiler.
    models = sorted(scratch.glob("Vcircuit*.cpp"))
    slow = [path for path in models if path.stem.endswith(("Slow", "Syms"))]
    fast = [path for path in models if path not in slow]
    units = [("slow", "-O0", slow)]
    shares = _shares([*fast, _HARNESS])
    level = _level(verilog)
    units += [(f"fast{k}", level, each) for k, each in enumerate(shares)]
    if not support.exists():
        names = ["verilated.cpp", "verilated_threads.cpp", "verilated_save.cpp"]
        names += ["verilated_vcd_c.cpp"] if traced else []
        units.append(("support", _LEVEL, [root / name for name in names if (root / name).exists()]))
    made = {name: scratch / f"unit_{name}.o" for name, _, _ in units}
    run_all([_compilation(scratch, root, *unit) for unit in units], _CORES)
    if "support" in made:
        os.replace(made.pop("support"), support)
    output = ["-o", str(scratch / "circuit.so")]
    objects = [str(each) for each in (*made.values(), support)]
    _run([_compiler(), *_CXX, "-shared", "-Wl,-Bsymbolic", *objects, *output])


def _without_zeros(text: str) -> str:
    """Remove the blocks that initialise each word of a memory to zero.

    Verilator initialises every memory to zero anyway, and would compile one statement a word.
    """
    return _ZEROED_MEMORY.sub("", text)


def _shares(sources: list[Path]) -> list[list[Path]]:
    """Split the sources into units of about equal size that compile at the same time.

    There are at most as many units as cores, and no unit has less than two megabytes, because
    Verilator's headers take a second in each.
    """
    whole = sum(source.stat().st_size for source in sources)
    count = max(1, min(_CORES, whole >> 21, len(sources)))
    shares: list[list[Path]] = [[] for _ in range(count)]
    sizes = [0] * len(shares)
    for source in sorted(sources, key=lambda path: path.stat().st_size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(source)
        sizes[least] += source.stat().st_size
    return shares


def _compilation(
    scratch: Path, root: Path, name: str, level: str, sources: list[Path]
) -> list[str]:
    """Write one C++ unit that includes all sources, and return the command that compiles it.

    Most of the compiler's time goes into Verilator's headers, which one unit includes only once.
    """
    unit = scratch / f"unit_{name}.cc"
    unit.write_text("".join(f'#include "{source}"\n' for source in sources))
    includes = [f"-I{folder}" for folder in (scratch, _HARNESS.parent, root, root / "vltstd")]
    made = str(unit.with_suffix(".o"))
    return [_compiler(), *_CXX, level, *includes, "-c", str(unit), "-o", made]


def _compiler() -> str:
    return next(name for name in _COMPILERS if shutil.which(name))


def _variable(name: str) -> str:
    lines = _run(["verilator", "-V"]).splitlines()
    found = [line.split("=", 1)[1].strip() for line in lines if line.strip().startswith(name)]
    values = [value for value in found if value]
    if not values:
        raise UsageError(f"`verilator -V` does not tell {name}")
    return values[0]


def _run(command: list[str]) -> str:
    return run_all([command], 1)[0]


def _header(verilog: Verilog, traced: bool) -> str:
    """Return the text of circuit.h, which tells the harness where the model keeps its wires."""
    ports = {port.name: port for port in verilog.ports}
    lines = [
        "#pragma once",
        "#include <vector>",
        '#include "Vcircuit.h"',
        "#define MODEL Vcircuit",
        *(["#define SLACKLINE_TRACED"] if traced else []),
        "struct Wires { void* payload; std::size_t bytes; CData* valid; CData* ready; };",
        "struct Bus { SData* address; CData* write; IData* write_data; IData* read_data; };",
    ]
    for function, inward in (("input_wires", True), ("output_wires", False)):
        lines.append(f"inline std::vector<Wires> {function}(MODEL& m) {{ return {{")
        lines += [_wires(port) for port in stream_payloads(verilog, inward)]
        lines.append("}; }")
    for constant, stream, inward in _MEMORY:
        streams = [port.name for port in stream_payloads(verilog, inward)]
        payload = f"{stream}__payload"
        index = streams.index(payload) if payload in streams else -1
        lines.append(f"inline constexpr int {constant} = {index};")
    if "bus__address" in ports:
        names = ("address", "write", "write_data", "read_data")
        members = ", ".join(f"&m.{_mangled(f'bus__{name}')}" for name in names)
        lines.append(f"inline Bus bus_wires(MODEL& m) {{ return {{{members}}}; }}")
    else:
        lines.append("inline Bus bus_wires(MODEL&) { return {}; }")
    sets = "m.address = address;" if "address" in ports else ""
    lines.append(
        f"inline void set_address([[maybe_unused]] MODEL& m, [[maybe_unused]] QData address) "
        f"{{ {sets} }}"
    )
    return "\n".join(lines) + "\n"


def stream_payloads(verilog: Verilog, inward: bool) -> list[Port]:
    """Return the payload ports of the input or output streams, in the signature's order."""
    return [
        port for port in verilog.ports if port.name.endswith("__payload") and port.input == inward
    ]


def _wires(port: Port) -> str:
    stem = port.name.removesuffix("__payload")
    payload, valid, ready = (_mangled(f"{stem}__{end}") for end in ("payload", "valid", "ready"))
    return f"    {{&m.{payload}, {-(-port.width // 8)}, &m.{valid}, &m.{ready}}},"


def _mangled(name: str) -> str:
    """Return Verilator's C++ name of a wire; Verilator reserves double underscores for itself."""
    return name.replace("__", "___05F")

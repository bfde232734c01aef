"""Tests of the modules that an import loads, made in a fresh interpreter."""

import ast
import gc
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from slackline.errors import UsageError

SOURCE = Path(__file__).parents[2] / "src" / "slackline"
MAKERS_OF_ENVIRONMENTS = {"cli/_doctor/_save.py", "cli/doctor.py", "cli/run.py", "lab/enter.py"}
MAKERS_OF_ENVIRONMENTS |= {"cli/_job/_running.py", "cli/bench.py"}
MAKERS_OF_ENVIRONMENTS |= {"cli/_apply.py"}
MAKERS_OF_ENVIRONMENTS |= {"cli/_tune/_trial.py", "cli/tune.py"}
"""The files that start processes and therefore build an environment for them."""
MAKERS_OF_ENVIRONMENTS |= {"reproduce/_accuracy.py"}
TORCH_FREE = (
    "slackline",
    "slackline.wire",
    "slackline.plan",
    "slackline.nic",
    "slackline.lab",
    "slackline.nic.aggregator",
)
TORCH_FREE += ("slackline.faults", "slackline.detect", "slackline.sim", "slackline.cli")
TORCH_FREE += ("slackline.plan.pipeline", "slackline.circuit", "slackline.reproduce")
TORCH_FREE += ("slackline.predict", "slackline.records", "slackline.records.failures")
TORCH_FREE += ("slackline.history", "slackline.causes", "slackline.causes.ending")
TORCH_FREE += ("slackline.views", "slackline.views.terminal", "slackline.views.trace")


def run(code: str) -> str:
    """Run the code in a new interpreter and return its output; an error there fails the test."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=110).stdout


def test_packages_that_must_not_know_torch_do_not_import_it() -> None:
    """Import the packages one after the other; the output names the first one that loads torch."""
    code = f"""
import importlib, sys
for package in {TORCH_FREE}:
    importlib.import_module(package)
    if "torch" in sys.modules:
        raise SystemExit(package + " imports torch")
"""
    assert run(code) == ""


def test_the_package_of_circuits_loads_without_its_extra_and_says_what_to_install() -> None:
    code = """
import sys
sys.modules["amaranth"] = None
from slackline import circuit
from slackline.errors import UsageError
try:
    circuit.AggregationNode
except UsageError as error:
    print(error)
"""
    assert run(code) == "circuits need amaranth: pip install 'slackline-torch[circuit]'\n"


def test_planning_on_the_command_line_does_not_import_torch() -> None:
    code = """
import contextlib, io, sys
from slackline import cli
with contextlib.redirect_stdout(io.StringIO()):
    code = cli.main(["plan", "collective", "--plan", "ring", "--ranks", "4"])
print(code, "torch" in sys.modules)
"""
    assert run(code) == "0 False\n"


@pytest.mark.parametrize("first", ["torch", pytest.param("slackline", marks=pytest.mark.slow)])
def test_torch_knows_the_backend_whichever_is_imported_first(first: str) -> None:
    second = {"slackline": "torch", "torch": "slackline"}[first]
    code = f"""
import {first}, {second}
from torch import distributed
print("slackline" in distributed.Backend.backend_list)
"""
    assert run(code) == "True\n"


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import slackline

    with pytest.raises(AttributeError, match=r"^module 'slackline' has no attribute 'nothing'$"):
        _ = slackline.nothing


def test_the_package_offers_the_error_tree() -> None:
    import slackline

    assert slackline.errors.UsageError is UsageError


@cache
def sources_with(*words: str) -> list[Path]:
    """Return the files of the package in which one of the words occurs."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    return [path for path, text in texts.items() if any(word in text for word in words)]


def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of the file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def names_imported(path: Path) -> set[str]:
    """Return the modules that the file imports, and `module.name` for each name that it imports
    from a module."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_only_rooms_over_the_native_core_import_the_compiled_module() -> None:
    importers = {
        path.relative_to(SOURCE).parts[0]
        for path in sources_with("_native")
        if "slackline._native" in names_imported(path)
    }
    assert importers <= {"nic", "lab", "sim", "circuit"}


def test_only_env_reads_the_environment() -> None:
    readers = {
        str(path.relative_to(SOURCE))
        for path in sources_with("environ", "getenv")
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    }
    assert readers <= {"env.py", *MAKERS_OF_ENVIRONMENTS}


OPENING = """
import gc, sys
import torch
from torch import distributed
early = set(sys.modules)
collected = []
gc.callbacks.append(lambda phase, about: collected.append(about["generation"]))
rank, ranks, port = map(int, sys.argv[1:])
store = distributed.TCPStore("127.0.0.1", port, is_master=False)
distributed.init_process_group("slackline", store=store, rank=rank, world_size=ranks)
distributed.all_reduce(torch.ones(4))
print(*(name for name in sys.modules if name.partition(".")[0] == "slackline"))
print(*sorted(set(sys.modules) - early))
print(collected.count(2), gc.isenabled())
sys.stdout.flush()
distributed.destroy_process_group()
"""
MOST_MODULES = {1: 60, 2: 85, 4: 85}
"""The most modules of slackline that a rank loads for its first all_reduce, by the number of ranks
of its group. Each costs every rank of a job some 0.5 ms; `slackline._lazy` says how a package loads
a module later."""
LATE = {"causes", "circuit", "cli", "detect", "elastic", "faults", "history", "lab", "overlap"}
LATE |= {"pipeline", "predict", "records", "sim", "views"}
"""The packages that a rank needs only for a tool, a variable or a link over a network."""
LATE_OTHERS = {"statistics", "faulthandler", "msgspec", "torch.distributed._functional_collectives"}


@cache
def openings(ranks: int) -> list[tuple[set[str], set[str], str]]:
    """Open a group of new processes. Return each rank's modules of slackline, all modules that it
    has loaded since torch, and the number of full garbage collections with the collector's state.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-W", "error", "-c", OPENING]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), str(store.port)], stdout=-1, text=True)
        for rank in range(ranks)
    ]
    try:
        texts = [process.communicate(timeout=110)[0].splitlines() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(set(own.split()), set(new.split()), state) for own, new, state in texts]


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)],
)
def test_a_group_opens_with_few_modules(ranks: int) -> None:
    for own, new, _ in openings(ranks):
        assert len(own) <= MOST_MODULES[ranks], sorted(own)
        assert {name.partition(".")[2].partition(".")[0] for name in own} & LATE == set()
        assert new & LATE_OTHERS == set()


def test_a_group_opens_without_a_collection_of_all_objects_of_torch() -> None:
    assert [state for _, _, state in openings(2)] == ["0 True", "0 True"]


def test_a_pause_of_the_collection_leaves_the_collector_as_it_was() -> None:
    from slackline._lazy import collection_paused

    assert gc.isenabled()
    with collection_paused():
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(UsageError), collection_paused():
        raise UsageError("failed")
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


ACTS_AT_IMPORT = {"nic/connect/_sockets.py", "backend/_context.py"}
"""The modules whose import changes something besides them. Every group loads these modules."""
OWN_CLASSES = {"backend/_hooked.py", "backend/_served.py"}
"""The modules that complete their own classes by calls."""


def test_a_module_that_loads_late_changes_nothing_by_its_import() -> None:
    """Otherwise a process that never imports the module would lack what the import registers."""
    acting = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.name != "__main__.py" and path.relative_to(SOURCE).parts[0] != "cli"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    }
    assert acting == ACTS_AT_IMPORT | OWN_CLASSES


def lazy_packages() -> list[Path]:
    """Return the files of the packages that import their modules at first use."""
    return [path for path in sorted(SOURCE.rglob("__init__.py")) if names_of(path)[1]]


def names_of(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the home of each name that a package imports, and of each that `lazily` is given."""
    package = ".".join(("slackline", *path.parent.relative_to(SOURCE).parts))
    imported, lazy = {}, {}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(package):
            home = str(node.module).removeprefix(package).removeprefix(".")
            imported |= {alias.name: home or alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazily":
            for home, names in ast.literal_eval(node.args[1]).items():
                lazy |= dict.fromkeys(names.split(), home)
    return imported, lazy


@pytest.mark.parametrize("path", lazy_packages(), ids=lambda path: path.parent.name)
def test_a_package_that_imports_lazily_has_the_names_that_type_checkers_see(path: Path) -> None:
    imported, lazy = names_of(path)
    assert lazy == imported
    package = importlib.import_module(
        ".".join(("slackline", *path.parent.relative_to(SOURCE).parts))
    )
    assert sorted(package.__all__) == sorted(lazy)
    assert all(hasattr(package, name) for name in package.__all__)


def test_a_package_that_imports_lazily_has_no_other_names() -> None:
    from slackline import records

    name = "x"
    with pytest.raises(AttributeError, match=r"^module 'slackline.records' has no attribute 'x'$"):
        getattr(records, name)

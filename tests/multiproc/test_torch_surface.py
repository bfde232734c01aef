"""A table of all that torch can ask of a process group, and slackline's answer to each question.

The entries are listed from the installed torch. Two ranks call each one, over gloo and then over
slackline, and note each answer before the next call, so that a crash names the entry.
"""

import json
import os
from inspect import isroutine
from pathlib import Path

import pytest
import surface_functions as of_functions
import surface_rows as rows
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

from slackline.errors import SlacklineError

pytestmark = pytest.mark.filterwarnings("ignore")

PLACE = "SURFACE_ANSWERS"
OF_PYBIND = {"_pybind11_conduit_v1_", "BackendType", "Options"}
BACKEND_TYPES = set(dist.ProcessGroup.BackendType.__members__)


def entries(kind):
    """Return the names of a class's methods and properties, torch's private ones too."""
    names = {name for name in dir(kind) if not name.startswith("__")}
    return names - OF_PYBIND - BACKEND_TYPES


def functions():
    """Return the names of the public functions of torch.distributed and distributed_c10d."""
    named = {name: getattr(dist, name) for name in dir(dist) if name != "reduce_op"}
    own = {
        name: getattr(dist.distributed_c10d, name)
        for name in dist.distributed_c10d.__all__
        if name != "reduce_op"  # a deprecated class that warns when it is looked at
    }
    return {
        name
        for name, value in {**named, **own}.items()
        if isroutine(value) and not name.startswith("_")
    }


MORE = {
    "split_group, with an accelerator",
    "_set_pg_timeout",
    "_add_ephemeral_timeout_for_all_pgs",
}
"""Further cases of functions, and functions without a public name that programs call."""
TABLES = {
    "ProcessGroup": (rows.GROUP, entries(dist.ProcessGroup)),
    "Backend": (rows.BACKEND, entries(c10d.Backend)),
    "Work": (rows.WORK, entries(dist.Work)),
    "torch.distributed": (
        of_functions.DISTRIBUTED,
        functions() | MORE,
    ),
}
CASES = [
    (table, name)
    for table, (known, installed) in TABLES.items()
    for name in sorted(known)
    if name in installed
]
TIMES = [(entry, length) for entry in of_functions.TIMED for length in of_functions.LENGTHS]


@pytest.mark.parametrize("table", TABLES)
def test_the_table_knows_every_entry_of_the_installed_torch(table):
    known, installed = TABLES[table]
    missing = sorted(installed - known.keys())
    assert not missing, (
        f"torch has entries of {table} that no row of surface_rows.py or surface_functions.py "
        f"calls: {', '.join(missing)}. Add a row to the table with slackline's answer, or with the "
        "words of its UsageError and the way out; slackline/backend/_identity.py serves or refuses "
        "the entry"
    )


def answer(call, *given):
    """Return the value or the error of a call, as data."""
    try:
        return {"value": call(*given)}
    except Exception as error:
        kind = type(error)
        return {
            "error": f"{kind.__module__}.{kind.__qualname__}: {error}",
            "typed": isinstance(error, SlacklineError),
        }


def not_asked(reason):
    raise RuntimeError(reason)


def surface(rank, size, store):
    for name in ("gloo", "slackline"):
        meeting = dist.FileStore(f"{store}.{name}", size)
        dist.init_process_group(name, store=meeting, rank=rank, world_size=size)
        group = dist.group.WORLD
        backend = group._get_backend(rows.CPU)
        at = rows.At(rank, group, meeting, name, backend)
        with open(f"{os.environ[PLACE]}/{name}.{rank}", "w") as file:

            def note(table, entry, call, *given, file=file):
                file.write(json.dumps([table, entry, answer(call, *given)], default=str) + "\n")
                file.flush()

            for table, entry in CASES:
                at.asked = backend if table == "Backend" else group
                row = TABLES[table][0][entry]
                if name == "gloo" and row.without_gloo:
                    note(table, entry, not_asked, row.without_gloo)
                else:
                    note(table, entry, row.call, at)
            for entry, length in TIMES if name == "slackline" else ():
                note(entry, length, of_functions.TIMED[entry], at, of_functions.LENGTHS[length])
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def answers(job, tmp_path_factory):
    place = tmp_path_factory.mktemp("surface")
    ends = job(2, surface, bare=True, environment={PLACE: str(place)}, seconds=25, dying=(0, 1))
    found = {
        (name, table, entry, rank): given
        for name in ("gloo", "slackline")
        for rank in (0, 1)
        for table, entry, given in _read(place / f"{name}.{rank}")
    }
    assert len(ends) == 2
    return found


def _read(path: Path):
    return map(json.loads, path.read_text().splitlines()) if path.exists() else ()


def of_both(answers, name, table, entry):
    """Return both ranks' answers; fail at the entry in which a rank has ended, skip later ones."""
    cases = [*CASES, *TIMES]
    for case in cases[: cases.index((table, entry)) + 1]:
        found = [answers.get((name, *case, rank)) for rank in (0, 1)]
        if not all(found):
            report = pytest.fail if case == (table, entry) else pytest.skip
            report(f"a rank has ended or hangs in {'.'.join(case)} over {name}: {found}")
    return found


@pytest.mark.parametrize(("table", "entry"), CASES)
def test_an_entry_gives_the_value_that_is_stated_or_names_the_way_out(answers, table, entry):
    row = TABLES[table][0][entry]
    ours = of_both(answers, "slackline", table, entry)
    gloos = of_both(answers, "gloo", table, entry)
    for rank in (0, 1):
        if row.torchs:
            assert row.torchs in ours[rank].get("error", ""), ours[rank]
            assert "No backend type" not in ours[rank]["error"]
        elif row.refused:
            assert ours[rank].get("typed"), ours[rank]
            assert row.refused in ours[rank]["error"]
        elif row.gives is not rows.SAME:
            assert ours[rank] == {"value": row.expected(rank)}
        served_by_gloo = "value" in gloos[rank]
        if served_by_gloo and not row.unlike_gloo:
            assert ours[rank] == gloos[rank]
    if row.unlike_gloo:
        assert any("value" in each for each in gloos), "the reason is out of date"
        assert ours != gloos, "the reason is out of date"


@pytest.mark.parametrize(("entry", "length"), TIMES)
def test_timeouts_of_any_length_are_kept_or_refused_by_name(answers, entry, length):
    for found in of_both(answers, "slackline", entry, length):
        if "error" in found:
            assert found["typed"], found
            assert "a timeout must be positive" in found["error"]
            assert length in {"zero", "negative", "timedelta.max"}
        else:
            assert length != "negative"


def test_the_page_of_features_names_what_is_not_served():
    page = Path(__file__).parents[2].joinpath("docs/features.md").read_text()
    told = {
        entry
        for known, _ in TABLES.values()
        for entry, row in known.items()
        if row.refused or row.unlike_gloo
    }
    assert sorted(entry for entry in told if entry not in page) == []

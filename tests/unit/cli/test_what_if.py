"""`slackline what-if` shows predictions as a table or as JSON, and makes the changed job."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from slackline import predict
from slackline.cli import main
from slackline.cli._apply import changed_job, job_of_words, words_of
from slackline.cli._job._limits import usable_cores
from slackline.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[1] / "predict"))
from written_pipelines import WrittenPipeline
from written_runs import Written

sys.path.pop(0)


CHANGES = ("--change", "rate 400Mbit", "--change", "hosts 3")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kept")
    Written(steps=6).write(directory / "telemetry")
    return directory


def job(**given: object) -> predict.Job:
    values = {
        "folder": "/",
        "script": "/train.py",
        "ranks": 4,
        "lab": True,
        "rate_bps": 2 * 10**8,
        "switch": "auto",
        "cores": usable_cores(),
    }
    return predict.Job(**{**values, **given})  # type: ignore[arg-type]


def test_the_first_row_is_the_run_as_it_was(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", str(kept), "--samples", "8", *CHANGES]) == 0
    heading, head, *rows = capsys.readouterr().out.splitlines()
    assert heading.startswith(
        "4 ranks on 4 hosts, 5 steps, 3 groups of 1 MiB in all by ring; each "
    )
    assert head.split() == ["change", "P50", "P95", "measured", "P50", "P95", "error", "reason"]
    text = "\n".join(rows)
    assert text.startswith("as measured  ")
    assert text.count("%  The wire") == 1
    assert "rate 400Mbit" in text
    assert "hosts 3" in text


def test_a_damaged_line_is_counted_and_left_out(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "run"
    shutil.copytree(kept, damaged)
    file = next(damaged.rglob("rank-00000.jsonl"))
    with file.open("a") as lines:
        lines.write('{"record":"step","ra\n')
    assert main(["what-if", str(damaged), "--samples", "4"]) == 0
    told = capsys.readouterr().err
    assert told.startswith(f"slackline: a line is left out: {file}:")


def test_json_has_nanoseconds_and_the_error_of_the_model(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["what-if", str(kept), "--change", "plan mesh; rate 1Gbit", "--json", "--seed", "3"]
    assert main([*words, "--samples", "8"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["run"] == str(kept)
    first, changed = said["rows"]
    assert first["change"] == "as measured"
    assert first["error"] == pytest.approx(first["p50_ns"] / first["measured_p50_ns"] - 1)
    assert abs(first["error"]) < 0.05
    assert changed["change"] == "plan mesh; rate 1Gbit"
    assert changed["measured_p50_ns"] is None
    assert "the run had no all_reduce with the plan mesh" in changed["warnings"]
    run = predict.load(kept)
    changes = predict.parse_changes("plan mesh; rate 1Gbit")
    assert changed["p50_ns"] == predict.predict(run, changes, samples=8, seed=3).p50_ns


def test_traces_are_written_beside_the_table(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["what-if", str(kept), "--samples", "4", "--export-chakra", str(tmp_path / "digits")])
        == 0
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"digits.{rank}.et" for rank in range(4)
    ]
    capsys.readouterr()
    assert main(["what-if", str(tmp_path), "--samples", "4"]) == 0
    assert capsys.readouterr().out.startswith("4 ranks on 4 hosts, 4 steps, 3 groups of 1 MiB")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--apply"], "--apply needs a --change to apply"),
        (["--samples", "0"], "samples must be a positive integer, not 0"),
        (
            ["--change", "plan mesh", "--apply"],
            "{kept} has no job.json, so the run's command line is not known: give the arguments of "
            "slackline run behind --",
        ),
        (
            ["--", "--ranks", "4", "train.py"],
            "the command line '--ranks 4 train.py' is of use with --apply only",
        ),
        (
            ["--change", "rate 1Gbit", "--apply", "--", "--ranks", "4", "train.py"],
            "--apply cannot make the change 'rate 1Gbit' outside of a lab",
        ),
        (
            ["--change", "plan star", "--apply", "--", "--ranks", "4", "train.py"],
            "--apply cannot make the change 'plan star': the run has no aggregation node; start "
            "one with slackline aggregate, and set SLACKLINE_AGGREGATOR to its address",
        ),
        (
            ["--change", "compute x2", "--apply", "--", "--lab", "train.py"],
            "--apply cannot make the change 'compute x2': the script itself chooses groups, "
            "schedule and computation",
        ),
    ],
)
def test_a_wrong_argument_is_reported(
    kept: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["what-if", str(kept), *words]) == 2
    assert capsys.readouterr().err == f"slackline: {sentence.format(kept=kept)}\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rate 400Mbit", ["--rate", "400Mbit"]),
        ("nics 2", ["--nics", "2"]),
        ("hosts 6", ["--ranks", "6"]),
        ("ranks 3", ["--ranks", "3"]),
        ("link 2-3 delay 5ms", ["--fault", "link 2-3 delay 5ms"]),
        ("latency 5ms", ["--fault", "nic 3.0 delay 2450us"]),
    ],
)
def test_a_change_becomes_options_of_the_job(kept: Path, change: str, words: list[str]) -> None:
    made = changed_job(predict.load(kept), job(), predict.parse_changes(change))
    said = words_of(made)
    places = [place for place, word in enumerate(said) if word == words[0]]
    assert words[1] in [said[place + 1] for place in places]
    assert said[-1] == "/train.py"
    assert job_of_words(said) == predict.Job(**{**vars(made), "folder": str(Path.cwd())})


def test_a_plan_becomes_a_setting_of_the_job(kept: Path) -> None:
    made = changed_job(predict.load(kept), job(), predict.parse_changes("plan mesh"))
    assert made.settings == {"SLACKLINE_PLAN": "mesh"}


@pytest.fixture
def piped(tmp_path: Path) -> Path:
    """Write the telemetry of a pipeline whose schedule and memory the script leaves open."""
    made = WrittenPipeline(
        settings={"schedule": ("1f1b", "environment"), "schedule_memory": ("", "default")}
    )
    made.write(tmp_path / "telemetry")
    return tmp_path


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (
            "schedule zb-h1",
            {"settings": {"SLACKLINE_SCHEDULE": "zb-h1", "SLACKLINE_TIMEOUT": "9s"}},
        ),
        (
            "schedule auto memory 6; rank 1 slow 2x",
            {
                "settings": {
                    "SLACKLINE_SCHEDULE": "auto",
                    "SLACKLINE_SCHEDULE_MEMORY": "6",
                    "SLACKLINE_TIMEOUT": "9s",
                },
                "faults": ("rank 1 slow 2x",),
            },
        ),
        # A message takes 2 ms already, and each of two NICs takes half of the other 3 ms.
        ("latency 5ms", {"faults": tuple(f"nic {rank}.0 delay 1500us" for rank in range(4))}),
    ],
)
def test_a_change_of_a_pipeline_becomes_options_of_the_job(
    piped: Path, change: str, given: dict[str, object]
) -> None:
    was = job(settings={"SLACKLINE_SCHEDULE": "1f1b", "SLACKLINE_TIMEOUT": "9s"})
    made = changed_job(predict.load_pipeline(piped), was, predict.parse_changes(change))
    assert made == predict.Job(**{**vars(was), **given})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("schedule zb-h1", "the script itself chooses schedule, '1f1b'"),
        ("compute x2", "the script itself chooses computation"),
        ("latency 1ms", "a message in this lab takes 2ms already"),
    ],
)
def test_a_change_of_a_pipeline_that_no_command_can_make_is_refused(
    tmp_path: Path, change: str, reason: str
) -> None:
    WrittenPipeline(settings={"schedule": ("1f1b", "argument")}).write(tmp_path)
    with pytest.raises(UsageError) as caught:
        changed_job(predict.load_pipeline(tmp_path), job(), predict.parse_changes(change))
    assert str(caught.value) == f"--apply cannot make the change {change!r}: {reason}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--change", "schedule zb-h1", "--apply"],
            "{piped} has no job.json, so the run's command line is not known: give the arguments "
            "of slackline run behind --",
        ),
        (
            ["--export-chakra", "traces"],
            "--export-chakra is for data-parallel training, and {piped} has a pipeline",
        ),
    ],
)
def test_an_option_that_a_pipeline_cannot_have_is_reported(
    piped: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["what-if", str(piped), *words]) == 2
    assert capsys.readouterr().err == f"slackline: {sentence.format(piped=piped)}\n"


def test_the_plan_star_is_applied_where_there_is_an_aggregation_node(kept: Path) -> None:
    run, settings = predict.load(kept), {"SLACKLINE_AGGREGATOR": "127.0.0.1:7000"}
    made = changed_job(run, job(settings=settings), predict.parse_changes("plan star"))
    assert made.settings == {**settings, "SLACKLINE_PLAN": "star"}


@pytest.mark.parametrize(
    ("cores", "change", "marked"),
    [
        (None, "plan mesh", []),
        (4, "plan mesh", []),
        (4, "hosts 6", ["6 ranks share 4 cores"]),
        (2, "plan mesh", ["4 ranks share 2 cores"]),
        (1, "compute x2", ["4 ranks share 1 core"]),
    ],
)
def test_a_row_whose_ranks_share_cores_is_marked(
    kept: Path, tmp_path: Path, cores: int | None, change: str, marked: list[str]
) -> None:
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    predict.write_job(tmp_path, job(cores=cores))
    found = predict.predict(predict.load(tmp_path), predict.parse_changes(change), samples=4)
    assert [text for text in found.warnings if " share " in text] == [
        f"{words}, while the model gives every rank a core of its own; predictions for such runs "
        "have missed by 18 to 38 %"
        for words in marked
    ]


def test_a_pipeline_whose_ranks_share_cores_is_marked(piped: Path) -> None:
    predict.write_job(piped, job(cores=1))
    run = predict.load_pipeline(piped)
    (marked,) = predict.predict(run, samples=4).warnings
    assert marked.startswith(f"{len(run.plan.programs)} ranks share 1 core, while the model ")


def test_a_latency_below_that_of_the_lab_cannot_be_made(kept: Path) -> None:
    with pytest.raises(UsageError) as caught:
        changed_job(predict.load(kept), job(), predict.parse_changes("latency 90us"))
    assert str(caught.value) == (
        "--apply cannot make the change 'latency 90us': a message in this lab takes 100us already"
    )


def test_the_words_behind_the_options_are_those_of_the_script() -> None:
    made = job_of_words(["--lab", "--hosts", "3", "--timeout", "9s", "train.py", "--lab", "-x"])
    assert (made.ranks, made.lab, made.arguments) == (3, True, ("--lab", "-x"))
    assert made.settings == {"SLACKLINE_TIMEOUT": "9s"}
    assert made.script == str(Path("train.py").absolute())


def test_a_module_is_repeated_by_its_name_in_the_folder_of_the_command() -> None:
    made = job_of_words(["--ranks", "2", "-m", "job.train", "--lr", "3"])
    assert (made.script, made.module, made.arguments) == ("job.train", True, ("--lr", "3"))
    assert made.folder == str(Path.cwd())
    assert words_of(made)[-4:] == ["-m", "job.train", "--lr", "3"]
    assert job_of_words(words_of(made)) == made


def test_a_job_of_several_machines_cannot_be_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        job_of_words(["--hosts", "a,b", "train.py"])
    assert str(caught.value) == "a job of several machines cannot be repeated: --hosts a,b"

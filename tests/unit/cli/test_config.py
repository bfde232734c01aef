"""Tests of files of settings: their values, their errors, and the text that is written."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.cli import main
from slackline.cli._job._config import KEYS, NO_CONFIG, Config, config_text, read_config
from slackline.errors import UsageError


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return read_config(path)


def refused(tmp_path: Path, text: str) -> str:
    """Return the error of a file, after its directory."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_a_file_gives_ranks_and_variables(tmp_path: Path) -> None:
    text = """
        ranks = 3
        plan = "ring"
        rails = ["shm", "udp"]
        segment = "512KiB"
        group_bytes = "1MiB"
        schedule = "1f1b"
        schedule_memory = [4, "7/2", "none"]
        nic_check = 100
    """
    assert read(tmp_path, text) == Config(
        name=str(tmp_path / "job.toml"),
        ranks=3,
        variables={
            "SLACKLINE_PLAN": "ring",
            "SLACKLINE_RAILS": "shm,udp",
            "SLACKLINE_SEGMENT": "512KiB",
            "SLACKLINE_GROUP_BYTES": "1MiB",
            "SLACKLINE_SCHEDULE": "1f1b",
            "SLACKLINE_SCHEDULE_MEMORY": "4,7/2,none",
            "SLACKLINE_NIC_CHECK": "100",
        },
    )


def test_a_plan_that_needs_an_aggregator_is_accepted_with_one(tmp_path: Path) -> None:
    text = 'plan = "star"\naggregator = "10.0.0.9:7000"\n'
    assert read(tmp_path, text).variables["SLACKLINE_PLAN"] == "star"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '# first\nplann = "ring"\n',
            "job.toml, line 2: plann = 'ring': there is no setting \"plann\"; the settings are "
            f"ranks, {', '.join(KEYS)}",
        ),
        (
            '\n\nsegment = "7XiB"',
            "job.toml, line 3: segment = '7XiB': a size must be a number and one of B, kB, "
            "KiB, MB, MiB, GB, GiB, TB, TiB, not '7XiB'",
        ),
        ('plan = "rung"', "job.toml, line 1: plan = 'rung': plan must be auto or one of direct, "),
        (
            'plan = "star"',
            "job.toml, line 1: plan = 'star': the plan 'star' needs an aggregator: give its "
            "address",
        ),
        (
            'schedule = "2f2b"',
            "job.toml, line 1: schedule = '2f2b': a schedule must be one of auto, ready, slack, ",
        ),
        (
            'delegation = "yes"',
            "job.toml, line 1: delegation = 'yes': delegation must be one of always, never, auto, "
            "not 'yes'",
        ),
        (
            "schedule_memory = [4, 0]",
            "job.toml, line 1: schedule_memory = [4, 0]: a number of activations must be a "
            "positive integer or fraction such as 7/2, not '0'",
        ),
        ("ranks = 0", "job.toml, line 1: ranks = 0: ranks must be a positive integer"),
        ("ranks = true", "job.toml, line 1: ranks = True: ranks must be a positive integer"),
        (
            "segment = 1.5",
            "job.toml, line 1: segment = 1.5: a value must be text, an integer or a list of these",
        ),
        (
            'plan = ""',
            "job.toml, line 1: plan = '': a value must not be empty; leave the key out for the "
            "default",
        ),
        (
            'telemetry = "here"',
            "job.toml, line 1: telemetry = 'here': a file cannot set telemetry: slackline run sets "
            "the directory; --keep keeps its files",
        ),
        (
            "[pipeline]\nschedule = 'auto'",
            "job.toml, line 1: pipeline = {'schedule': 'auto'}: there is no setting \"pipeline\"; ",
        ),
        ("plan = ring", "job.toml is not TOML: Invalid value (at line 1, column 8)"),
    ],
)
def test_an_error_names_file_line_key_value_and_the_accepted(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refused(tmp_path, text).startswith(message)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as missing:
        read_config(tmp_path / "none.toml")
    assert str(missing.value) == f"cannot read {tmp_path}/none.toml: No such file or directory"
    (tmp_path / "latin.toml").write_bytes(b"plan = '\xe9'")
    with pytest.raises(UsageError) as latin:
        read_config(tmp_path / "latin.toml")
    assert str(latin.value) == f"cannot read {tmp_path}/latin.toml: it is not UTF-8"


def test_a_variable_that_the_file_replaces_is_told() -> None:
    config = Config(
        name="job.toml", variables={"SLACKLINE_PLAN": "ring", "SLACKLINE_SEGMENT": "64KiB"}
    )
    environment = {"SLACKLINE_PLAN": "mesh", "SLACKLINE_SEGMENT": "64KiB"}
    assert config.replaced(environment, config.variables) == [
        "job.toml sets plan to 'ring', in place of SLACKLINE_PLAN=mesh"
    ]
    # An option of the command has replaced the file's value.
    assert config.replaced(environment, {**config.variables, "SLACKLINE_PLAN": "direct"}) == []
    assert NO_CONFIG.replaced(environment, {}) == []


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    settings = {"ranks": 2, "plan": "ring", "rails": "shm,udp", "schedule_memory": "4,none"}
    text = config_text(settings, ["a\ncomment", ""])
    assert text.splitlines()[:3] == ["# a comment", "#", "ranks = 2"]
    found = read(tmp_path, text)
    assert (found.ranks, found.variables) == (
        2,
        {
            "SLACKLINE_PLAN": "ring",
            "SLACKLINE_RAILS": "shm,udp",
            "SLACKLINE_SCHEDULE_MEMORY": "4,none",
        },
    )


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_written_as_toml(key: str) -> None:
    assert tomllib.loads(config_text({"key": key})) == {"key": key}


def test_a_script_is_not_started_with_a_wrong_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.toml").write_text("nics = 2")
    assert main(["run", "--config", str(tmp_path / "job.toml"), str(tmp_path / "none.py")]) == 2
    assert 'there is no setting "nics"' in capsys.readouterr().err

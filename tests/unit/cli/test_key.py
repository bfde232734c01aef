"""Tests of the key that `slackline run` makes for a job of one machine."""

import os
import stat
from pathlib import Path

from slackline.cli._job._key import job_key
from slackline.env import Environment


def test_a_job_of_one_machine_gets_a_key_of_its_own_that_goes_with_it() -> None:
    keys = []
    for _ in range(2):
        with job_key(Environment(), alone=True) as setting:
            path = Path(setting["SLACKLINE_KEY"])
            keys.append(path.read_bytes())
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert path.stat().st_uid == os.geteuid()
        assert not path.parent.exists()
    assert len(keys[0]) == len(keys[1]) == 32
    assert keys[0] != keys[1]


def test_no_key_is_made_where_other_programs_need_the_same(tmp_path: Path) -> None:
    for chosen, alone in (
        (Environment(), False),
        (Environment(key=tmp_path / "key"), True),
        (Environment(aggregator="10.0.0.9:7000"), True),
    ):
        with job_key(chosen, alone=alone) as setting:
            assert setting == {}

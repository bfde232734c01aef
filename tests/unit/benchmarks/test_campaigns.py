"""Tests of campaigns: pieces follow each other, and records tell which seeds have failed."""

import json
import subprocess
from datetime import timedelta

import pytest
from _harness import machine
from benchmark_modules import modules_of

from slackline.faults import parse

with modules_of("campaigns", "campaign") as found:
    campaign = found.campaign


class Cases:
    total, at_once, folder, without = 10, 4, None, ()

    def __init__(self):
        self.ran = []

    def run(self, seeds):
        self.ran.append(list(seeds))
        return {seed: "is\n  odd" for seed in seeds if seed % 5 == 3}


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.setattr(campaign, "file_of", lambda name: tmp_path / f"{name}.jsonl")
    monkeypatch.setattr(campaign, "commit", lambda *, apart_from: "abc")
    return tmp_path


def test_a_piece_runs_its_seeds_together_and_ends_with_the_last(here):
    cases = Cases()
    record = campaign.run_piece("models", cases, 1)
    assert cases.ran == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert (record.name, record.commit, record.first, record.count) == ("models", "abc", 1, 9)
    assert record.failed == {"3": "is odd", "8": "is odd"}


def test_a_piece_ends_after_its_time(here):
    cases = Cases()
    record = campaign.run_piece("models", cases, 0, timedelta())
    assert (cases.ran, record.count) == ([], 0)


def test_the_next_piece_begins_where_the_last_record_of_the_commit_ended(here):
    campaign.append(campaign.run_piece("models", Cases(), 0))
    (line,) = (here / "models.jsonl").read_text().splitlines()
    assert set(json.loads(line)) == {
        *("name", "commit", "machine", "began", "seconds", "first", "count", "failed"),
        "version",
    }
    records = campaign.records_of("models")
    assert campaign.next_seed(records, "abc") == 10
    assert campaign.next_seed(records, "another") == 0
    assert "abc: 10 cases in 1 pieces" in campaign.summary(records)
    assert "  seed 3: is odd" in campaign.summary(records)


def test_without_records_a_campaign_begins_at_the_first_seed(here):
    assert campaign.records_of("models") == []
    assert campaign.next_seed([], "abc") == 0
    assert campaign.summary([]) == "no piece has been run"


def test_a_campaign_s_own_records_do_not_change_its_commit(monkeypatch, tmp_path):
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        for name in ("records", "code"):
            (tmp_path / name).touch()
        identity = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    clean = machine.commit()
    (tmp_path / "records").write_text("a record")
    assert machine.commit() == f"{clean}-dirty"
    assert machine.commit(apart_from=tmp_path / "records") == clean
    (tmp_path / "code").write_text("a change")
    assert machine.commit(apart_from=tmp_path / "records") == f"{clean}-dirty"


def test_a_campaign_of_a_folder_goes_on_over_other_commits(monkeypatch, tmp_path):
    def git(*words):
        identity = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)

    def write(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", text)

    git("init", "-q")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "file_of", lambda name: tmp_path / f"{name}.jsonl")
    write("native/engine", "an engine")
    cases = Cases()
    cases.folder = "native"
    begun = campaign.version_of("simulation", cases)
    campaign.append(campaign.run_piece("simulation", cases, 0))
    write("docs/page", "a page")
    records = campaign.records_of("simulation")
    assert campaign.version_of("simulation", cases) == begun
    assert campaign.next_seed(records, begun) == 10
    cases.without = ("native/found",)
    write("native/found", "a schedule that is found")
    assert campaign.version_of("simulation", cases) == begun
    write("native/engine", "another engine")
    changed = campaign.version_of("simulation", cases)
    assert campaign.next_seed(records, changed) == 0
    (tmp_path / "native/engine").write_text("a change that is not committed")
    assert campaign.version_of("simulation", cases) == f"{changed}-dirty"


def test_the_cases_of_one_hash_cover_each_training_size_and_pair_of_values():
    with modules_of("one-hash", "drawn", "cases") as one_hash:
        drawn = one_hash.drawn
        cases = [drawn.case(seed) for seed in range(drawn.TOTAL - 1)]
        assert len(set(cases)) == len(cases)
        assert {each.training for each in cases} == set(one_hash.cases.FULL.trainings)
        assert {each.size for each in cases[: len(drawn.EVERY)]} == {1, 2, 3, 4, 5, 8}
        paired = cases[len(drawn.EVERY) :]
        assert {(each.rails, each.group_bytes) for each in paired} == {
            (rails, most)
            for rails in ("tcp", "udp", "shm", drawn.NODE)
            for most in ("0B", "64KiB", "1MiB")
        }
        assert len([parse(fault) for fault in drawn.faults()]) == 20

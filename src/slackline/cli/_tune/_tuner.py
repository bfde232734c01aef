"""A search of `slackline tune` whose trials are real jobs."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from slackline.cli._job._kept_job import job_of
from slackline.cli._tune._candidates import DEFAULTS, Candidate, candidates
from slackline.cli._tune._facts import facts_of
from slackline.cli._tune._ranking import ranked
from slackline.cli._tune._search import PAIRS, Attempt, Search, Verdict, most_candidates
from slackline.cli._tune._steps import WARM_UP
from slackline.cli._tune._trial import Script, Trial, run_trial
from slackline.errors import UsageError
from slackline.predict import write_job
from slackline.units import count, show_time
from slackline.views.terminal import Screen

__all__ = ["ScriptFailedError", "Tuner"]

_SLOWEST = 3
"""A candidate's trial is ended after this multiple of the first trial's duration, and 10 s."""


class ScriptFailedError(Exception):
    """The failure of the script in the first trial; the reason is on the screen."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Tuner:
    """A search whose trials are real jobs, with the outcomes of the trials so far."""

    def __init__(
        self,
        script: Script,
        folder: Path,
        *,
        steps: int,
        screen: Screen,
        received: Sequence[int],
    ) -> None:
        self.base = DEFAULTS
        """The settings of every trial after the first, of the defaults too."""
        self.first: Trial | None = None
        self.attempts: list[Attempt] = []
        self._script = script
        self._folder = folder
        self._steps = steps
        self._screen = screen
        self._received = received
        self._number = 0
        self._trial_s = 0.0

    def run(self, most: int, deadline_s: float, budget: str) -> Verdict:
        """Run the first trial, choose at most `most` candidates, and search.

        `deadline_s` is a time of the monotonic clock, and `budget` its text for errors.
        """
        first = self._first(deadline_s - time.monotonic(), budget)
        facts = facts_of(first.steps)
        if group_bytes := facts.value("group_bytes") if first.steps.tried() else "":
            self.base = Candidate(settings={"group_bytes": group_bytes})
        found = candidates(facts)
        if not found:
            return Verdict.of_defaults("no setting that the script uses is open")
        script, first_directory = self._script, self._directory(0)
        write_job(
            first_directory,
            job_of(script.program, script.lab, script.ranks, script.faults, {}),
        )
        found = ranked(found, first_directory, self._screen.note)
        left_s = deadline_s - time.monotonic()
        taken = most_candidates(min(most, len(found)), left_s, self._trial_s)
        if not taken:
            needed_s = 2 * PAIRS * self._trial_s
            raise UsageError(
                f"--budget {budget} leaves {show_time(1e9 * max(left_s, 0))} after the first "
                f"trial, and a "
                f"search needs {show_time(1e9 * needed_s)}: {2 * PAIRS} trials of "
                f"{show_time(1e9 * self._trial_s)}"
            )
        self._screen.note(
            f"{count(len(found), 'candidate')}; to be tried: {'; '.join(map(str, found[:taken]))}"
        )

        def time_for(trials: int) -> bool:
            return time.monotonic() + trials * self._trial_s <= deadline_s

        search = Search(self._attempt, time_for=time_for, say=self._screen.note)
        self.attempts = search.attempts
        return search.run(found[:taken])

    def _first(self, limit_s: float, budget: str) -> Trial:
        """Run the first trial, with the defaults; raise an error for a script without a result."""
        first = self._trial(DEFAULTS, limit_s, first=True)
        self.first = first
        program, total = self._script.program, WARM_UP + self._steps
        if first.exit_code:
            raise ScriptFailedError(first.exit_code)
        if problems := first.steps.problems():
            raise UsageError(f"the first trial of {program} has no whole telemetry: {problems[0]}")
        if first.measure is None:
            why = (
                "the operations of rank 0 do not repeat often enough to show a training step"
                if any(rank.operations for rank in first.steps.ranks)
                else 'no rank has posted an operation in a group of the backend "slackline"'
            )
            if first.exit_code is None:
                why += f"; {show_time(1e9 * first.wall_s)} have passed: raise --budget {budget}"
            raise UsageError(f"the steps of {program} cannot be measured: {why}")
        if first.exit_code == 0:
            raise UsageError(
                f"{program} ended after {count(first.count, 'step')}, and a trial needs {total}: "
                f"let the "
                f"script run longer, or lower --steps {self._steps}"
            )
        if first.step_ns is None:
            raise UsageError(
                f"{program} took {count(first.count, 'step')} in {show_time(1e9 * first.wall_s)}, "
                f"and a trial needs "
                f"{total}: raise --budget {budget}, or lower --steps {self._steps}"
            )
        # The first trial is longer if it waited for the end of the library's own trial.
        self._trial_s = first.wall_s - (first.count - total) * first.step_ns / 1e9
        self._screen.note(f"the first trial: {show_time(first.step_ns)} a step, by {first.measure}")
        return first

    def _attempt(self, stage: str, candidate: Candidate) -> Attempt:
        limit_s = _SLOWEST * self._trial_s + 10
        asked = Candidate(settings={**self.base.settings, **candidate.settings})
        trial = self._trial(asked, limit_s, first=False)
        return Attempt(stage=stage, candidate=candidate, step_ns=trial.step_ns, reason=trial.reason)

    def _trial(self, candidate: Candidate, limit_s: float, *, first: bool) -> Trial:
        directory = self._directory(self._number)
        self._number += 1
        trial = run_trial(
            self._script,
            candidate,
            directory=directory,
            steps=self._steps,
            limit_s=limit_s,
            screen=self._screen,
            received=self._received,
            measure=None if self.first is None else self.first.measure,
            first=first,
        )
        if not first:
            shutil.rmtree(directory)
        return trial

    def _directory(self, number: int) -> Path:
        """Return the directory with the files of a trial."""
        return self._folder / f"trial-{number}"

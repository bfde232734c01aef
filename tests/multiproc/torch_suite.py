"""Run torch's own suite of distributed operations over gloo and over slackline, and compare.

    python tests/multiproc/torch_suite.py [--match TEXT] [--runs gloo,slackline] [--log FILE]

The suite is torch.testing._internal.distributed.distributed_test, which torch installs; it needs
the package expecttest. The runs are gloo itself; slackline by its name, where torch skips the tests
that ask for gloo's name; and as-gloo, slackline under gloo's name (SLACKLINE_AS=gloo), which runs
these tests too. The output states the counts, and the tests that gloo passes and slackline does
not. The exit code is 1 if such a test is lost: it fails for a reason that OWN_NAMES does not know,
or torch skips it under gloo's name too.

Ranks are forked from a process that has imported torch, in place of torch's new interpreters.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

RANKS = 3
RUNS = {
    "gloo": {"BACKEND": "gloo"},
    "slackline": {"BACKEND": "slackline"},
    "as-gloo": {"BACKEND": "gloo", "SLACKLINE_AS": "gloo"},
}
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
OWN_NAMES = {
    "test_ddp_logging_data_cpu": "DDP logs the name of the backend that runs",
    "test_monitored_barrier_gloo": "the text of gloo's error",
    "test_monitored_barrier_gloo_rank_0_timeout": "the text of gloo's error",
    "test_monitored_barrier_gloo_subgroup": "the text of gloo's error",
}
"""The tests that only gloo can pass, each with the reason."""
SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare slackline with gloo by torch's own suite")
    parser.add_argument("--match", default="", help="run the tests whose names contain this text")
    parser.add_argument("--runs", default=",".join(RUNS), help="the runs, separated by commas")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="a file for the output")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here is not None:
        return be_a_run(given.match, Path(given.here))
    found = {}
    with given.log.open("w") as log:
        for name in given.runs.split(","):
            found[name] = run(name, given.match, log)
            counts = Counter(kind for kind, _ in found[name].values())
            print(f"{name}: " + ", ".join(f"{counts[k]} {k}" for k in (PASSED, FAILED, SKIPPED)))
    code = 0
    for name in [each for each in found if each != "gloo" and "gloo" in found]:
        for test, (kind, why) in found[name].items():
            if found["gloo"].get(test, ("", ""))[0] == PASSED and kind != PASSED:
                by_name = name == "slackline" and kind == SKIPPED
                lost = not by_name and test not in OWN_NAMES
                code |= lost
                known = "lost" if lost else "asks for gloo's name" if by_name else OWN_NAMES[test]
                print(f"{name} {kind} {test}: {known}: {why}")
    return code


def run(name: str, match: str, log) -> dict[str, tuple[str, str]]:
    """Run the suite in a new process; return the result of each test, and its reason."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        given = {
            **RUNS[name],
            "WORLD_SIZE": str(RANKS),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS),
        }
        command = [sys.executable, __file__, "--match", match, "--here", str(results)]
        subprocess.run(command, env=os.environ | given, stdout=log, stderr=log, check=True)
        return json.loads(results.read_text())


def be_a_run(match: str, results: Path) -> int:
    """Run the suite with the backend that the environment names, and write the results."""
    import unittest

    import torch
    import torch.testing._internal.distributed.distributed_test as suite

    import slackline.backend

    if "SLACKLINE_AS" in os.environ:
        slackline.register()
        # These tests look for names of operations in profiles that begin with "gloo".
        suite.PROFILING_SUPPORTED_BACKENDS.clear()
        suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()

    wait = suite.Barrier.sync.__func__

    def sync(
        cls, wait_for=None, timeout=0
    ) -> None:  # torch's own limit, 10 s, is for idle machines
        wait(cls, wait_for, max(timeout, SECONDS))

    suite.Barrier.sync = classmethod(sync)

    class Forked(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    found = {}

    def note(test: unittest.TestCase, kind: str, why: str) -> None:
        found[test._testMethodName] = kind, why
        sys.stderr.write(f"=== {kind} {test._testMethodName} {why}\n")
        results.write_text(json.dumps(found))

    class Results(unittest.TestResult):
        def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
            if test._testMethodName not in found:
                note(test, PASSED, "")

        def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
            note(test, SKIPPED, reason)

        def addFailure(self, test: unittest.TestCase, error) -> None:  # noqa: N802
            text = self._exc_info_to_string(error, test)
            sys.stderr.write(text)
            note(test, FAILED, reason_in(text))

        addError = addFailure  # noqa: N815

    names = [each for each in unittest.TestLoader().getTestCaseNames(Forked) if match in each]
    for name in names:
        Forked(name).run(Results())
    return 0


def reason_in(text: str) -> str:
    """Return the message of the last error in a test's tracebacks."""
    error = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
    errors = [line for line in text.splitlines() if error.match(line)]
    return errors[-1] if errors else text.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())

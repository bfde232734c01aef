"""The fixture `job` for tests with real ranks: `job(size, function)` runs a function of the test's
file as processes.

Tests and ranks can import the modules beside this file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slackline.errors import UsageError
from slackline.lab import require

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

ZYGOTE = Path(__file__).with_name("torch_zygote.py")


class Jobs:
    """A runner of jobs. If a rank raises an exception, the test fails with its traceback."""

    def __init__(self) -> None:
        self._zygote: subprocess.Popen[str] | None = None
        self._left: list[subprocess.Popen[str]] = []
        """Processes whose answer no test waited for; they end with their job."""

    def __call__(
        self,
        size: int,
        function: Callable[..., Any],
        *,
        bare: bool = False,
        environment: Mapping[str, str] | None = None,
        seconds: float = 110,
        dying: tuple[int, ...] = (),
    ) -> list[Any]:
        """Run `function(rank, size)` on each rank, between init and destroy of the process group,
        and return the results.

        With `bare`, call `function(rank, size, path of an empty file store)` instead, without init
        and destroy. The ranks in `dying` may end in any way.
        """
        job = {
            "file": function.__code__.co_filename,
            "function": function.__name__,
            "size": size,
            "bare": bare,
            "environment": dict(environment or {}),
            "seconds": seconds,
        }
        answers = self._ask(job)
        troubles = [
            f"rank {answer['rank']}: {trouble}"
            for answer in answers
            if answer["rank"] not in dying and (trouble := _trouble(answer))
        ]
        if troubles:
            pytest.fail("\n".join(troubles), pytrace=False)
        return [answer.get("result") for answer in answers]

    def _ask(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self._zygote is None:
            self._zygote = subprocess.Popen(
                [sys.executable, ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        try:
            print(json.dumps(job), file=self._zygote.stdin, flush=True)
            answers: list[dict[str, Any]] = json.loads(self._zygote.stdout.readline())
        except BaseException:  # after a timeout, a late answer must not reach the next test
            self._zygote.stdin.close()
            self._left.append(self._zygote)
            self._zygote = None
            raise
        return answers

    def close(self) -> None:
        if self._zygote is not None:
            assert self._zygote.stdin is not None
            self._zygote.stdin.close()
            self._left.append(self._zygote)
        for zygote in self._left:
            with zygote:
                zygote.wait()


def _trouble(answer: Mapping[str, Any]) -> str | None:
    if "error" in answer:
        return str(answer["error"])
    if answer["exit"] is None:
        return "did not end"
    return f"ended with {answer['exit']}" if answer["exit"] else None


@pytest.fixture(scope="session")
def job() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.close()


@pytest.fixture
def store() -> Any:
    """Provide a store for ranks that run an example. The store outlives the ranks, like
    torchrun's."""
    from torch import distributed

    return distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="session")
def lab_allowed() -> None:
    """Skip the test, with the reason, where labs are impossible. A lab needs Linux, root, iproute2
    and permission to create namespaces and TAP devices."""
    try:
        require()
    except UsageError as error:
        pytest.skip(str(error))
    probe = ["ip", "netns", "exec", f"slackline-probe-{os.getpid()}", "test", "-c", "/dev/net/tun"]
    try:
        for verb in ("add", "delete"):
            subprocess.run([*probe[:2], verb, probe[3]], check=True, capture_output=True, text=True)
        subprocess.run(probe[4:], check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine does not allow labs: {error}, {error.stderr}")

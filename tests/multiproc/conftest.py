"""Jobs of real ranks: `job(size, function)` runs a function of the test's file as processes.

Modules beside this file can be imported by tests and by ranks.
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
    """Runs jobs; ranks that raise make the test fail with their tracebacks."""

    def __init__(self) -> None:
        self._zygote: subprocess.Popen[str] | None = None
        self._left: list[subprocess.Popen[str]] = []
        """Whose answer nobody waited for: they end with their job."""

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
        """Returns what the ranks returned: `function(rank, size)` between init and destroy.

        With `bare` it is `function(rank, size, path of an empty file store)` and does both itself.
        The ranks in `dying` may end as they like.
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
        except BaseException:  # the test's time was over: the answer must not be the next test's
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
    """A store for ranks that run an example; it outlives them, as torchrun's does."""
    from torch import distributed

    return distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="session")
def lab_allowed() -> None:
    """Labs need Linux, root, iproute2 and a machine that lets them make namespaces and TAP devices;
    without them the test is skipped with the reason."""
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

"""Jobs of real ranks: `job(size, function)` runs a function of the test's file as processes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ZYGOTE = Path(__file__).with_name("torch_zygote.py")


class Jobs:
    """Runs jobs; ranks that raise make the test fail with their tracebacks."""

    def __init__(self) -> None:
        self._zygote: subprocess.Popen[str] | None = None

    def __call__(
        self,
        size: int,
        function: Callable[..., Any],
        *,
        bare: bool = False,
        environment: Mapping[str, str] | None = None,
        seconds: float = 50,
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
        print(json.dumps(job), file=self._zygote.stdin, flush=True)
        answers: list[dict[str, Any]] = json.loads(self._zygote.stdout.readline())
        return answers

    def close(self) -> None:
        if self._zygote is not None:
            with self._zygote:
                assert self._zygote.stdin is not None
                self._zygote.stdin.close()


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

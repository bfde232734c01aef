"""The key of a job that runs on one machine, which the command makes itself."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackline.env import Environment

__all__ = ["job_key"]

_KEY_BYTES = 32


@contextmanager
def job_key(chosen: Environment, *, alone: bool) -> Iterator[dict[str, str]]:
    """Make a key for the job's ranks while the `with` statement runs; return their setting.

    The key is a file in a directory that only this user can read; the job's store never has it, so
    a program that reads the store cannot join the job. No key is made if the settings `chosen` name
    one, if the job has an aggregator, which needs the same key, or unless the job is `alone`: other
    machines could not read the file.
    """
    if not alone or chosen.key is not None or chosen.aggregator is not None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="slackline-key-") as directory:
        path = Path(directory) / "key"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        yield {"SLACKLINE_KEY": str(path)}

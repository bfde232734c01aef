"""Uncaught exceptions and signals of the process, for the reports of its ranks.

A process has one `sys.excepthook` and one handler for each signal, and its engines share no other
object, so the process has one table of its reporters. The hooks call the hooks that were installed
before. They stay until the process ends, because a script may fail after the end of its engine.
"""

import atexit
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from slackline.records.failures._dump import dump_header
from slackline.records.failures._files import dump_file_of
from slackline.records.failures._reporter import DEFAULT_HANG, Reporter
from slackline.records.failures._stacks import errors_of

__all__ = ["reporter_of"]

_log = logging.getLogger("slackline.records.failures")

_reporters: dict[tuple[int, Path, int], Reporter] = {}
_lock = threading.Lock()
_hooked = threading.Event()
"""Set once the hooks are installed; a forked child inherits them."""


def reporter_of(directory: Path, rank: int, hang: timedelta = DEFAULT_HANG) -> Reporter:
    """Return the process's reporter of `rank` in `directory`.

    The first call for a rank starts the reporter, and the first call in the process installs the
    hooks for uncaught exceptions, for fatal signals and for SIGTERM.
    """
    key = os.getpid(), directory.absolute(), rank
    with _lock:
        reporter = _reporters.get(key)
        if reporter is None:
            reporter = _reporters[key] = Reporter(directory, rank, hang=hang)
            if not _hooked.is_set():
                _hooked.set()
                _hook_exceptions()
                _hook_signals(reporter)
        return reporter


def _tell(error: BaseException, *, ends: bool) -> None:
    here = [each for key, each in _reporters.items() if key[0] == os.getpid()]
    if not here:
        return
    try:
        errors = errors_of(error)
        for reporter in here:
            reporter.exception(errors, ends=ends)
    except Exception:
        # An exception of the script may have attributes that raise errors of any type. None of them
        # may leave the hook, since the script's own exception must still reach the former hook.
        _log.warning("the report of an exception failed", exc_info=True)


def _hook_exceptions() -> None:
    former = sys.excepthook
    former_of_threads = threading.excepthook

    def script(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _tell(error, ends=True)
        former(kind, error, trace)

    def thread(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
            _tell(arguments.exc_value, ends=False)
        former_of_threads(arguments)

    sys.excepthook = script
    threading.excepthook = thread


def _hook_signals(reporter: Reporter) -> None:
    """Have faulthandler write all stacks at SIGTERM and, if it is not in use yet, at fatal signals.

    The handler runs also while the main thread is blocked in the engine. At SIGTERM it calls the
    handler that was installed before, which by default ends the process.
    """
    process = os.getpid()
    path = dump_file_of(reporter.directory, reporter.rank)
    main = threading.main_thread().ident or 0
    header = dump_header(reporter.rank, process, main, time.time_ns())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
        file.write(header)
        file.flush()
    except OSError as error:
        _log.warning("%s: stacks at signals are not written: %s", path, error)
        return
    enabled = not faulthandler.is_enabled()
    if enabled:
        faulthandler.enable(file=file)
    faulthandler.register(signal.SIGTERM, file=file, chain=True)

    def leave() -> None:
        """Restore the handlers: at the end, and in a forked child, which is not the rank."""
        faulthandler.unregister(signal.SIGTERM)
        if enabled:
            faulthandler.disable()

    def end() -> None:
        """Remove the file of a process that ends without a signal."""
        if os.getpid() != process:
            return
        leave()
        try:
            if os.fstat(file.fileno()).st_size == len(header):
                path.unlink(missing_ok=True)
            file.close()
        except OSError as error:
            _log.warning("%s: the file of stacks stays: %s", path, error)

    os.register_at_fork(after_in_child=leave)
    atexit.register(end)

"""The copies of results from host memory to the device, launched before or after the data arrive.

launched after the transfer's end       copy ─ event
launched before it (`order`)            gate ─ copy ─ event      the transfer's end opens the gate
"""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch

from slackline.backend.staging._device import Copies, Device, Event, Gate
from slackline.backend.staging._transfers import Callback
from slackline.nic import Transfer

__all__ = ["Landing", "StagedTransfer"]


class Landing:
    """The copy of one transfer's results to the device."""

    def __init__(
        self,
        device: Device,
        copies: Copies,
        copy: Callable[[], object],
        targets: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor] = (),
        after: "Sequence[Landing]" = (),
        transfer: Transfer | None = None,
    ) -> None:
        """Prepare `copy()`, which writes the device's tensors `targets`, without launching it.

        `results` are the copied tensors in host memory. The copy runs after the copies of `after`,
        which wait for the network in its place. `transfer` brings the results, if anything does.
        """
        self._device = device
        self._copies = copies
        self._copy = copy
        self._targets = targets
        self._results = results
        self._after = after
        self._transfer = transfer
        self._state = threading.Lock()
        self._launching = threading.Lock()
        self._ended = False
        self._failed = False
        self._gate: Gate | None = None
        self._event: Event | None = None
        self._error: BaseException | None = None

    @property
    def event(self) -> Event | None:
        """The event of the end of the copy; None before the launch or without a launch."""
        return self._event

    def ended(self, error: BaseException | None) -> bool:
        """Record the end of the transfer: open the gate, if the copy is launched already.

        Returns whether the copy is still to be launched. After an error the results are not
        copied. If the copy waits behind a gate, the gate must open nevertheless, and floating-point
        results become NaN.
        """
        with self._state:
            if self._ended:
                return self._event is None and not self._failed
            self._ended, self._failed = True, error is not None
            gate = self._gate
        if gate is None:
            return error is None and self._event is None
        try:
            if error is not None:
                _fill_with_nan(self._results)
        finally:
            gate.open()
        return False

    def launch(self) -> None:
        """Launch the copy, behind a gate while its transfer runs; a second call does nothing.

        The engine opens the gate, so that the device goes on while threads of Python wait for each
        other. After a failure `ended` opens it.
        """
        with self._launching:
            with self._state:
                if self._event is not None or self._failed:
                    return
                if self._error is not None:
                    raise self._error
                if not (self._ended or self._after):
                    self._gate = self._device.gate()
            after = []
            for landing in self._after:
                landing.launch()
                if landing.event is not None:
                    after.append(landing.event)
            try:
                self._event = self._copies.to_device(
                    self._copy, self._targets, gate=self._gate, after=after
                )
            except Exception as error:
                self._error = error
                # A gate in a stream must open even if the launch of the copy behind it failed.
                if self._gate is not None:
                    self._gate.open()
                raise
            if self._gate is not None and self._transfer is not None:
                self._transfer.open_at_end(*self._gate.place)


class StagedTransfer:
    """A Transfer whose results are copied to a device; done when the copies are launched."""

    def __init__(
        self,
        device: Device,
        transfer: Transfer,
        landings: Sequence[Landing],
        failed_late: Callable[["StagedTransfer"], None],
        kept: object = None,
    ) -> None:
        """Follow `transfer`, and launch the copies `landings` at its end or in `order`.

        `landings` may grow until the transfer's end, or, if the device counts the operation, until
        the copies to the host are launched. `failed_late(self)` is called if the transfer fails
        after `order`. `kept` stays alive until the transfer's end.
        """
        self.device = device
        self._transfer = transfer
        self._landings = landings
        self._failed_late = failed_late
        self._kept = kept
        self._lock = threading.Lock()
        self._ordered = False
        self._ended = False
        self._done = False
        self._callbacks: list[Callback] = []
        self.error: BaseException | None = None
        """The operation's error; None while the operation runs and after success."""
        self.told = False
        """True once `wait` or `order` has raised the error."""
        transfer.add_done_callback(self._end)

    @property
    def source(self) -> int | None:
        return self._transfer.source

    def done(self) -> bool:
        return self._done

    def arrived(self) -> bool:
        """Return whether the operation has ended and its results are in the device's memory."""
        return self._done and all(event.done() for event in self.events())

    def events(self) -> list[Event]:
        """Return the events of the ends of the copies that have been launched."""
        return [landing.event for landing in self._landings if landing.event is not None]

    def wait(self, timeout: timedelta | None = None) -> None:
        self._await(timeout)
        if self.error is not None:
            self.told = True
            raise self.error

    def settle(self) -> None:
        """Block until the operation has ended, with or without an error."""
        self._await(None)

    def order(self) -> None:
        """Make the caller's current stream wait for the results; the host does not wait for them.

        The host waits until this operation and earlier ones are posted (`Departures`). Raises
        the operation's error if the operation has failed already. If the operation fails later,
        `failed_late` is called.
        """
        self.device.departures.wait_unless(self._transfer.done)
        with self._lock:
            self._ordered = True
        if self._transfer.done():
            self.wait()
        for landing in list(self._landings):
            landing.launch()
            if landing.event is not None:
                self.device.follow(landing.event)

    def add_done_callback(self, fn: Callback, /) -> None:
        with self._lock:
            if not self._done:
                self._callbacks.append(fn)
                return
        fn(self.error)

    def open_at_end(self, word: int, value: int) -> None:
        """Do nothing: the engine does not know when the copies to the device end."""

    def _await(self, timeout: timedelta | None) -> None:
        try:
            self._transfer.wait(timeout)
        except Exception as error:
            if not self._transfer.done():
                raise  # This wait has reached its time limit, and the operation continues.
            self._end(error)
        else:
            self._end(None)
        self._finish()

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self.error = error
            late = error is not None and self._ordered
        left = [landing for landing in self._landings if landing.ended(error)]
        self.device.departures.notify()
        if late:
            self._failed_late(self)
        if left or self._callbacks:
            self.device.run_later(self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        """Launch the remaining copies, and call the callbacks; a second call does nothing."""
        try:
            for landing in self._landings:
                landing.launch()
        except Exception as error:  # any error must reach the threads that wait
            self.error = self.error or error
        with self._lock:
            self._done = True
            self._kept = None
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self.error)


def _fill_with_nan(results: Sequence[torch.Tensor]) -> None:
    """Fill the tensors whose type has a NaN; inference tensors too, on any thread."""
    with torch.inference_mode():
        for result in results:
            has_nan = result.is_floating_point() and result.dtype != torch.float4_e2m1fn_x2
            if has_nan or result.is_complex():
                result.fill_(torch.nan)

"""Tests, without a driver, of gates: words of host memory for which a stream waits until the host
writes them."""

import ctypes

import pytest
import torch

from slackline.backend.staging._stream_memory import GateMemory
from slackline.errors import UsageError


def memory():
    return GateMemory(lambda size: torch.empty(size, dtype=torch.uint8), lambda address: address)


def stored(gate):
    return ctypes.c_uint32.from_address(gate.device_address).value


def test_a_gate_is_open_once_its_word_holds_its_value():
    gate = memory().gate()
    assert stored(gate) < gate.value
    gate.open()
    assert stored(gate) == gate.value


def test_gates_that_are_closed_at_the_same_time_have_words_of_their_own():
    gates = memory()
    made = [gates.gate() for _ in range(2500)]
    assert len({gate.device_address for gate in made}) == 2500
    made[7].open()
    assert [gate for gate in made if stored(gate) >= gate.value] == [made[7]]


def test_a_word_serves_a_later_gate_with_a_higher_value_and_an_old_gate_stays_open():
    gates = memory()
    first = gates.gate()
    first.open()
    second = gates.gate()
    assert (second.device_address, second.value) == (first.device_address, first.value + 1)
    assert first.value <= stored(second) < second.value
    second.open()
    first.open()
    assert stored(second) == second.value


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA driver is there")
def test_without_a_driver_the_error_names_the_function_that_is_missing():
    gates = GateMemory(lambda size: torch.empty(size, dtype=torch.uint8))
    with pytest.raises(UsageError, match=r"^tensors on CUDA devices need a driver with cuMemHost"):
        gates.gate()

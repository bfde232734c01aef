"""Tests of the records about devices that add for a rank."""

import pytest

from slackline.records import STALLS, DeviceReport


def test_a_report_sorts_counters_and_names_the_longest_stalls() -> None:
    counters = {"cycles": 200, "busy": 50, "no_credit": 20, "adder": 2, "no_peer_data": 100}
    report = DeviceReport.of(1, 7, "circuit", {**counters, "accepted": 3})
    assert report.stalls == {"adder": 2, "no_credit": 20, "no_peer_data": 100}
    assert report.counts == {"accepted": 3}
    assert report.sentence == "busy 25%, no_peer_data 50%, no_credit 10%"


def test_a_twin_has_no_cycles() -> None:
    assert DeviceReport.of(1, 7, "twin", {"accepted": 3}).sentence == ""


def test_every_stall_of_a_circuit_is_known() -> None:
    circuit = pytest.importorskip("slackline.circuit")
    tables = (
        circuit.ring_registers(circuit.RingOptions()),
        circuit.node_registers(circuit.NodeOptions()),
    )
    found = {
        each.name
        for table in tables
        for each in table
        if each.meaning.startswith("stalls") and each.name.count("port") == 0
    }
    assert found == set(STALLS)

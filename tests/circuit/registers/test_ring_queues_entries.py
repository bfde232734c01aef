"""Tests that the entries of a ring NIC's queues are the same in Python, in C and in the tables."""

import shutil
import subprocess
from pathlib import Path

import pytest

from slackline.circuit import COMPLETION, DESCRIPTOR, Code
from slackline.circuit.registers import c_entries, entry_tables

ENTRIES = (DESCRIPTOR, COMPLETION)
PROGRAM = """
#include <stdio.h>
#include "entries.h"
int main(void) {
  struct slackline_ring_descriptor posted = {
    .tag = 0x0102030405060708, .source = 0x1112131415161718, .target = 0x2122232425262728,
    .total = 0x3132333435363738, .frame_bytes = 0x41424344, .dtype = 0x51, .chunk = 0x6162,
    .start = 0x7172};
  struct slackline_ring_completion done = {
    .tag = 0x0102030405060708, .chunk = 0x6162, .code = SLACKLINE_RING_CODE_START,
    .head = 0x8182, .phase = 1};
  fwrite(&posted, sizeof posted, 1, stdout);
  fwrite(&done, sizeof done, 1, stdout);
  return 0;
}
"""


def test_a_driver_in_c_writes_the_bytes_that_the_circuit_reads(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler (Debian: apt install gcc)")
    (tmp_path / "entries.h").write_text(c_entries(ENTRIES, "ring"))
    (tmp_path / "driver.c").write_text(PROGRAM)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    program = tmp_path / "driver"
    subprocess.run([compiler, *strict, tmp_path / "driver.c", "-o", program], check=True)
    written = subprocess.run([program], capture_output=True, check=True).stdout
    descriptor = {
        "tag": 0x0102030405060708,
        "source": 0x1112131415161718,
        "target": 0x2122232425262728,
        "total": 0x3132333435363738,
        "frame_bytes": 0x41424344,
        "dtype": 0x51,
        "chunk": 0x6162,
        "start": 0x7172,
    }
    completion = {"tag": descriptor["tag"], "chunk": 0x6162, "code": Code.START, "head": 0x8182}
    assert written[:64] == DESCRIPTOR.pack(descriptor)
    assert written[64:] == COMPLETION.pack(completion | {"phase": 1})
    assert DESCRIPTOR.unpack(written[:64]) == descriptor
    assert COMPLETION.unpack(written[64:]) == completion | {"phase": 1}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_fields_and_gaps_fill_an_entry_once(entry) -> None:
    filled = [range(each.offset, each.offset + each.width) for each in entry.fields]
    filled += [range(at, at + size) for at, size in entry.gaps()]
    assert sorted(byte for part in filled for byte in part) == list(range(entry.size))
    assert all(each.offset % each.width == 0 for each in entry.fields)


def test_the_tables_name_every_field_and_code() -> None:
    text = entry_tables(ENTRIES)
    assert "| 38 | 2 | chunk | number of the chunk; tag and chunk identify an operation |" in text
    assert "| 4 | refused: `start` is no rank |" in text
    assert text.count("\n| ") == len(DESCRIPTOR.fields) + len(COMPLETION.fields) + len(Code) + 2

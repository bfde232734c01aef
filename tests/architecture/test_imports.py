"""What an import may bring along, seen from a fresh interpreter."""

import subprocess
import sys

import pytest

from slackline.errors import UsageError

TORCH_FREE = ("slackline", "slackline.wire", "slackline.plan", "slackline.nic", "slackline.cli")


def run(code: str) -> str:
    """What the code prints in a new interpreter; its errors are this test's."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=50).stdout


@pytest.mark.parametrize("room", TORCH_FREE)
def test_a_room_that_must_not_know_torch_does_not_import_it(room: str) -> None:
    assert run(f"import sys, {room}; print('torch' in sys.modules)") == "False\n"


def test_planning_on_the_command_line_does_not_import_torch() -> None:
    code = """
import contextlib, io, sys
from slackline import cli
with contextlib.redirect_stdout(io.StringIO()):
    code = cli.main(["plan", "collective", "--plan", "ring", "--ranks", "4"])
print(code, "torch" in sys.modules)
"""
    assert run(code) == "0 False\n"


@pytest.mark.parametrize("first", ["slackline", "torch"])
def test_torch_knows_the_backend_whichever_is_imported_first(first: str) -> None:
    second = {"slackline": "torch", "torch": "slackline"}[first]
    code = f"""
import {first}, {second}
from torch import distributed
print("slackline" in distributed.Backend.backend_list)
"""
    assert run(code) == "True\n"


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import slackline

    with pytest.raises(AttributeError, match=r"^module 'slackline' has no attribute 'nothing'$"):
        _ = slackline.nothing


def test_the_package_offers_the_error_tree() -> None:
    import slackline

    assert slackline.errors.UsageError is UsageError

import builtins
import inspect
import pickle
from pathlib import Path

import pytest

from slackline import errors
from slackline.cli import main
from slackline.errors import SlacklineError

PAGE = Path(__file__).parents[2] / "docs/errors.md"
KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_tells_where_it_happened(kind: type[SlacklineError]) -> None:
    error = kind("rank 1 closed the link", rank=0, peer=1, tag=2, sequence=3)
    assert str(error) == "rank 1 closed the link"
    assert (error.rank, error.peer, error.tag, error.sequence) == (0, 1, 2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_known_is_none(kind: type[SlacklineError]) -> None:
    error = kind("something broke")
    assert (error.rank, error.peer, error.tag, error.sequence) == (None, None, None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_a_process_border_whole(kind: type[SlacklineError]) -> None:
    error = pickle.loads(pickle.dumps(kind("late", rank=4, peer=5)))
    assert type(error) is kind
    assert (str(error), error.rank, error.peer) == ("late", 4, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_what_is_dead_and_what_lives(kind: type[SlacklineError]) -> None:
    text = kind.__doc__ or ""
    assert "Dead afterwards:" in text
    assert "May be used again:" in text or kind is SlacklineError
    assert "Remedy:" in text


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_explained_by_the_command_and_has_a_row_on_the_page(
    kind: type[SlacklineError], capsys: pytest.CaptureFixture[str]
) -> None:
    name = kind.__name__
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == f"{name}: {inspect.getdoc(kind)}\n"
    assert f"| `{name}` |" in PAGE.read_text() or kind is SlacklineError


def test_the_command_lists_all_errors_and_refuses_other_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == errors.__all__
    assert main(["help", "KeyError"]) == 2
    assert capsys.readouterr().err == (
        f"slackline: there is no error 'KeyError'; there are {', '.join(errors.__all__)}; "
        "for a command, give the command --help\n"
    )


def test_an_error_is_caught_by_the_names_that_callers_know() -> None:
    assert issubclass(errors.TimeoutError, builtins.TimeoutError)
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.MismatchError, errors.UsageError)
    assert issubclass(errors.FrameError, errors.LinkError)
    assert all(issubclass(kind, RuntimeError) for kind in KINDS)

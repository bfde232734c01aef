"""Tests of the borders between packages: private modules stay private."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
NAME = re.compile(r"slackline(\.\w+)+")


def modules(source: Path = SOURCE) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each module of slackline."""
    for path in sorted((source / "slackline").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def imported(path: Path) -> Iterator[str]:
    """Yield the full names that a module imports, and the modules that it runs by "-m"."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and NAME.fullmatch(str(node.value)):
            yield str(node.value)


def owner(name: str) -> str | None:
    """Return the package that contains the first private part of a name; None without one."""
    parts = name.split(".")
    private = [k for k, part in enumerate(parts) if part.startswith("_") and part != "_native"]
    return ".".join(parts[: private[0]]) if private and parts[0] == "slackline" else None


def intrusions(source: Path = SOURCE) -> list[tuple[str, str]]:
    """Return each import of a private name from outside its package: the module, and the name."""
    return [
        (module, name)
        for module, path in modules(source)
        for name in imported(path)
        if (home := owner(name)) is not None and not f"{module}.".startswith(f"{home}.")
    ]


def test_no_module_imports_a_private_module_of_another_package() -> None:
    assert intrusions() == []


def test_an_import_of_a_private_module_from_outside_is_found(tmp_path: Path) -> None:
    for name in ("ring", "ring/queue", "node"):
        (tmp_path / "slackline" / name).mkdir(parents=True)
        (tmp_path / "slackline" / name / "__init__.py").touch()
    user = "from slackline.ring._nic import RingNic\nfrom slackline.ring import queue\n"
    for name in ("ring/_queued", "ring/queue/_queues", "node/_node"):
        (tmp_path / "slackline" / f"{name}.py").write_text(user)
    assert intrusions(tmp_path) == [("slackline.node._node", "slackline.ring._nic.RingNic")]


def test_a_private_module_that_another_package_runs_is_found(tmp_path: Path) -> None:
    for name in ("plan", "pipeline"):
        (tmp_path / "slackline" / name).mkdir(parents=True)
        (tmp_path / "slackline" / name / "__init__.py").touch()
    user = (
        'COMMAND = ("python", "-m", "slackline.plan._search", "slackline.plan", "slackline._x y")'
    )
    for name in ("plan/_table", "pipeline/_search"):
        (tmp_path / "slackline" / f"{name}.py").write_text(user)
    assert intrusions(tmp_path) == [("slackline.pipeline._search", "slackline.plan._search")]

"""The folder of published tables and of their experiments: the packaged one, or a changed copy."""

from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from slackline.errors import UsageError
from slackline.reproduce._published import PublishedTable, read_table

__all__ = ["Folder"]

_PARTS = ("tables", "experiments")
_ENDINGS = (".toml", ".trace")


def _packaged() -> Traversable:
    return resources.files("slackline.reproduce")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with tables and experiments; the packaged one by default.

    Tables are `tables/*.toml`, experiments are `experiments/*.toml` and the traces that they name.
    """

    root: Traversable = field(default_factory=_packaged)

    def names(self) -> tuple[str, ...]:
        """Return the names of all tables, in alphabetical order."""
        names = self._files("tables")
        return tuple(name.removesuffix(".toml") for name in names if name.endswith(".toml"))

    def tables(self, only: tuple[str, ...] = ()) -> tuple[PublishedTable, ...]:
        """Return the tables of these names, or all of them.

        Raises UsageError for a name without a table, and as `read_table` does.
        """
        names = self.names()
        for name in only:
            if name not in names:
                raise UsageError(f'there is no table "{name}"; tables are {", ".join(names)}')
        chosen = [name for name in names if name in only] if only else names
        return tuple(
            read_table(self._text("tables", f"{name}.toml"), f"{name}.toml") for name in chosen
        )

    def experiment(self, table: PublishedTable) -> str:
        """Return the text of a table's experiment; raise UsageError if the file is missing."""
        if table.experiment not in self._files("experiments"):
            raise UsageError(
                f"{table.name}.toml: experiment: there is no file experiments/{table.experiment}"
            )
        return self._text("experiments", table.experiment)

    @property
    def experiments(self) -> Traversable:
        """The folder of the experiments, and of the traces that they name."""
        return self.root / "experiments"

    def save(self, target: Path) -> int:
        """Copy all files into a directory that is new or empty, and return their number.

        Raises UsageError for a directory that has files, or that cannot be written.
        """
        files = [(part, name) for part in _PARTS for name in self._files(part)]
        try:
            target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise UsageError(f"{target} must be an empty directory")
            for part in _PARTS:
                (target / part).mkdir()
            for part, name in files:
                (target / part / name).write_text(self._text(part, name))
        except OSError as error:
            raise UsageError(f"cannot write to {target}: {error.strerror}") from None
        return len(files)

    def _files(self, part: str) -> tuple[str, ...]:
        folder = self.root / part
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}")
        return tuple(sorted(each.name for each in folder.iterdir() if each.name.endswith(_ENDINGS)))

    def _text(self, part: str, name: str) -> str:
        try:
            return (self.root / part / name).read_text()
        except OSError as error:
            raise UsageError(f"cannot read {part}/{name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"cannot read {part}/{name}: it is not UTF-8") from None

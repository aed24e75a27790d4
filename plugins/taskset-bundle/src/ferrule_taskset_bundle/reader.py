"""Reading TOML tables key by key, noting every mistake instead of stopping at the first."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ferrule import FerruleError

_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table", list: "a list"}


class BundleError(FerruleError):
    """A bundle with mistakes; ``mistakes`` holds all of them, each with its file and key."""

    def __init__(self, folder: Path, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        n = len(self.mistakes)
        head = f"{n} mistake{'s' if n > 1 else ''} in the bundle {folder}"
        super().__init__(f"{head}:\n" + "\n".join(f"  {mistake}" for mistake in self.mistakes))


class Notes:
    """The mistakes found so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mistakes: list[str] = []

    def add(self, file: str, key: str, text: str) -> None:
        self.mistakes.append(f"{file}: {key}: {text}" if key else f"{file}: {text}")

    def stop(self) -> None:
        """Raise BundleError where there are mistakes."""
        if self.mistakes:
            raise BundleError(self.folder, self.mistakes)


class Reader:
    """One TOML table: ``take`` its keys one by one, then ``done`` names those that nobody knows."""

    def __init__(self, table: Mapping[str, Any], notes: Notes, file: str, key: str = "") -> None:
        self.table, self.notes, self.file, self.key = table, notes, file, key
        self.known: list[str] = []

    def place(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key

    def wrong(self, key: str, text: str) -> None:
        """Note a mistake at *key* of this table (the table itself where it is empty)."""
        self.notes.add(self.file, self.place(key) if key else self.key, text)

    def take(self, key: str, *kinds: type, default: Any = None) -> Any:
        """The value of *key* where it is of one of *kinds*; else *default*, noting the mistake."""
        self.known.append(key)
        if key not in self.table:
            return default
        value = self.table[key]
        for kind in kinds:
            if kind is float and type(value) is int:
                return float(value)
            if type(value) is kind:
                return value
        self.wrong(key, f"must be {' or '.join(_NAMES[kind] for kind in kinds)}, not {value!r}")
        return default

    def texts(self, key: str) -> tuple[str, ...] | None:
        """The value of *key* as a list of texts; None where it is absent."""
        value = self.take(key, list)
        if value is None:
            return None
        if not all(isinstance(item, str) for item in value):
            self.wrong(key, f"must be a list of texts, not {value!r}")
            return ()
        return tuple(value)

    def tables(self, key: str) -> list[Reader]:
        """A reader for each table of the list at *key*."""
        out = []
        for i, item in enumerate(self.take(key, list, default=[])):
            if isinstance(item, dict):
                out.append(Reader(item, self.notes, self.file, f"{self.place(key)}[{i}]"))
            else:
                self.wrong(f"{key}[{i}]", f"must be a table, not {item!r}")
        return out

    def table_at(self, key: str) -> Reader:
        """A reader for the table at *key*, an empty one where it is absent."""
        return Reader(self.take(key, dict, default={}), self.notes, self.file, self.place(key))

    def positive(self, key: str, default: float) -> float:
        value = float(self.take(key, float, default=default))
        if not 0 < value < float("inf"):
            self.wrong(key, f"must be above 0, not {value}")
            return default
        return value

    def done(self) -> None:
        for key in self.table:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(self.known))}"
                self.wrong(key, f"unknown key; {hint}")


def read_toml(path: Path, notes: Notes) -> dict[str, Any]:
    """The table in *path*; empty where it cannot be read, which is noted."""
    name = shown(path, notes.folder)
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        notes.add(name, "", f"cannot be read: {error.strerror or error}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        notes.add(name, "", f"is not valid TOML: {error}")
    return {}


def shown(path: Path, folder: Path) -> str:
    """*path* as messages name it: relative to the bundle's folder where it is inside."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)

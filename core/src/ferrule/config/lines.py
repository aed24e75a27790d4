"""Where each value of a TOML file stands: a scanner that knows just enough of the grammar to tell lines.

The text has been parsed already, so nothing is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str | int, ...]

_KEY = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.lines = text, 0, dict[Path, int]()

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def line(self, path: Path) -> None:
        n = self.text.count("\n", 0, self.at) + 1
        for stop in range(1, len(path) + 1):
            self.lines.setdefault(path[:stop], n)

    def blank(self) -> None:
        """Skip spaces, ends of lines and comments."""
        while self.at < len(self.text):
            if self.peek() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.peek() in " \t\r\n":
                self.at += 1
            else:
                return

    def key(self) -> Path:
        """A dotted key; leaves the scanner behind it."""
        parts: list[str | int] = []
        while match := _KEY.match(self.text, self.at):
            double, single, bare = match.groups()
            parts.append(bare if bare is not None else single if single is not None else double.replace('\\"', '"'))
            self.at = match.end()
            if self.peek() != ".":
                break
            self.at += 1
        return tuple(parts)

    def document(self) -> None:
        table: Path = ()
        counts: dict[Path, int] = {}
        while True:
            self.blank()
            if self.at >= len(self.text):
                return
            if self.peek() == "[":
                brackets = 2 if self.peek(2) == "[[" else 1
                start = self.at
                self.at += brackets
                keys = self.key()
                table = ()
                for part in keys[:-1]:
                    table += (part,)
                    if table in counts:
                        table += (counts[table],)
                table += keys[-1:]
                if brackets == 2:
                    counts[table] = counts.get(table, -1) + 1
                    table += (counts[table],)
                end, self.at = self.at + brackets, start
                self.line(table)
                self.at = end
            else:
                self.pair(table)

    def pair(self, table: Path) -> None:
        start = self.at
        path = table + self.key()
        end, self.at = self.at, start
        self.line(path)
        if end == start:  # not a key: only where the text is not TOML
            self.at += 1
            return
        self.at = end + 1  # the equals sign
        self.value(path)

    def value(self, path: Path) -> None:
        self.blank()
        self.line(path)
        first = self.peek()
        if self.peek(3) in ('"""', "'''"):
            self.string(self.peek(3))
        elif first in ('"', "'"):
            self.string(first)
        elif first == "[":
            self.at += 1
            index = 0
            while self.more("]"):
                self.value((*path, index))
                index += 1
        elif first == "{":
            self.at += 1
            while self.more("}"):
                self.pair(path)
        else:
            while self.at < len(self.text) and self.peek() not in ",]}#\n":
                self.at += 1

    def more(self, close: str) -> bool:
        """Whether another element comes before *close*; skips what is between, and *close* itself."""
        self.blank()
        while self.peek() == ",":
            self.at += 1
            self.blank()
        if self.at >= len(self.text) or self.peek() == close:
            self.at += 1
            return False
        return True

    def string(self, quote: str) -> None:
        self.at += len(quote)
        while self.at < len(self.text):
            if self.peek() == "\\" and quote[0] == '"':
                self.at += 2
            elif self.peek(len(quote)) == quote:
                self.at += len(quote)
                while len(quote) == 3 and self.peek() == quote[0]:  # quotes right before the closing ones
                    self.at += 1
                return
            else:
                self.at += 1


def scan(text: str) -> dict[Path, int]:
    """The 1-based line of every table, key and element of *text*, by its path."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of *path*, or of the nearest thing around it that has one."""
    for stop in range(len(path), 0, -1):
        if path[:stop] in lines:
            return lines[path[:stop]]
    return None

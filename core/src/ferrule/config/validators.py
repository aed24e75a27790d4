"""Validators for plugin configurations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def existing(instance: object, attribute: Any, value: Any) -> None:
    """An attrs validator: the path, or each of several, must exist. None passes."""
    if value is None:
        return
    paths = [value] if isinstance(value, str | Path) or not isinstance(value, Iterable) else value
    missing = [str(path) for path in paths if not Path(path).exists()]
    if missing:
        raise ValueError(f"no such file: {', '.join(missing)}")


def each_once(instance: object, attribute: Any, value: Any) -> None:
    """An attrs validator: nothing stands in the list twice."""
    twice = sorted({str(each) for each in value if list(value).count(each) > 1})
    if twice:
        raise ValueError(f"listed twice: {', '.join(twice)}")

"""Reading a bundle: its file, its tasks and their splits, every mistake in one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from .code import asks, find
from .parts import Parts, read_parts
from .reader import BundleError, Notes, Reader, read_toml, shown
from .tasks import BundleTask

FILE = "bundle.toml"


@attrs.frozen(eq=False)
class Bundle:
    """A bundle, read: ``tasks`` holds every task once, ``splits`` those of each split, in their order."""

    name: str
    folder: Path
    tasks: tuple[BundleTask, ...]
    splits: Mapping[str, tuple[BundleTask, ...]]
    demonstrations: Callable[..., Any] | Path | None = None


def read_bundle(folder: Path) -> Bundle:
    """The bundle in *folder*. Raises BundleError with every mistake."""
    notes = Notes(folder)
    if not (folder / FILE).is_file():
        what = f"no {FILE} in it" if folder.is_dir() else "no such folder"
        raise BundleError(folder, [f"{what}: a bundle is a folder with a {FILE}; give the path of that folder"])
    top = Reader(read_toml(folder / FILE, notes), notes, FILE)
    notes.stop()
    name = top.take("name", str, default=folder.resolve().name)
    parts = read_parts(top, folder, Parts())
    source = _demonstrations(top, folder, parts)
    listed = [_listed(reader, folder, parts, f"tasks[{i}]") for i, reader in enumerate(top.tables("tasks"))]
    listed += [_filed(path, parts, notes) for path in _task_files(folder)]
    splits: dict[str, list[BundleTask]] = {}
    for task in listed:
        if task.split is not None:
            splits.setdefault(task.split, []).append(task)
    by_id = {task.id: task for task in listed}
    generated: list[BundleTask] = []
    sections = top.table_at("splits")
    for split in sections.table:
        if split == "all":
            sections.take(split, dict)
            sections.wrong(split, "the name all stands for every task; choose another")
            continue
        section = sections.table_at(split)
        made = _generated(section, split, parts)
        generated += made
        chosen = []
        for id in section.texts("tasks") or ():
            if id in by_id:
                chosen.append(by_id[id])
            else:
                section.wrong("tasks", f"no task {id!r}; listed are: {', '.join(by_id) or 'none'}")
        section.done()
        splits.setdefault(split, []).extend([*made, *(task for task in chosen if task not in splits.get(split, ()))])
        if not splits[split] and not notes.mistakes:
            section.wrong("", "has no tasks: give generate, tasks = [ids], or tasks with this split")
    top.done()
    tasks = [*listed, *generated]
    if not notes.mistakes:
        _check(tasks, notes)
    notes.stop()
    return Bundle(name, folder, tuple(tasks), {split: tuple(of) for split, of in splits.items()}, source)


def _demonstrations(top: Reader, folder: Path, parts: Parts) -> Callable[..., Any] | Path | None:
    name: str | None = top.take("demonstrations", str)
    if name is None:
        return None
    if name.endswith(".jsonl"):
        path: Path = folder / name
        if not path.is_file():
            top.wrong("demonstrations", f"no file {path}")
        return path
    if not parts.modules and "python" in top.table:  # the file's own mistake is noted already
        return None
    try:
        return find(list(parts.modules), name)
    except ValueError as error:
        top.wrong("demonstrations", f"{error} (a file's name ends in .jsonl)")
        return None


def _task_files(folder: Path) -> list[Path]:
    """``tasks/<id>/task.toml`` and ``tasks/<id>.toml``, by id."""
    found = {path.parent.name: path for path in (folder / "tasks").glob("*/task.toml")}
    found |= {path.stem: path for path in (folder / "tasks").glob("*.toml") if path.stem not in found}
    return [found[id] for id in sorted(found)]


def _filed(path: Path, parts: Parts, notes: Notes) -> BundleTask:
    reader = Reader(read_toml(path, notes), notes, shown(path, notes.folder))
    id = path.parent.name if path.name == "task.toml" else path.stem
    return _listed(reader, path.parent, parts, reader.file, id)


def _listed(reader: Reader, folder: Path, parts: Parts, where: str, named: str = "") -> BundleTask:
    id = reader.take("id", str, default=named)
    if not id:
        reader.wrong("id", "is missing: every task has an id")
    split = reader.take("split", str)
    if split == "all":
        reader.wrong("split", "the name all stands for every task; choose another")
    params = reader.take("params", dict, default={})
    own = read_parts(reader, folder, parts)
    reader.done()
    return BundleTask(id, params, own, split, where)


def _generated(section: Reader, split: str, parts: Parts) -> list[BundleTask]:
    name = section.take("generate", str)
    args = section.take("args", dict, default={})
    if name is None or (not parts.modules and section.notes.mistakes):
        return []
    try:
        rows = list(find(list(parts.modules), name)(**args))
    except ValueError as error:
        section.wrong("generate", str(error))
        return []
    except Exception as error:
        section.wrong(
            "generate",
            f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())}) raised {type(error).__name__}: {error}",
        )
        return []
    out = []
    for i, row in enumerate(rows):
        id = row.get("id") if isinstance(row, Mapping) else None
        if not isinstance(id, str) or not id:
            section.wrong("generate", f'{name} must yield dicts of params with a text "id"; item {i} is {row!r}')
            break
        params = {key: value for key, value in row.items() if key != "id"}
        out.append(BundleTask(id, params, parts, split, f"{section.key} ({name})"))
    return out


def _check(tasks: list[BundleTask], notes: Notes) -> None:
    """What only whole tasks can show: ids that are taken, texts that cannot be filled, states that cannot be made.

    Each kind is noted once per place, or a generator's one mistake would fill the report.
    """
    if not tasks:
        notes.add(FILE, "", "has no tasks: add [[tasks]], files tasks/<id>/task.toml, or [splits.<name>] with generate")
    seen: dict[str, BundleTask] = {}
    noted = set()
    for task in tasks:
        for kind, text in _faults(task, seen.setdefault(task.id, task)):
            if (task.where, kind) not in noted:
                noted.add((task.where, kind))
                file, key = (task.where, "") if task.where.endswith(".toml") else (FILE, task.where)
                notes.add(file, key, text)


def _faults(task: BundleTask, first: BundleTask) -> Iterator[tuple[str, str]]:
    """(kind, text) of each mistake in *task*; *first* is the first task of its id."""
    if first is not task:
        yield f"taken {first.where}", f"the task id {task.id!r} is taken: {first.where} has it too"
    try:
        if task.turns() == []:
            yield "prompt", f"task {task.id!r} asks nothing: give it, or the bundle, a prompt or [[turns]]"
    except ValueError as error:
        yield str(error), f"a text of task {task.id!r} {error}"
    if task.parts.state is not None:
        lacking = [n for n in asks(task.parts.state, required=True) if n not in (*task.params, "id", "attempt")]
        if lacking:
            yield (
                "state",
                f"the state {task.parts.state.__name__} takes {lacking[0]!r}, which is not among the params of task {task.id!r}",
            )

"""What tells whether a quest is solved. Each verifier looks at the sandbox's files as ``root``; the agent's own
programs run as the agent.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from pathlib import Path
from typing import Any

import ferrule

TASKS = Path(__file__).parent / "tasks"


async def text(sandbox: ferrule.Sandbox, path: str) -> str | None:
    """A file's text without the blanks around it; None where there is no such file, or none that can be read as text."""
    try:
        return (await sandbox.read(path, user="root")).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None


def given(quest: str) -> dict[str, bytes]:
    """The files that a quest began with, by their paths in the workdir."""
    root = TASKS / quest / "files"
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


async def listing(sandbox: ferrule.Sandbox) -> set[str]:
    """The paths of all files in the workdir, links among them; empty where there are too many to list."""
    try:
        found = await sandbox.exec("find . '(' -type f -o -type l ')' -print", user="root", timeout=20.0)
    except ferrule.CommandTimeout:  # the agent's doing: its answer is wrong, and the verifier works
        return set()
    return {line.removeprefix("./") for line in found.stdout.splitlines()}


async def same(sandbox: ferrule.Sandbox, expected: dict[str, bytes]) -> bool:
    """Whether the workdir holds exactly these files with exactly these bytes."""
    if await listing(sandbox) != set(expected):
        return False
    try:
        return all([await sandbox.read(path, user="root") == data for path, data in expected.items()])
    except OSError:
        return False


async def noisiest(sandbox: ferrule.Sandbox) -> float:
    """``answer.txt`` names the log with the most ERROR lines."""
    counts = {path: data.count(b" ERROR ") for path, data in given("noisiest-log").items()}
    answer = await text(sandbox, "answer.txt")
    return float(answer is not None and answer.removeprefix("./") == max(counts, key=counts.__getitem__))


async def moved_port(sandbox: ferrule.Sandbox) -> float:
    """Every ``port = 8080`` under ``etc`` became 9090, and nothing else changed."""
    expected = {
        path: data.replace(b"port = 8080\n", b"port = 9090\n") if path.endswith(".conf") else data
        for path, data in given("move-port").items()
    }
    return float(await same(sandbox, expected))


async def totals(sandbox: ferrule.Sandbox) -> float:
    """``totals.csv`` has each region's revenue over all months, in cents, regions in alphabetical order."""
    sums: Counter[str] = Counter()
    for path, data in given("region-totals").items():
        if path.endswith(".csv"):
            for row in csv.DictReader(io.StringIO(data.decode())):
                sums[row["region"]] += int(row["units"]) * int(row["cents"])
    answer = await text(sandbox, "totals.csv")
    return float(
        answer is not None
        and answer.split() == ["region,cents", *(f"{region},{sums[region]}" for region in sorted(sums))]
    )


HIDDEN = ("", "one\n", "b a\nb  c a\n\n\ta\n", "The the THE\nend", "x\n" * 500 + "y z\n")


async def counts_words(sandbox: ferrule.Sandbox) -> float:
    """``count.sh FILE`` prints the number of different words, on files that the agent has never seen."""
    for i, content in enumerate(HIDDEN):
        await sandbox.write(f"hidden-{i}.txt", content.encode())
        try:
            ran = await sandbox.exec(f"sh count.sh hidden-{i}.txt", user="agent", timeout=10.0)
        except ferrule.CommandTimeout:
            return 0.0
        if ran.stdout.strip() != str(len(set(content.split()))):
            return 0.0
    return 1.0


async def merged(sandbox: ferrule.Sandbox) -> float:
    """``all.txt`` has every address once, in lower case, sorted."""
    addresses = {
        line.strip().lower() for data in given("merge-lists").values() for line in data.decode().splitlines()
    } - {""}
    answer = await text(sandbox, "all.txt")
    return float(answer is not None and answer.split("\n") == sorted(addresses))


async def found(sandbox: ferrule.Sandbox, params: dict[str, Any]) -> float:
    """``found.bin`` has the bytes whose checksum was given."""
    try:
        data = await sandbox.read("found.bin", user="root")
    except OSError:
        return 0.0
    return float(hashlib.sha256(data).hexdigest() == params["sha256"])


async def swept(sandbox: ferrule.Sandbox) -> float:
    """The ``.tmp`` files under ``cache`` are gone, and all else is as it was."""
    files = given("sweep-cache")
    return float(
        await same(sandbox, {p: d for p, d in files.items() if not (p.startswith("cache/") and p.endswith(".tmp"))})
    )

"""The page on a loss of one's own, followed word for word: its files are written, its commands are run as they stand
there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "custom-loss.md"
ELSEWHERE = {
    "make install": "the tests run in such an environment",
    ". .venv/bin/activate": "the tests run in such an environment",
    "ferrule train train.toml": "the whole recipe takes minutes",
}
"""Commands of the page that are not run here, and why."""


def blocks() -> list[tuple[str, str]]:
    """``(language, text)`` of each code block, in the order of the page."""
    return re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@attrs.define
class Reader:
    """Somebody who follows the page. ``shown`` is what each command printed."""

    folder: Path
    site: Path
    shown: dict[str, str] = attrs.field(factory=dict)

    def write(self, text: str) -> None:
        """A block of a file names it in its first line. The recipe is there already, and the block goes to its end."""
        name = text.splitlines()[0].removeprefix("# ")
        with (self.folder / name).open("a") as file:
            file.write(f"\n{text}")

    def run(self, text: str) -> None:
        for command in text.splitlines():
            if command in ELSEWHERE:
                continue
            if command.startswith("cd "):
                self.folder = Path(os.path.normpath(self.folder / command.removeprefix("cd ")))
                continue
            # The one change: the package is put where no other test finds it, by the build tool that is here already.
            quiet = f"--quiet --no-deps --no-build-isolation --disable-pip-version-check --target {self.site}"
            line = command.replace("pip install", f"{sys.executable} -m pip install {quiet}")
            done = subprocess.run(["bash", "-c", line], cwd=self.folder, env=self.env, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            self.shown[command] = done.stdout

    @property
    def env(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {**os.environ, "PATH": path, "PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0"}
        return {name: value for name, value in env.items() if not name.startswith("FERRULE_")}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """One who has followed the whole page, beginning in a checkout."""
    home = tmp_path_factory.mktemp("stranger")
    (home / "ferrule").mkdir()
    (home / "ferrule" / "contrib").symlink_to(ROOT / "contrib")
    reader = Reader(home / "ferrule", home / "site")
    for language, text in blocks():
        if language == "sh":
            reader.run(text)
        else:
            reader.write(text)
    assert reader.folder == home / "my-agent"
    return reader


def test_the_loss_fits_the_recipe_by_its_file_and_by_its_name(reader: Reader) -> None:
    assert "no mistakes" in reader.shown["ferrule check train.toml"]
    assert "loss my_losses.py:SelfImitation" in reader.shown["ferrule check train.toml"]
    (packaged,) = [text for command, text in reader.shown.items() if "losses.1.use=self_imitation" in command]
    assert "loss self_imitation" in packaged
    assert "loss\tself_imitation\tmy-losses\t0.1.0" in reader.shown["ferrule plugins list --kind loss"]
    assert "above\ta number\t0.9" in reader.shown["ferrule plugins show my_losses.py:SelfImitation"]


def test_the_short_run_trains_with_it(reader: Reader) -> None:
    (metrics,) = reader.folder.glob("runs/*/metrics.jsonl")
    lines = [json.loads(text) for text in metrics.read_text().splitlines()]
    steps = [line for line in lines if line["stage"] == "train"]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["loss/self_imitation"] > 0.0 and line["grad_norm"] > 0.0 for line in steps)
    (told,) = [text for command, text in reader.shown.items() if command.startswith("ferrule train")]
    assert re.search(r"^step 2 .* self_imitation \d", told, re.MULTILINE)
    assert "done" in reader.shown["ferrule runs list"]


def test_every_command_that_is_not_run_here_stands_on_the_page() -> None:
    lines = [line for language, text in blocks() if language == "sh" for line in text.splitlines()]
    assert set(ELSEWHERE) <= set(lines)

"""The renderer that docs/renderers.md shows whole passes the conformance suite, as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ferrule_test_assets import smollm2

PAGE = Path(__file__).parents[2] / "docs" / "renderers.md"


def test_the_renderer_of_the_page_passes_the_suite_as_it_is_declared_there(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["acme.py", "test_acme.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "acme").symlink_to(smollm2(), target_is_directory=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_acme.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 60, "most checks apply to it"

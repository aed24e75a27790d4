"""The parity tables in docs/renderers.md are what the renderers do: each is made again and compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NEEDED = ("transformers", "renderers", "tinker_cookbook", "tml_renderers", "ferrule_test_assets")
MISSING = [name for name in NEEDED if find_spec(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the tables are made with {', '.join(MISSING)}, absent here")

TABLES = ("Qwen2.5", "Qwen3", "Qwen3.5", "SmolLM2", "DeepSeek R1", "GLM 4.5", "gpt-oss", "Nemotron 3")


@pytest.fixture(scope="module")
def parity() -> Iterator[object]:
    kept = dict(os.environ), list(sys.path)
    sys.path.insert(0, str(DOCS))
    import make_parity

    make_parity.prepare()
    page = make_parity.PAGE.read_text(encoding="utf-8")
    if f"Made with {make_parity.versions()}." not in page:
        pytest.skip(f"the tables are made with other versions than {make_parity.versions()}")
    if missing := set(make_parity.RENDERERS) - set(make_parity.installed()):
        pytest.skip(f"the tables have columns for {', '.join(sorted(missing))}, not installed here")
    yield make_parity
    sys.path[:] = kept[1]
    os.environ.clear()
    os.environ.update(kept[0])


def test_every_tokenizer_has_a_table(parity) -> None:
    assert set(parity.TOKENIZERS) == set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_what_the_command_makes(parity, name: str) -> None:
    page = parity.PAGE.read_text(encoding="utf-8")
    assert parity.table(name) == parity.section(page, name), f"run: python docs/make_parity.py {name!r}"


def test_what_each_renderer_says_of_itself_and_the_names_are_on_the_page(parity) -> None:
    page = parity.PAGE.read_text(encoding="utf-8")
    assert parity.replaced(page, "what each serves", parity.serving()) == page, "run: python docs/make_parity.py"
    assert parity.replaced(page, "the names", parity.legend()) == page, "run: python docs/make_parity.py"


def test_an_unexplained_difference_is_named_and_an_explained_one_is_checked(parity) -> None:
    from parity_cases import ASK, Case
    from parity_names import Seen, Unexplained, explain

    case = Case("one", (ASK,))
    same = f"<s>{ASK.content}<think>\n"
    assert explain(Seen(case, same, same, same, same), [1, 2], [1, 2], None) == "equal"
    assert explain(Seen(case, f"<s>{ASK.content}", same, same, same), [1], [1, 2], None) == "`generation`"
    assert explain(Seen(case, f"now {same}", same, same, same), [0, 1], [1], None) == "`head`"
    with pytest.raises(Unexplained, match="Parrot"):
        explain(Seen(case, f"{same} Parrot", same, same, same), [1, 2, 3], [1, 2], None)


def test_the_command_refuses_a_tokenizer_that_it_does_not_know() -> None:
    run = [sys.executable, str(DOCS / "make_parity.py"), "Qwen9"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no tokenizer is called Qwen9" in done.stderr

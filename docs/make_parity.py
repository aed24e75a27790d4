"""Write the tables in docs/renderers.md: `python docs/make_parity.py`.

Each renderer's tokens are compared with those of transformers' `apply_chat_template`. A difference must have a name from
the list below, and each name is checked: with what it says put right on both sides, the texts are the same. One that no
names explain ends the command with exit code 1. `--check` writes nothing and ends with 1 where the page is out of date;
names of tokenizers narrow the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).parent))
from parity_cases import RENDERERS, TOKENIZERS, cases
from parity_names import EXPLANATIONS, NO_CELL, SAME_TEXT, Seen, Unexplained, explain

from ferrule import EpisodeFailed, Message, ModelSpec, PluginError, Renderer, answer_order

PAGE = Path(__file__).parent / "renderers.md"
BEGIN, END = "<!-- made by docs/make_parity.py: {} -->", "<!-- end of {} -->"
PEERS = ("transformers", "renderers", "tinker-cookbook", "tml-renderers")


def wire(message: Message, text_arguments: bool) -> dict[str, Any]:
    """*message* as templates take it: reasoning by each of the names that templates know it by."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        out["reasoning_content"] = out["thinking"] = message.reasoning
    if message.tool_calls:
        calls = [(c, dict(c.arguments)) for c in message.tool_calls]
        out["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(a) if text_arguments else a},
            }
            for c, a in calls
        ]
    for key in ("tool_call_id", "name"):
        if getattr(message, key):
            out[key] = getattr(message, key)
    return out


class Reference:
    """transformers with a model's tokenizer."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def ids(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[int] | None:
        """None where the template refuses."""
        for text_arguments in (False, True):
            try:
                found = self.tokenizer.apply_chat_template(
                    [wire(m, text_arguments) for m in messages],
                    tools=[t.to_openai() for t in tools] or None,
                    add_generation_prompt=True,
                    tokenize=True,
                )
            except Exception:  # a template is a program of its own: whatever it raises, it refused
                continue
            return [int(i) for i in (found["input_ids"] if hasattr(found, "keys") else found)]
        return None

    def text(self, ids: Sequence[int] | None) -> str:
        return str(self.tokenizer.decode(list(ids or ()), skip_special_tokens=False))


def installed() -> dict[str, EntryPoint]:
    found = {entry.name: entry for entry in entry_points(group="ferrule.renderers")}
    return {name: found[name] for name in RENDERERS if name in found}


def rows(name: str, reasons: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The table of one tokenizer, row by row: the conversation, and a cell for each renderer."""
    make, model_id = TOKENIZERS[name]
    folder = make()
    reference = Reference(folder)
    made: dict[str, Renderer | None] = {}
    for key, entry in installed().items():
        cls = entry.load()
        try:
            made[key] = cls(cls.Config(), ModelSpec(tokenizer=str(folder), id=model_id))
        except PluginError:
            made[key] = None
    special = reference.tokenizer.eos_token
    for case in cases(special):
        theirs = reference.ids(case.messages, case.tools)
        order = answer_order(case.messages)
        paired = reference.text(reference.ids([case.messages[i] for i in order], case.tools))
        plain = [attrs.evolve(m, tool_calls=()) for m in case.messages]
        bare = reference.text(reference.ids(plain, ()))
        cells = []
        for key, renderer in made.items():
            if renderer is None:
                cells.append("–")
                continue
            try:
                ours = renderer.render(case.messages, case.tools).ids.tolist()
            except EpisodeFailed as failed:
                cells.append("`refused`")
                reasons.setdefault(f"{key}, {name}", re.sub(r" ?(?:in )?message \d+ ?\(\w+\)", "", failed.detail))
                continue
            if theirs is None:
                raise Unexplained(f"{name}, {case.name}: the template itself refuses, and {key} does not")
            seen = Seen(case, reference.text(ours), reference.text(theirs), paired, bare)
            try:
                cells.append(explain(seen, ours, theirs, reference.tokenizer.convert_tokens_to_ids(special)))
            except Unexplained as why:
                raise Unexplained(f"{name}, {case.name!r}: {key} writes\n  {why}") from None
        yield case.name, cells


def table(name: str) -> str:
    """The section of one tokenizer. Unexplained where a difference is."""
    reasons: dict[str, str] = {}
    head = ["conversation", *(f"`{key}`" for key in installed())]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {case} | {' | '.join(cells)} |" for case, cells in rows(name, reasons)]
    told = [f"- {who.partition(',')[0]} refuses: {_short(why)}" for who, why in reasons.items()]
    return "\n".join([f"### {name}", "", *lines, *(["", *told] if told else [])])


def _short(why: str) -> str:
    return re.sub(r"^renderer '\w+'(?: \(family '\w+'\))?: ", "", why)


def serving() -> str:
    """What each renderer says of itself."""
    chosen = {(e.value, e.name) for e in entry_points(group="ferrule.auto_renderers")}
    lines = [
        "| renderer | serves | `auto` chooses it for | extends | `thinking` | control tokens' text |",
        f"|{'---|' * 6}",
    ]
    for key, entry in installed().items():
        cls = entry.load()
        auto = _families(pattern for value, pattern in chosen if value == entry.value)
        auto = "all of these" if auto == _families(cls.serves) else auto
        ways = ", ".join(f"`{way}`" for way in cls.thinking_choices)
        cells = (_families(cls.serves), auto or "what nobody claims" * (key == "chat_template") or "nothing")
        lines.append(
            f"| `{key}` | {' | '.join(cells)} | {'yes' if cls.extends else 'no'} | {ways} | {cls.special_text} |"
        )
    return "\n".join(lines)


def _families(patterns: Any) -> str:
    """Model ids as families, their sizes and variants left off."""
    found = set()
    for pattern in patterns:
        words = pattern.rpartition("/")[2].rstrip("*-").split("-")
        sized = next((n for n, w in enumerate(words) if n and re.fullmatch(r"[EA]?\d+(?:\.\d+)?[BMb]", w)), len(words))
        words = [w for w in words[:sized] if w not in ("Base", "Instruct", "Thinking", "BF16", "FP8", "it")]
        found.add("-".join(w for w in words if not re.fullmatch(r"\d{4}", w)))
    return "any model with a chat template" if found == {""} else ", ".join(sorted(found))


def legend() -> str:
    told = {**{name: words for name, (words, _) in EXPLANATIONS.items()}, **SAME_TEXT, **NO_CELL}
    return "\n".join(f"- `{name}`: {words}." for name, words in told.items())


def versions() -> str:
    found = {}
    for peer in PEERS:
        try:
            found[peer] = version(peer)
        except PackageNotFoundError:
            found[peer] = "absent"
    return ", ".join(f"{peer} {number}" for peer, number in found.items())


def replaced(page: str, part: str, text: str) -> str:
    begin, end = BEGIN.format(part), END.format(part)
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{PAGE.name} has no part {part!r}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def section(page: str, name: str) -> str | None:
    """The table of one tokenizer as *page* has it."""
    found = re.search(rf"^### {re.escape(name)}\n.*?(?=^###? |^<!-- |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[0].strip() if found else None


def prepare() -> None:
    """Nothing is to be fetched; the vocabulary that openai-harmony asks for lies in tml-renderers."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    spec = find_spec("tml_renderers")
    if spec is not None and spec.origin:
        os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(Path(spec.origin).parent / "data"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument(
        "tokenizers", nargs="*", metavar="tokenizer", help=f"of {', '.join(TOKENIZERS)}; all by default"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is out of date")
    given = parser.parse_args(arguments)
    if unknown := set(given.tokenizers) - set(TOKENIZERS):
        parser.error(f"no tokenizer is called {', '.join(sorted(unknown))}")
    prepare()
    page = PAGE.read_text(encoding="utf-8")
    tables, failed = [], False
    for name in TOKENIZERS:
        if given.tokenizers and name not in given.tokenizers:
            tables.append(section(page, name) or f"### {name}")
            continue
        try:
            tables.append(table(name))
        except Unexplained as why:
            print(why, file=sys.stderr)
            failed = True
    if failed:
        return 1
    new = replaced(page, "what each serves", serving())
    new = replaced(new, "the tables", "\n\n".join([f"Made with {versions()}.", *tables]))
    new = replaced(new, "the names", legend())
    if given.check:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

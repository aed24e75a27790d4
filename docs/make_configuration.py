"""Write docs/configuration.md from the schema itself: `python docs/make_configuration.py`."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path

import attrs

from ferrule import SamplingParams
from ferrule.config import schema

HEAD = """# A run's configuration

TOML. Made from the schema by `python docs/make_configuration.py`; the defaults are the code's.

A section with `use` names a plugin by a [reference](kinds.md); the keys beside it are that plugin's own. Unknown keys are
refused with the nearest known one, and all mistakes are reported at once. `--set a.b=c` overrides a key, `--set
losses.0.coef=0.1` one in a list. Paths are relative to the configuration's folder, those in a `--set` to where you are.
`ferrule explain` prints where each value came from.
"""


def shown(kind: object) -> str:
    if isinstance(kind, str):
        return kind
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "").replace("ferrule.config.schema.", "").replace("NoneType", "None")


def default(field: attrs.Attribute) -> str:
    value = field.default
    if value is attrs.NOTHING:
        return "*required*"
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        return ""
    if isinstance(value, frozenset | tuple) and not value:
        return "`[]`"
    if attrs.has(type(value)):
        return ""
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def table(cls: type) -> str:
    rows = ["| key | type | default |", "|---|---|---|"]
    for field in attrs.fields(cls):
        # As written: loading a configuration resolves field.type, and the page must not depend on that.
        written = next(a[field.name] for a in map(inspect.get_annotations, cls.__mro__) if field.name in a)
        kind = shown(written).replace("|", "\\|")
        rows.append(f"| `{field.name}` | `{kind}` | {default(field)} |")
    return "\n".join(rows)


def main() -> str:
    parts = [HEAD]
    config = schema.RunConfig
    parts.append(f"## The whole\n\n{inspect.getdoc(config)}\n\n{table(config)}")
    sections = {
        "model": schema.ModelSpec, "policy": schema.PolicyConfig, "filter": schema.FilterConfig,
        "rollout": schema.RolloutConfig, "sampling": SamplingParams, "sft": schema.SftConfig,
        "train": schema.TrainConfig, "sft.optim, train.optim": schema.OptimParams, "eval": schema.EvalConfig,
        "save": schema.SaveConfig,
    }  # fmt: skip
    for name, cls in sections.items():
        parts.append(f"## {name}\n\n{inspect.getdoc(cls)}\n\n{table(cls)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "configuration.md").write_text(main())

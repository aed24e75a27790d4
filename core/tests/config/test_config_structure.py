"""From TOML to attrs: what is taken, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.config import Use, load


def test_values_defaults_and_plugin_options_arrive_as_their_types(loads, project):
    config = loads().config
    assert (config.name, config.train.steps, config.train.group_size, config.sft) == ("toy", 4, 8, None)
    assert isinstance(config.trainer, Use)
    assert (config.trainer.config.threads, config.trainer.config.tiny.layers, config.trainer.config.tiny.width) == (
        2,
        3,
        16,
    )
    assert [loss.config.coef for loss in config.losses] == [0.1]
    assert config.taskset.config.path == project / "tasks.json"
    assert config.runs == project / "runs"


@pytest.mark.parametrize("text", ['renderer = "toy"', 'renderer = { use = "toy" }', 'renderer.use = "toy"'])
def test_a_plugin_without_options_may_be_named_in_one_line(project, registry, text):
    sound = (project / "run.toml").read_text().replace('[renderer]\nuse = "toy"\n', "")
    (project / "run.toml").write_text(f"{text}\n{sound}")
    loaded = load(project / "run.toml", ["renderer.trim=true"], registry)
    assert (loaded.config.renderer.label, loaded.config.renderer.config.trim) == ("toy", True)
    assert loaded.provenance["renderer", "use"].endswith("run.toml:1")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('threads = "2"', "expected a whole number, got '2' (text)"),
        ("threads = 2.0", "expected a whole number, got 2.0 (a number)"),
        ("threads = true", "expected a whole number, got true"),
        ('dropout = "0.5"', "expected a number, got '0.5' (text)"),
        ("dropout = nan", "expected a finite number"),
        ("dropout = false", "expected a number, got false"),
        ('device = "cpuu"', "expected one of 'cpu', 'cuda', got 'cpuu' (text); did you mean 'cpu'?"),
        ("device = 1", "expected one of 'cpu', 'cuda', got 1 (a whole number)"),
        ("tiny = 3", "expected a table, got 3"),
        ("weights = 3", "expected a path, got 3"),
        ('weights = "absent"', "no such file"),
        ("api_key = 17", "expected text, got ***"),
    ],
)
def test_a_value_of_another_type_is_refused(problems, value, said):
    (found,) = problems(replace=("threads = 2\n\n[trainer.tiny]\nlayers = 3", value))
    assert found.startswith(f"12 trainer.{value.split()[0]}: ")
    assert said in found


def test_a_whole_number_is_a_number(loads):
    dropout = loads(replace=("threads = 2", "dropout = 1")).config.trainer.config.dropout
    assert (dropout, type(dropout)) == (1.0, float)


@pytest.mark.parametrize(
    ("replace", "found"),
    [
        (("[[losses]]", "[losses]"), ["23 losses: this is a list of tables: write [[losses]] for each, not [losses]"]),
        (("[taskset]", "[[taskset]]"), ["3 taskset: this is one table: write [taskset], not [[taskset]]"]),
        (('use = "toy_echo"\n', ""), ["23 losses[0].use: required, and missing: it names the loss"]),
        (('use = "toy_echo"', "use = 3"), ["24 losses[0].use: expected the name of a loss, got 3 (a whole number)"]),
        (
            ('use = "toy_echo"\ncoef = 0.1', 'use = "toy_echo"\ncoef = -1'),
            ["25 losses[0].coef: 'coef' must be >= 0.0: -1.0"],
        ),
        (('[harness]\nuse = "toy_tools"', ""), [" harness: required, and missing"]),
    ],
)
def test_the_shape_of_sections_is_explained(problems, replace, found):
    got = problems(replace=replace)
    assert len(got) == len(found)
    for text, expected in zip(got, found, strict=True):
        assert text.endswith(expected)


def test_a_validators_failure_hides_no_other_field(problems):
    found = problems(replace=("[train]\nsteps = 4", "[train]\nsteps = -1\ngroup_size = 0\ntasks_per_step = 0"))
    assert [text.partition(":")[0] for text in found] == [
        "28 train.steps",
        "29 train.group_size",
        "30 train.tasks_per_step",
    ]


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("eval.limit=0", "eval.limit: 'limit' must be >= 1: 0"),
        ("eval.modes=[]", "eval.modes: Length of 'modes' must be >= 1: 0"),
        ('eval.modes=["greedy", "greedy"]', "eval.modes: listed twice: greedy"),
        ("rollout.max_steps=0", "rollout.max_steps: 'max_steps' must be >= 1: 0"),
        ("rollout.timeout=0", "rollout.timeout: 'timeout' must be > 0.0: 0.0"),
        ("policy.eps_clip_high=0", "policy.eps_clip_high: 'eps_clip_high' must be > 0.0: 0.0"),
        ("train.optim.betas=[0.9, 1.0]", "train.optim.betas: 'betas' must be < 1.0: 1.0"),
    ],
)
def test_numbers_that_no_run_can_use_are_refused(problems, override, found):
    assert problems(override) == [f"--set {override.partition('=')[0]} {found}"]


PLUGIN = """
from __future__ import annotations
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
import attrs, ferrule

class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

class Rich(ferrule.AuxLoss, name="rich"):
    @attrs.frozen
    class Part:
        size: int
        label: str | None = None

    @attrs.frozen
    class Config(ferrule.AuxLoss.Config):
        mode: Mode = Mode.FAST
        parts: list[Part] = attrs.field(factory=list)
        by_name: Mapping[str, Part] = attrs.field(factory=dict)
        pair: tuple[int, str] = (1, "a")
        many: tuple[float, ...] = ()
        names: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
        either: int | str | list[int] = 0
        level: Literal["low", 3] | None = None
        files: tuple[Path, ...] = attrs.field(default=(), validator=ferrule.existing)
        free: dict = attrs.field(factory=dict)
        top: float = 1.0
        bottom: float = attrs.field(default=0.0)

        @bottom.validator
        def below_top(self, attribute, value):
            if value > self.top:
                raise ValueError(f"must be below top, {self.top}")

    def weight(self, row, ctx): return 1.0
"""


@pytest.fixture
def rich(loads, problems, project):
    (project / "rich.py").write_text(PLUGIN)
    (project / "a.txt").write_text("")

    def config(text: str):
        return (
            loads(replace=('use = "toy_echo"\ncoef = 0.1', f'use = "rich.py:Rich"\ncoef = 0.1\n{text}'))
            .config.losses[0]
            .config
        )

    def wrong(text: str) -> list[str]:
        return problems(replace=('use = "toy_echo"\ncoef = 0.1', f'use = "rich.py:Rich"\ncoef = 0.1\n{text}'))

    return config, wrong


def test_containers_unions_and_string_annotations_of_nested_classes_are_structured(rich, project):
    config, _ = rich
    value = config(
        'mode = "slow"\nparts = [{ size = 1 }, { size = 2, label = "b" }]\nby_name = { x = { size = 3 } }\npair = [7, "z"]\n'
        'many = [1, 2.5]\nnames = ["u", "v", "u"]\neither = "word"\nlevel = 3\nfiles = ["a.txt"]\nfree = { any = [1, { x = 2 }] }'
    )
    assert value.mode.value == "slow"
    assert [(p.size, p.label) for p in value.parts] == [(1, None), (2, "b")]
    assert value.by_name["x"].size == 3
    assert (value.pair, value.many, value.names) == ((7, "z"), (1.0, 2.5), frozenset("uv"))
    assert (value.either, value.level, value.free) == ("word", 3, {"any": [1, {"x": 2}]})
    assert value.files == (project / "a.txt",)
    assert config("either = [1, 2]").either == [1, 2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            'mode = "fats"',
            ["26 losses[0].mode: expected one of 'fast', 'slow', got 'fats' (text); did you mean 'fast'?"],
        ),
        (
            'parts = [\n  { size = "x" },\n  { label = 3 },\n]',
            [
                "27 losses[0].parts[0].size: expected a whole number, got 'x' (text)",
                "28 losses[0].parts[1].size: required, and missing",
                "28 losses[0].parts[1].label: expected text, got 3 (a whole number)",
            ],
        ),
        (
            "[losses.by_name.x]\nsizes = 1",
            [
                "26 losses[0].by_name.x.size: required, and missing",
                "27 losses[0].by_name.x.sizes: unknown key; did you mean 'size'?",
            ],
        ),
        (
            "parts = { size = 1 }",
            ["26 losses[0].parts: this is a list of tables: write [[parts]] for each, not [parts]"],
        ),
        (
            'pair = ["a", 1]',
            [
                "26 losses[0].pair[0]: expected a whole number, got 'a' (text)",
                "26 losses[0].pair[1]: expected text, got 1 (a whole number)",
            ],
        ),
        ("either = 1.5", ["26 losses[0].either: expected a whole number or text or a list, got 1.5 (a number)"]),
        ('files = ["a.txt", "b.txt"]', ["26 losses[0].files: no such file: "]),
        ("top = 1\nbottom = 2", ["27 losses[0].bottom: must be below top, 1.0"]),
        (
            'top = "x"\nbottom = 2',
            ["26 losses[0].top: expected a number, got 'x' (text)", "27 losses[0].bottom: must be below top, 1.0"],
        ),
    ],
)
def test_mistakes_inside_containers_have_their_own_place(rich, text, found):
    got = rich[1](text)
    assert len(got) == len(found), got
    for mine, expected in zip(sorted(got), sorted(found), strict=True):
        assert mine.startswith(expected)


def test_an_annotation_that_cannot_be_read_is_said_so(problems, project):
    (project / "odd.py").write_text(
        "from __future__ import annotations\nimport attrs, ferrule\nclass Odd(ferrule.AuxLoss, name='odd'):\n    @attrs.frozen\n"
        "    class Config(ferrule.AuxLoss.Config):\n        x: Absent = 1\n    def weight(self, row, ctx): return 1.0\n"
    )
    (found,) = problems(replace=('use = "toy_echo"', 'use = "odd.py:Odd"'))
    assert "24 losses[0].use: " in found
    assert "'Absent' is not defined" in found


def test_relative_paths_are_below_the_file_and_those_of_overrides_below_the_working_directory(
    loads, project, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.json").write_text('{"train": [{"id": "x"}], "eval": [{"id": "y"}]}')
    monkeypatch.chdir(tmp_path / "here")
    loaded = loads("taskset.path=mine.json", "runs=out")
    assert loaded.config.taskset.config.path == tmp_path / "here" / "mine.json"
    assert loaded.config.runs == tmp_path / "here" / "out"
    assert loaded.raw["taskset"]["path"] == str(tmp_path / "here" / "mine.json")
    assert loads().config.taskset.config.path == project / "tasks.json"


def test_model_folders_beside_the_configuration_are_made_absolute_and_names_left_alone(loads, project):
    (project / "weights").mkdir()
    model = loads(add='[model]\npath = "weights"\ntokenizer = "org/name"\n').config.model
    assert (model.path, model.tokenizer) == (str(project / "weights"), "org/name")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(project, registry):
    text = (project / "run.toml").read_text().replace("\n", "\r\n")
    (project / "run.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load(project / "run.toml", (), registry).config.train.steps == 4


def test_infinity_never_gets_through_an_override(problems):
    (found,) = problems("rollout.timeout=inf")
    assert found == "--set rollout.timeout rollout.timeout: expected a finite number, got inf (a number)"


def test_existing_takes_one_path_several_or_none(tmp_path: Path):
    from ferrule import existing

    existing(None, None, None)
    existing(None, None, (tmp_path, str(tmp_path)))
    with pytest.raises(ValueError, match=r"no such file: .*absent"):
        existing(None, None, [tmp_path, tmp_path / "absent"])

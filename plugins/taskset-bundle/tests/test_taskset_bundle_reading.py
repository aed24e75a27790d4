from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ferrule_taskset_bundle import BundleError, BundleTaskset

import ferrule

PYTHON = '''
"""Sums."""
import ferrule

class Sheet:
    def __init__(self, a: int, b: int):
        self.answer, self.seen = a + b, None

def add(state: Sheet, x: int, y: int) -> str:
    """Add two numbers.

    Args:
        x: The first number.
    """
    state.seen = x + y
    return str(state.seen)

def is_right(state: Sheet) -> float:
    return float(state.seen == state.answer)

def pairs(first, count):
    for n in range(first, first + count):
        yield {"id": f"pair-{n}", "a": n, "b": 2}

def solve(params, id):
    return [{"call": "add", "arguments": {"x": params["a"], "y": params["b"]}}, {"content": id}]
'''

TOML = """
python = "sums.py"
state = "Sheet"
tools = ["add"]
verifiers = { reward = "is_right" }
system = "You add."
prompt = "What is {a} + {b}?"
gold = "solve"
metadata = { source = "by hand" }

[[tasks]]
id = "small"
params = { a = 1, b = 1 }

[splits.train]
generate = "pairs"
args = { first = 0, count = 3 }
[splits.dev]
generate = "pairs"
args = { first = 3, count = 2 }
[splits.mixed]
tasks = ["small"]
"""


def write(folder: Path, toml: str = TOML, python: str = PYTHON, **files: str) -> Path:
    (folder / "bundle.toml").write_text(toml)
    (folder / "sums.py").write_text(python)
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def read(folder: Path) -> BundleTaskset:
    return BundleTaskset(BundleTaskset.Config(path=folder))


def mistakes(folder: Path) -> str:
    with pytest.raises(BundleError) as caught:
        read(folder)
    assert len(caught.value.mistakes) == str(caught.value).count("\n")
    return str(caught.value)


def test_tasks_of_each_split_in_a_stable_order_and_all_of_them_once(tmp_path):
    taskset = read(write(tmp_path))
    assert taskset.splits == ("train", "dev", "mixed")
    assert [task.id for task in taskset.tasks("train")] == ["pair-0", "pair-1", "pair-2"]
    assert [task.id for task in taskset.tasks("all")] == ["small", "pair-0", "pair-1", "pair-2", "pair-3", "pair-4"]
    with pytest.raises(ferrule.FerruleError, match="no split 'test'; it has: train, dev, mixed, all"):
        taskset.tasks("test")


def test_task_tells_its_scores_params_and_gold(tmp_path):
    task = read(write(tmp_path)).tasks("train")[1]
    assert task.score_names == ("reward",)
    assert task.sandbox is None
    assert task.metadata["params"] == {"a": 1, "b": 2}
    assert task.metadata["source"] == "by hand"
    assert task.metadata["split"] == "train"
    gold = [ferrule.Message.from_openai(message) for message in task.metadata["gold"]]
    assert gold[0].tool_calls[0].name == "add"
    assert gold[0].tool_calls[0].arguments == {"x": 1, "y": 2}
    assert gold[1].content == "pair-1"


def test_python_is_loaded_under_its_own_name_and_the_path_left_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = list(sys.path)
    first = read(write(tmp_path / "a"))
    second = read(write(tmp_path / "b", python=PYTHON.replace("x + y", "x - y")))
    assert sys.path == before
    assert "sums" not in sys.modules
    functions = [taskset.tasks("all")[0].parts.tools["add"].function for taskset in (first, second)]
    assert functions[0] is not functions[1]
    assert all(f.__module__.startswith("ferrule_bundle_") for f in functions)


def test_tasks_as_files_with_parts_of_their_own(tmp_path):
    task = """
        prompt = "Count to {n}."
        split = "eval"
        params = { n = 3 }
        python = "own.py"
        state = "Counter"
        verifiers = { counted = "has_counted", reward = "has_counted" }
        gold = ["one two three"]
    """
    own = "class Counter:\n    def __init__(self, n):\n        self.n = n\ndef has_counted(state): return 1.0\n"
    plain = 'prompt = "Print {braces} as they are: {\\"a\\": 1}"\nstate = "Plain"\npython = "plain.py"\nsplit = "eval"\ngold = []\n'
    folder = write(
        tmp_path,
        **{
            "tasks__count__task.toml": task,
            "tasks__count__own.py": own,
            "tasks__z.toml": plain,
            "tasks__plain.py": "class Plain: pass\n",
        },
    )
    count, z = read(folder).tasks("eval")
    assert (count.id, z.id) == ("count", "z")
    assert count.turns()[0].prompt == "Count to 3."
    assert count.turns()[0].system == "You add."
    assert count.score_names == ("counted", "reward")
    assert count.metadata["gold"] == [{"role": "assistant", "content": "one two three"}]
    assert z.turns()[0].prompt == 'Print {braces} as they are: {"a": 1}'


def test_every_mistake_of_a_bundle_in_one_report(tmp_path):
    toml = (
        TOML.replace('"is_right"', '"is_rihgt"')
        .replace("tools =", "tols =")
        .replace('generate = "pairs"', "generate = 3", 1)
    )
    text = mistakes(write(tmp_path, toml + "\n[bash]\ntimeout = -1\n[splits.all]\n"))
    assert "bundle.toml: verifiers.reward: no function or class 'is_rihgt' in sums.py; did you mean 'is_right'?" in text
    assert "bundle.toml: tols: unknown key; did you mean 'tools'?" in text
    assert "bundle.toml: splits.train.generate: must be text, not 3" in text
    assert "bundle.toml: bash.timeout: must be above 0" in text
    assert "bundle.toml: splits.all: the name all" in text
    assert text.startswith(f"5 mistakes in the bundle {tmp_path}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "def is_right(state: Sheet)",
            "def is_right(day)",
            "is_right takes 'day'; it may take: state, sandbox, params, attempt, reply",
        ),
        ("x: int, y: int", "x: int, y", "tools: tool 'add': parameter 'y' has no type"),
        (
            "def __init__(self, a: int, b: int)",
            "def __init__(self, a, c, b=1)",
            "the state Sheet takes 'c', which is not among the params of task",
        ),
        ('yield {"id": f"pair-{n}", "a"', 'yield {"id": n, "a"', 'must yield dicts of params with a text "id"; item 0'),
        ('f"pair-{n}"', '"pair"', "the task id 'pair' is taken"),
        ("def pairs(first, count)", "def pairs(first)", "pairs(first=0, count=3) raised TypeError"),
        ('"""Sums."""', "import nowhere_at_all", "raised ModuleNotFoundError on import (line 2)"),
        ('"""Sums."""', "raise SystemExit(3)", "raised SystemExit on import (line 2)"),
        ('"""Sums."""', "def f(:", "raised SyntaxError on import (line 2)"),
        ('"""Sums."""', "import helper", "imports 'helper' from its own folder"),
    ],
)
def test_mistakes_in_the_python_say_where_and_what(tmp_path, old, new, said):
    assert old in PYTHON
    text = mistakes(write(tmp_path, python=PYTHON.replace(old, new), **{"helper.py": ""}))
    assert said in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{a} + {b}", "{a} + {c}", "names {c}, which is not among the task's params (a, b)"),
        ("{a} + {b}", "{a} + {", "write {{ and }} for braces"),
        ('"sums.py"', '"smus.py"', "smus.py cannot be read"),
        ('prompt = "What is {a} + {b}?"', "", "asks nothing"),
        ('tools = ["add"]', 'tools = ["add", "bash"]', "tools: bash runs in a sandbox, and the bundle asks for none"),
        ('tools = ["add"]', 'tools = "add"', "tools: must be a list, not 'add'"),
        ('id = "small"', "", "tasks[0].id: is missing"),
        ('tasks = ["small"]', 'tasks = ["smal"]', "splits.mixed.tasks: no task 'smal'; listed are: small"),
        ('tasks = ["small"]', "", "splits.mixed: has no tasks"),
        ('prompt = "What is {a} + {b}?"', 'prompt = "x"\nturns = [{ prompt = "y" }]', "give it, or turns, not both"),
        ('prompt = "What is {a} + {b}?"', 'turns = { prompt = "y" }', "turns is a list: write [[turns]]"),
        ('prompt = "What is {a} + {b}?"', 'turns = [{ system = "y" }]', "turns[0].prompt: is missing"),
        ('gold = "solve"', 'gold = [{ cal = "add" }]', "gold: message 0 unknown key 'cal'"),
        ('gold = "solve"', 'sandbox = { files = "nope", cpu = 1.0 }', "sandbox.files: no folder"),
        ('gold = "solve"', "sandbox = { cpu = 1.0 }", "sandbox.cpu: unknown key; did you mean 'cpus'?"),
        ('gold = "solve"', "sandbox = { cpus = -1 }", "sandbox: 'cpus' must be >= 0"),
        ("[[tasks]]", "[[task", "is not valid TOML"),
        ('gold = "solve"', 'demonstrations = "demos.jsonl"', "demonstrations: no file"),
        ('gold = "solve"', 'demonstrations = "demos"', "no function or class 'demos'"),
    ],
)
def test_mistakes_in_the_file_say_where_and_what(tmp_path, old, new, said):
    assert old in TOML
    assert said in mistakes(write(tmp_path, TOML.replace(old, new, 1)))


def test_folder_that_is_no_bundle_is_named(tmp_path):
    assert "no bundle.toml in it" in mistakes(tmp_path)
    with pytest.raises(ValueError, match="nowhere"):
        BundleTaskset.Config(path=tmp_path / "nowhere")
    (tmp_path / "later").mkdir()
    config = BundleTaskset.Config(path=tmp_path / "later")
    (tmp_path / "later").rmdir()
    with pytest.raises(BundleError, match="no such folder"):
        BundleTaskset(config)


def test_bundle_without_verifiers_tells_that_it_makes_no_reward(tmp_path):
    taskset = read(write(tmp_path, TOML.replace('verifiers = { reward = "is_right" }', "")))
    assert taskset.tasks("train")[0].score_names == ()


def test_sandbox_of_the_bundle_and_of_a_task(tmp_path):
    toml = TOML.replace(
        "[[tasks]]",
        '[sandbox]\nfiles = "shared"\nenv = { A = "1" }\nmemory_mb = 64\nneeds_isolation = true\n[[tasks]]\nsandbox = { env = { B = "2" }, memory_mb = 32 }',
    ).replace('tools = ["add"]', 'tools = ["bash"]')
    task = '[sandbox]\nfiles = "files"\n[params]\na = 1\nb = 2\n'
    folder = write(
        tmp_path, toml, **{"shared__in.txt": "x", "tasks__t__task.toml": task, "tasks__t__files__sub__more.txt": "y"}
    )
    small, filed, plain = read(folder).tasks("all")[:3]
    assert small.sandbox.env == {"A": "1", "B": "2"}
    assert small.sandbox.memory_mb == 32
    assert filed.sandbox.files == {"in.txt": b"x", "sub/more.txt": b"y"}
    assert plain.sandbox.files == {"in.txt": b"x"}
    assert all(task.needs_isolation for task in (small, filed, plain))
    bash = small.turns()[0].tools[0]
    assert bash.name == "bash"
    assert list(bash.parameters["properties"]) == ["command"]

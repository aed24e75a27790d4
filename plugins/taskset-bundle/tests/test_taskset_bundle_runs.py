from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ferrule_taskset_bundle import BundleTaskset

import ferrule
from ferrule import EpisodeFailed, Failure, Message, ToolCall, ToolError

PYTHON = """
import asyncio
import ferrule

class Box:
    def __init__(self, items, attempt, size=3):
        self.items, self.attempt, self.size, self.log = items, attempt, size, []

def put(state: Box, item: str) -> str:
    if len(state.items) >= state.size:
        raise ferrule.ToolError("full")
    state.items.append(item)
    return f"{len(state.items)} items"

async def take(state: Box) -> str:
    await asyncio.sleep(0)
    return state.items.pop()

async def count(state, sandbox):
    await asyncio.sleep(0)
    return len(state.items)

def broken(state):
    raise RuntimeError("oops")

def nothing(state): pass
def words(state): return "many"
def infinite(state): return float("inf")
async def slow(state): await asyncio.sleep(30)
def out_of_time(state): raise TimeoutError("a server")

def dies(state): raise OSError("no disk")
closed = []
def close(state, reply): closed.append((state, reply))

def talk(state, reply):
    n = len(state.log)
    state.log.append(reply.content if reply else None)
    if n == 0:
        return {"prompt": "Begin.", "tools": ["put"]}
    if n == 1:
        return ferrule.TurnSpec("You said " + reply.content, system="Be brief.")
    if n == 2:
        return {"prompt": "And now?", "tools": ["take", "put"]}
"""

TOML = """
python = "box.py"
state = "Box"
verifiers = { reward = "count" }
tools = ["put", "take"]
system = "You pack."
turns = [{ prompt = "Pack." }, { prompt = "Unpack {size}.", system = "You unpack {size}.", tools = ["take"] }, { prompt = "Again." }]
close = "close"
[[tasks]]
id = "box"
params = { items = [], size = 2 }
"""


def task(folder: Path, toml: str = TOML) -> ferrule.Task:
    (folder / "bundle.toml").write_text(toml)
    (folder / "box.py").write_text(PYTHON)
    return BundleTaskset(BundleTaskset.Config(path=folder)).tasks("all")[0]


async def test_turns_change_the_system_prompt_and_the_tools_and_keep_what_is_left_out(tmp_path):
    run = await task(tmp_path).start(0, None)
    seen = []
    while (turn := await run.next_turn()) is not None:
        seen.append((turn.system, turn.prompt, [tool.name for tool in turn.tools]))
        await run.end_turn(Message("assistant", "ok"))
    assert seen == [
        ("You pack.", "Pack.", ["put", "take"]),
        ("You unpack 2.", "Unpack 2.", ["take"]),
        ("You unpack 2.", "Again.", ["take"]),
    ]


async def test_turns_made_by_a_function_of_state_and_reply(tmp_path):
    start, end = TOML.index("turns ="), TOML.index("close =")
    run = await task(tmp_path, TOML[:start] + 'turns = "talk"\n' + TOML[end:]).start(0, None)
    first = await run.next_turn()
    assert (first.system, first.prompt, [tool.name for tool in first.tools]) == ("You pack.", "Begin.", ["put"])
    await run.end_turn(Message("assistant", "hello"))
    second = await run.next_turn()
    assert (second.system, second.prompt) == ("Be brief.", "You said hello")
    third = await run.next_turn()
    assert (third.system, [tool.name for tool in third.tools]) == ("Be brief.", ["take", "put"])
    assert await run.next_turn() is None


async def test_state_of_one_attempt_is_seen_by_no_other(tmp_path):
    box = task(tmp_path)
    one, two = await box.start(0, None), await box.start(1, None)
    assert await one.call(ToolCall("a", "put", {"item": "x"})) == "1 items"
    assert await one.call(ToolCall("b", "put", {"item": "y"})) == "2 items"
    with pytest.raises(ToolError, match="full"):
        await one.call(ToolCall("c", "put", {"item": "z"}))
    assert (await one.score(), await two.score()) == ({"reward": 2.0}, {"reward": 0.0})
    assert two.given["state"].attempt == 1
    assert await one.call(ToolCall("d", "take", {})) == "y"
    with pytest.raises(ToolError, match="there is no tool 'peek'"):
        await one.call(ToolCall("e", "peek", {}))
    assert box.metadata["params"] == {"items": [], "size": 2}


async def test_failing_tool_raises_what_it_raised(tmp_path):
    run = await task(tmp_path).start(0, None)
    with pytest.raises(IndexError):
        await run.call(ToolCall("a", "take", {}))


@pytest.mark.parametrize(
    ("verifier", "reason", "said"),
    [
        ("broken", Failure.VERIFIER_CRASHED, "RuntimeError: oops"),
        ("nothing", Failure.REWARD_MISSING, "returned None"),
        ("words", Failure.REWARD_UNREADABLE, "'many'"),
        ("infinite", Failure.REWARD_UNREADABLE, "inf"),
        ("slow", Failure.VERIFIER_TIMEOUT, "0.05"),
        ("out_of_time", Failure.VERIFIER_CRASHED, "a server"),
    ],
)
async def test_verifier_that_gives_no_number_fails_the_run(tmp_path, verifier, reason, said):
    toml = TOML.replace('"count"', f'"{verifier}"').replace("close =", "verifier_timeout = 0.05\nclose =")
    run = await task(tmp_path, toml).start(0, None)
    with pytest.raises(EpisodeFailed) as caught:
        await run.score()
    assert caught.value.reason is reason
    assert said in str(caught.value)
    assert "verifier 'reward' of task 'box'" in str(caught.value)


async def test_failing_setup_fails_the_run_and_what_it_took_is_freed(tmp_path):
    box = task(tmp_path, TOML.replace("close =", 'setup = "dies"\nclose ='))
    with pytest.raises(EpisodeFailed) as caught:
        await box.start(0, None)
    assert caught.value.reason is Failure.SETUP_FAILED
    assert "OSError: no disk" in str(caught.value)
    closed = box.parts.modules[0].closed
    assert len(closed) == 1
    closed.clear()


async def test_close_is_given_the_state_and_the_last_reply(tmp_path):
    box = task(tmp_path)
    run = await box.start(0, None)
    await run.end_turn(Message("assistant", "bye"))
    await run.close()
    closed = box.parts.modules[0].closed
    assert [reply.content for _, reply in closed] == ["bye"]
    closed.clear()


class Box(ferrule.Sandbox):
    """A sandbox that runs commands on this machine: what the tool does with one is under test here, not the sandbox."""

    id = "here"

    async def exec(self, command, *, user=None, env=None, cwd=None, timeout=None, output_limit=65536):
        process = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout)
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
            raise ferrule.CommandTimeout(timeout, out.decode(), err.decode()) from None
        return ferrule.ExecResult(out.decode()[:output_limit], err.decode(), process.returncode)

    async def read(self, path, *, user="root"):
        return Path(path).read_bytes()

    async def write(self, path, data, *, user=None, mode=0o644):
        Path(path).write_bytes(data)

    async def close(self):
        pass


async def test_bash_answers_output_and_exit_code_and_outlives_a_timeout(tmp_path):
    toml = (
        TOML.replace('["put", "take"]', '["bash"]')
        .replace('"count"', '"count"', 1)
        .replace("[[tasks]]", "[sandbox]\n[bash]\ntimeout = 0.5\noutput_limit = 4\n[[tasks]]")
    )
    run = await task(tmp_path, toml).start(0, Box())

    async def bash(command):
        return await run.call(ToolCall("x", "bash", {"command": command}))

    assert await bash("echo a; echo b >&2; exit 3") == "a\nb\n[exit code 3]"
    assert await bash("true") == "[exit code 0]"
    assert await bash("printf abcdefgh") == "abcd\n[exit code 0]"
    assert await bash("exec sleep 20") == "[killed after 0.5 s]"
    with pytest.raises(ToolError, match="'command' is missing"):
        await run.call(ToolCall("x", "bash", {}))

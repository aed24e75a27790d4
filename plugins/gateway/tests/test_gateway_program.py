"""The harness ``program``: real programs, started for real plays, with a model whose words are fixed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog
from ferrule_gateway.guard import RUN
from ferrule_gateway.program import MARK, Program
from ferrule_harness_tools import Tools

import ferrule
from ferrule import Failure, Message, Task, TaskRun, Termination, ToolSpec, TurnSpec, masking
from ferrule.config.schema import RolloutConfig
from ferrule.rollout import Player

END = "<|im_end|>"
PAGE = Path(__file__).parents[3] / "docs" / "programs.md"
LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})

HEAD = """
import json, os, sys, time, urllib.error, urllib.request

def send(url, body=None):
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]

def ask(messages, tools=None):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": tools}
    status, out = send(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    return out["choices"][0]["message"] if status == 200 else (status, out["code"])

def play(what, body=None):
    return send(os.environ["FERRULE_PLAY_URL"] + "/" + what, body)

task = json.load(open(os.environ["FERRULE_TASK"]))
hi = [{"role": "user", "content": "hi"}]
"""


def said(text: str) -> str:
    return text + END


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Rooms(Task):
    """As many turns as *prompts*; ``look`` answers what it was told to look at. Scored by how many turns ended."""

    id, metadata, score_names = "rooms", {}, ("ended",)

    def __init__(self, *prompts: str) -> None:
        self.prompts = prompts or ("hi",)
        self.runs: list[RoomsRun] = []

    async def start(self, attempt: int, sandbox: Any) -> TaskRun:
        self.runs.append(RoomsRun(list(self.prompts)))
        return self.runs[-1]


@attrs.define(eq=False)
class RoomsRun(TaskRun):
    left: list[str]
    replies: list[str] = attrs.field(factory=list)
    looks: list[Any] = attrs.field(factory=list)
    closed: int = 0

    async def next_turn(self) -> TurnSpec | None:
        return TurnSpec(self.left.pop(0), "be brief", (LOOK,)) if self.left else None

    async def call(self, call: ferrule.ToolCall) -> str:
        self.looks.append(call.arguments.get("at"))
        if call.arguments.get("at") == "the sun":
            raise ValueError("too bright")
        if call.arguments.get("at") == "the void":
            raise ferrule.EpisodeFailed(Failure.SANDBOX_FAILED, "the room is gone")
        return f"seen {call.arguments.get('at')}"

    async def end_turn(self, reply: Message) -> None:
        self.replies.append(reply.content)

    async def score(self) -> dict[str, float]:
        return {"ended": float(len(self.replies))}

    async def close(self) -> None:
        self.closed += 1


@attrs.define(eq=False)
class Stage:
    """Programs on it are played against a script."""

    folder: Path
    renderer: Any
    scripted: Any
    harnesses: list[Program] = attrs.field(factory=list)
    sampler: Any = None

    def program(self, text: str, **options: Any) -> Program:
        name = f"agent{len(self.harnesses)}.py"
        (self.folder / name).write_text(HEAD + textwrap.dedent(text))
        return self.harness(command=("{python}", name), **options)

    def harness(self, **options: Any) -> Program:
        harness = Program(Program.Config(**{"cwd": self.folder, "grace": 2.0, **options}))
        self.harnesses.append(harness)
        return harness

    def player(self, harness: Any, script: Any, **limits: Any) -> Player:
        if isinstance(script, list):
            answers = script
            script = lambda prompt, number, key: answers[min(number, len(answers) - 1)]  # noqa: E731
        self.sampler = self.scripted(self.renderer, script, limits.pop("context_length", 32768))
        return Player(
            harness, self.renderer, self.sampler, config=RolloutConfig(**{"retries": 0, **limits}), run_seed=1
        )

    async def play(self, text: str, script: Any, task: Task | None = None, **limits: Any) -> ferrule.Episode:
        options = limits.pop("options", {})
        return await self.player(self.program(text, **options), script, **limits).play(task or Rooms())


@pytest.fixture
async def stage(tmp_path, renderer, scripted):
    stage = Stage(tmp_path, renderer, scripted)
    yield stage
    for harness in stage.harnesses:
        gateway = harness._gateway
        assert gateway is None or not gateway.sessions, "an episode's session outlived it"
        await harness.close()
    assert alive() == [], "a program outlived its episode"


def alive() -> list[int]:
    """The processes of every program that a test of this process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rsplit(") ", 1)[1][0]
                mine = f"STAGE={os.getpid()}".encode()
                if state != "Z" and mine in variables and any(v.startswith(MARK.encode()) for v in variables):
                    found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    monkeypatch.setenv("STAGE", str(os.getpid()))


def of_page(name: str) -> str:
    """A file that the docs show."""
    return dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))[name]


async def test_a_program_with_a_loop_of_its_own_ends_the_turn_with_its_last_reply(stage) -> None:
    (stage.folder / "summer.py").write_text(of_page("summer.py"))
    task = Rooms("what is 3 + 4?")
    harness = stage.harness(command=("{python}", "summer.py"))
    episode = await stage.player(harness, [said("let me see"), said("7")]).play(task)
    assert (episode.termination, episode.reward, episode.failure) == (Termination.ENV_DONE, 1.0, None)
    assert task.runs[0].replies == ["7"]
    assert [(m.role, m.content) for m in episode.messages] == [
        ("system", "be brief"),
        ("user", "what is 3 + 4?"),
        ("assistant", "let me see"),
        ("user", "Answer with a number alone."),
        ("assistant", "7"),
    ]
    (trajectory,) = episode.trajectories
    (segment,) = trajectory.segments
    prompts, samples = stage.sampler.prompts, stage.sampler.samples
    ((key, shown),) = prompts.items()
    for step, prompt, sample in zip(trajectory.steps, shown, samples[key], strict=True):
        assert segment.ids[: step.start].tolist() == prompt.tolist()
        assert segment.ids[step.start : step.stop].tolist() == sample.ids.tolist()
        assert segment.logprobs[step.start : step.stop].tolist() == sample.logprobs.tolist()
        assert segment.version[step.start : step.stop].tolist() == sample.versions.tolist()


HARD = [
    said(call("look", at="the door") + "\n" + call("look", at="the sun")),
    said(call("jump")),
    said('<tool_call>\n{"name": "look", "arguments": {"at": "x"\n</tool_call>'),
    said("first done"),
    said("<think>\nhm\n</think>\n\n" + call("look", at=" the\twindow é🙂 ")),
    said("second done"),
]


async def test_the_tasks_turns_and_tools_through_a_program_are_what_they_are_in_the_tool_loop(stage) -> None:
    (stage.folder / "agent.py").write_text(of_page("agent.py"))
    tasks = Rooms("first", "second"), Rooms("first", "second")
    program = stage.harness(command=("{python}", "agent.py"))
    mine = await stage.player(program, HARD).play(tasks[0])
    loop = await stage.player(Tools(Tools.Config()), HARD).play(tasks[1])
    assert mine.error is None
    assert mine.messages == loop.messages
    assert (mine.reward, mine.termination, mine.metrics) == (loop.reward, loop.termination, loop.metrics)
    assert loop.metrics["tool_errors"] == 3.0
    assert tasks[0].runs[0] != tasks[1].runs[0]
    assert [(r.replies, r.looks) for r in tasks[0].runs] == [(r.replies, r.looks) for r in tasks[1].runs]
    (one,), (other,) = mine.trajectories, loop.trajectories
    assert len(one.steps) == 6
    for field in ("ids", "kind", "logprobs", "version"):
        rows = [[getattr(segment, field).tolist() for segment in each.segments] for each in (one, other)]
        assert rows[0] == rows[1]


async def test_a_program_that_fails_fails_the_episode_with_the_end_of_its_output_and_is_played_again(stage) -> None:
    text = """
    ask(hi)
    print("token:", os.environ["OPENAI_API_KEY"])
    sys.exit("x" * 5000 + " it broke: " + os.environ["OPENAI_API_KEY"])
    """
    player = stage.player(stage.program(text), [said("ok")], retries=1)
    task = Rooms()
    episode = await player.play(task)
    assert (episode.failure, episode.reward) == (Failure.HARNESS_FAILED, None)
    assert episode.error.startswith("{python} agent0.py exited with 1: …")
    assert episode.error.endswith("it broke: ***")
    assert len(episode.error) < 600
    assert episode.artifacts["stdout"] == "token: ***\n"
    assert [run.closed for run in task.runs] == [1, 1]
    assert player.stats.live == {"episodes": 0, "plays": 0, "sessions": 0}


async def test_a_cut_stands_however_the_program_takes_it(stage) -> None:
    text = """
    ask(hi)
    refusals = [ask(hi + [{"role": "user", "content": "more"}]), play("calls", {"tool_calls": []}), play("end", {})]
    sys.exit(str(refusals))
    """
    episode = await stage.play(text, [said("ok")], max_steps=1)
    assert (episode.termination, episode.reward, episode.failure) == (Termination.MAX_STEPS, 0.0, None)
    assert episode.metrics["cut"] == 1.0
    assert episode.artifacts["stderr"].count("rollout_terminated") == 3
    assert [m.content for m in episode.messages if m.role == "assistant"] == ["ok"]


LONG = """
    first = ask(hi)
    long = hi + [first, {"role": "user", "content": "much " * 500}]
    assert ask(long) == (400, "context_length_exceeded"), "too long"
"""


async def test_a_program_that_shortens_its_conversation_goes_on_after_the_end_of_the_context(stage) -> None:
    text = (
        LONG
        + """
    short = [{"role": "user", "content": "in short"}]
    assert ask(short)["content"] == "two", "after shortening"
    """
    )
    episode = await stage.play(text, [said("one"), said("two")], context_length=400)
    assert (episode.termination, episode.failure) == (Termination.ENV_DONE, None), episode.error
    (trajectory,) = episode.trajectories
    assert [step.message.content for step in trajectory.steps] == ["one", "two"]
    assert len(trajectory.segments) == 2


@pytest.mark.parametrize("code", [0, 3])
async def test_a_program_that_gives_up_at_the_end_of_the_context_is_cut_there_and_scored(stage, code) -> None:
    episode = await stage.play(f"{LONG}\n    sys.exit({code})\n", [said("one")], context_length=400)
    assert (episode.termination, episode.failure) == (Termination.MAX_RESPONSE_LENGTH, None), episode.error
    assert episode.reward == 0.0


async def test_openais_client_takes_the_end_of_the_rollout_as_final(stage) -> None:
    (stage.folder / "agent.py").write_text(of_page("agent.py"))
    harness = stage.harness(command=("{python}", "agent.py"))
    player = stage.player(harness, [said(call("look", at="it"))], max_steps=2)
    episode = await player.play(Rooms())
    assert (episode.termination, episode.failure) == (Termination.MAX_STEPS, None)
    assert "the rollout has ended: max_steps" in episode.artifacts["stderr"]
    counters = harness._gateway.counters
    assert (counters.turns, counters.errors) == (2, 1)  # it was told once, and did not ask again


async def test_a_program_that_goes_on_after_the_cut_is_ended(stage) -> None:
    text = """
    for n in range(1000):
        ask(hi + [{"role": "user", "content": str(n)}])
        time.sleep(0.05)
    """
    began = asyncio.get_running_loop().time()
    episode = await stage.play(text, [said("ok")], max_steps=1, options={"grace": 0.5})
    assert (episode.termination, episode.reward, episode.failure) == (Termination.MAX_STEPS, 0.0, None)
    assert asyncio.get_running_loop().time() - began < 15


async def test_at_its_timeout_a_program_may_tidy_up_and_nothing_that_it_started_is_left(stage) -> None:
    text = f"""
    import signal, subprocess
    ask(hi)
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    bare = subprocess.Popen(["env", "-i", {sys.executable!r}, "-c", "import time; time.sleep(600)"])
    open("bare", "w").write(str(bare.pid))
    def tidy(*_):
        print("tidied", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, tidy)
    while True:
        time.sleep(1)
    """
    episode = await stage.play(text, [said("ok")], timeout=3.0)
    assert (episode.termination, episode.reward, episode.failure) == (Termination.TIMEOUT, 0.0, None)
    assert episode.artifacts["stdout"] == "tidied\n"
    assert [m.content for m in episode.messages if m.role == "assistant"] == ["ok"]
    bare = int((stage.folder / "bare").read_text())
    assert bare not in ferrule.process_table(), "what has cleared its environment and lost its parent is left"


async def test_what_a_program_leaves_running_ends_with_the_episode(stage) -> None:
    text = """
    import subprocess
    subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=sys.stdout)
    ask(hi)
    """
    episode = await stage.play(text, [said("ok")])
    assert (episode.termination, episode.failure) == (Termination.ENV_DONE, None)
    assert alive() == []


@pytest.mark.parametrize("during", ["the model", "a tool", "the program"])
async def test_a_cancel_ends_the_program_and_its_session(stage, during: str) -> None:
    reached = asyncio.Event()

    async def for_ever() -> str:
        reached.set()
        await asyncio.sleep(600)
        return said("never")

    class Slow(Rooms):
        async def start(self, attempt, sandbox):
            run = await super().start(attempt, sandbox)
            run.call = lambda call: for_ever()
            return run

    text = {
        "the model": "ask(hi)",
        "a tool": 'play("calls", {"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]})',
        "the program": 'open("there", "w").close()\ntime.sleep(600)',
    }[during]
    player = stage.player(stage.program(text), lambda *_: for_ever())
    playing = asyncio.ensure_future(player.play(Slow()))
    while not reached.is_set() and not (stage.folder / "there").exists():
        await asyncio.sleep(0.02)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert player.stats.live == {"episodes": 0, "plays": 0, "sessions": 0}
    assert stage.sampler.open_now.total() == 0


async def test_a_broken_engine_is_told_once_and_is_why_the_episode_failed(stage) -> None:
    text = """
    refusals = [ask(hi), ask(hi), play("turn")[1]["code"]]
    sys.exit(str(refusals))
    """
    episode = await stage.play(text, [RuntimeError("no more memory")])
    assert (episode.failure, episode.reward) == (Failure.ENGINE_FAILED, None)
    assert "no more memory" in episode.error
    assert episode.artifacts["stderr"].count("engine_failed") == 3
    assert len(stage.sampler.prompts[next(iter(stage.sampler.prompts))]) == 1


async def test_a_tool_that_fails_the_run_is_why_the_episode_failed(stage) -> None:
    text = """
    message = ask(hi, task["tools"])
    status, error = play("calls", {"tool_calls": message["tool_calls"]})
    assert (status, error["code"]) == (500, "sandbox_failed")
    time.sleep(600)
    """
    episode = await stage.play(text, [said(call("look", at="the void"))], options={"grace": 0.2})
    assert (episode.failure, episode.error) == (Failure.SANDBOX_FAILED, "the room is gone")


async def test_a_request_made_again_is_recorded_once_and_calls_made_again_run_once(stage) -> None:
    text = """
    first, again = ask(hi, task["tools"]), ask(hi, task["tools"])
    assert again["content"] is None and len(again["tool_calls"]) == 1
    answers = [play("calls", {"tool_calls": again["tool_calls"]}) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][1]["messages"][0]["content"] == "seen it"
    ask(hi + [again, *answers[0][1]["messages"]], task["tools"])
    """
    task = Rooms()
    episode = await stage.play(text, [said("lost"), said(call("look", at="it")), said("done")], task)
    assert episode.failure is None, episode.error
    assert task.runs[0].looks == ["it"]
    assert [m.content for m in episode.messages if m.role == "assistant"] == ["", "done"]
    assert episode.metrics["messages"] == 2.0
    (trajectory,) = episode.trajectories
    assert len(trajectory.steps) == 2
    assert len(trajectory.segments) == 1


async def test_turns_are_asked_for_one_after_the_other_and_may_end_in_the_programs_words(stage) -> None:
    text = """
    assert play("turn")[1]["messages"] == play("turn")[1]["messages"] == task["messages"]
    ask(hi)
    assert play("end", {"message": "my own words"}) == (200, {})
    assert ask(hi) == (400, "no_turn")
    status, turn = play("turn")
    assert (status, turn["index"], turn["messages"]) == (200, 1, [{"role": "user", "content": "second"}])
    ask(hi + [{"role": "user", "content": "second"}])
    assert play("end", {"message": {"role": "user", "content": "no"}})[1]["param"] == "message.role"
    assert play("calls", {"tool_calls": [{"id": "a"}]})[1]["param"] == "tool_calls[0]"
    assert play("calls", {})[1]["param"] == "tool_calls"
    assert play("dance", {})[0] == 404
    assert play("end", {})[0] == 200
    assert play("turn")[0] == 204
    assert ask(hi) == (400, "rollout_terminated")
    """
    task = Rooms("first", "second")
    episode = await stage.play(text, [said("one"), said("two")], task)
    assert episode.failure is None, episode.error
    assert (episode.termination, episode.reward) == (Termination.ENV_DONE, 2.0)
    assert task.runs[0].replies == ["my own words", "two"]


async def test_a_program_that_leaves_before_the_tasks_last_turn_is_scored_where_it_stands(stage) -> None:
    episode = await stage.play("ask(hi)", [said("ok")], Rooms("first", "second"))
    assert (episode.termination, episode.reward, episode.failure) == (Termination.UNKNOWN, 1.0, None)


async def test_a_program_that_never_asks_is_scored_and_noticed(stage) -> None:
    with structlog.testing.capture_logs() as logs:
        episode = await stage.play("print('nothing to ask')", [said("ok")])
    assert (episode.termination, episode.failure) == (Termination.ENV_DONE, None)
    assert [e["output"] for e in logs if e["event"] == "program_asked_nothing"] == ["nothing to ask"]


async def test_a_program_that_keeps_tokens_itself_is_captured_too(stage) -> None:
    ids = stage.renderer.render([Message("user", "hi")]).ids.tolist()
    text = f"""
    body = {{"model": "policy", "prompt": {ids}, "return_token_ids": True}}
    status, out = send(os.environ["OPENAI_BASE_URL"] + "/completions", body)
    got = out["choices"][0]["token_ids"]
    status, out = send(os.environ["OPENAI_BASE_URL"] + "/completions", {{**body, "prompt": body["prompt"] + got + [7]}})
    assert status == 200
    """
    episode = await stage.play(text, [said("one"), said("two")])
    assert episode.failure is None, episode.error
    (segment,) = episode.trajectories[0].segments
    ((_, samples),) = stage.sampler.samples.items()
    assert segment.ids.tolist() == [*ids, *samples[0].ids.tolist(), 7, *samples[1].ids.tolist()]


async def test_agents_side_by_side_are_rows_of_their_own(stage) -> None:
    text = """
    from concurrent.futures import ThreadPoolExecutor
    def work(n):
        messages = [{"role": "user", "content": f"worker {n}"}]
        for turn in range(4):
            messages.append(ask(messages))
            assert messages[-1]["content"] == f"worker {n} turn {turn}", messages[-1]
            messages.append({"role": "user", "content": "go on"})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    """

    def script(prompt: str, number: int, key: str) -> str:
        worker = re.search(r"worker (\d)", prompt).group(1)
        return said(f"worker {worker} turn {prompt.count('go on')}")

    episode = await stage.play(text, script)
    assert episode.failure is None, episode.error
    (trajectory,) = episode.trajectories
    assert [len(trajectory.segments), len(trajectory.steps)] == [4, 16]
    assert episode.metrics["messages"] == 16.0


async def test_the_programs_environment_is_what_the_configuration_says(stage, monkeypatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "a-secret-of-the-run")
    monkeypatch.setenv("OPENAI_API_KEY", "a-real-key")
    monkeypatch.setenv("NO_PROXY", "example.org")
    text = """
    ask(hi)
    names = ("ACME_API_KEY", "MINE", "NO_PROXY", "PATH", "FERRULE_SESSION")
    print(json.dumps({name: os.environ.get(name) for name in names}))
    """
    seen = []
    for inherit in (True, False):
        episode = await stage.play(text, [said("ok")], options={"inherit": inherit, "env": {"MINE": "1", "STAGE": "-"}})
        assert episode.failure is None, episode.error
        seen.append(json.loads(episode.artifacts["stdout"]))
    assert seen[0]["ACME_API_KEY"] == "***"
    assert seen[1]["ACME_API_KEY"] is None
    assert seen[0]["NO_PROXY"].startswith("example.org,127.0.0.1")
    for each in seen:
        assert (each["MINE"], each["PATH"]) == ("1", os.environ["PATH"])
        assert each["FERRULE_SESSION"].startswith("rooms-0-")


async def test_the_sampling_of_the_run_holds_whatever_a_request_asks_for(stage) -> None:
    text = """
    body = {"model": "policy", "messages": hi, "temperature": 0.0, "top_p": 0.5, "max_tokens": 1, "stop": "<|im_end|>"}
    status, out = send(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    assert out["choices"][0]["message"]["content"] == "as long as it likes", out
    """
    player = stage.player(stage.program(text), [said("as long as it likes")])
    player.sampling = ferrule.SamplingParams(temperature=1.5, max_tokens=100)
    episode = await player.play(Rooms())
    assert episode.failure is None, episode.error
    (params,) = stage.sampler.params
    assert (params.temperature, params.top_p, params.max_tokens) == (1.5, 1.0, 100)


async def test_a_flood_of_output_is_bounded(stage) -> None:
    text = """
    ask(hi)
    for _ in range(200):
        print("x" * 100_000)
    """
    episode = await stage.play(text, [said("ok")], options={"max_output": 1000})
    assert episode.failure is None, episode.error
    assert 1000 <= len(episode.artifacts["stdout"]) < 1200
    assert "bytes dropped" in episode.artifacts["stdout"]


async def test_all_episodes_share_one_gateway_which_ends_with_the_run(stage) -> None:
    harness = stage.program("ask(hi)")
    player = stage.player(harness, [said("ok")])
    episodes = await asyncio.gather(*(player.play(Rooms(), n) for n in range(5)))
    assert [e.error for e in episodes] == [None] * 5
    gateway = harness._gateway
    assert gateway.counters.turns == 5
    await harness.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*gateway.url.removeprefix("http://").split(":"))
    await harness.close()


def test_a_program_that_is_not_there_is_missed_before_the_run(tmp_path) -> None:
    for command in (("no-such-program",), ("./agent", "x")):
        with pytest.raises(ferrule.FerruleError, match=re.escape(f"no program {command[0]!r}")):
            Program(Program.Config(command=command, cwd=tmp_path))


def test_a_gateway_that_others_can_reach_must_be_meant(tmp_path) -> None:
    with pytest.raises(ferrule.FerruleError, match="allow_remote"):
        Program(Program.Config(command=("{python}",), cwd=tmp_path, host="0.0.0.0"))


async def test_a_port_that_is_taken_is_why_the_episode_failed(stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        episode = await stage.play("ask(hi)", [said("ok")], options={"port": port})
    assert episode.failure is Failure.HARNESS_FAILED
    assert f"port {port} of 127.0.0.1 is taken" in episode.error


async def test_a_port_that_is_taken_fails_the_run_before_anything_is_played(stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        harness = stage.harness(command=("{python}", "-c", ""), port=port)
        with pytest.raises(ferrule.FerruleError, match=f"port {port} of 127.0.0.1 is taken"):
            await harness.start(None)


async def test_a_port_is_held_from_the_start_of_the_run_to_its_end(stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    harness = stage.program("ask(hi)\nprint(os.environ['OPENAI_BASE_URL'])", port=port)
    for play in (False, True):
        await harness.start(None)
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        if play:
            episode = await stage.player(harness, [said("ok")]).play(Rooms())
            assert episode.failure is None, episode.error
            assert episode.artifacts["stdout"].startswith(f"http://127.0.0.1:{port}/s/")
        await harness.close()
        socket.create_server(("127.0.0.1", port)).close()


async def test_a_programs_token_opens_its_own_session_and_nothing_else(stage) -> None:
    text = """
    import pathlib
    mine, base = os.environ["FERRULE_SESSION"], os.environ["OPENAI_BASE_URL"].split("/s/")[0]
    pathlib.Path(mine + ".here").touch()
    while len(found := list(pathlib.Path().glob("*.here"))) < 2:
        time.sleep(0.01)
    (other,) = {each.stem for each in found} - {mine}
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}

    def status(method, path, **more):
        data = json.dumps({"model": "m", "messages": hi}).encode() if method == "POST" else None
        request = urllib.request.Request(base + path, data, headers | more, method=method)
        try:
            return urllib.request.urlopen(request).status
        except urllib.error.HTTPError as error:
            return error.code

    ask(hi)
    for method, path in (
        ("GET", "/sessions"),
        ("GET", f"/sessions/{mine}/trajectory"),
        ("GET", f"/sessions/{other}/trajectory"),
        ("DELETE", f"/sessions/{other}"),
        ("GET", f"/s/{other}/v1/models"),
        ("GET", f"/s/{other}/play/turn"),
        ("POST", f"/s/{other}/v1/chat/completions"),
        ("POST", f"/s/{mine}/../{other}/v1/chat/completions"),
        ("POST", f"/s/{mine}%2F..%2F{other}/v1/chat/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/sessions"),
    ):
        assert status(method, path) in (401, 404), (method, path)
    assert status("POST", "/v1/chat/completions", **{"x-session-affinity": other}) == 401
    assert status("POST", "/v1/chat/completions", **{"x-session-affinity": mine}) == 200
    assert status("GET", f"/s/{mine}/v1/models") == 200
    assert play("turn")[0] == 200
    pathlib.Path(mine + ".done").touch()
    while len(list(pathlib.Path().glob("*.done"))) < 2:
        time.sleep(0.01)
    print(os.environ["OPENAI_API_KEY"])
    """
    player = stage.player(stage.program(text), [said("ok")])
    before = set(masking._known)
    episodes = await asyncio.gather(player.play(Rooms(), 0), player.play(Rooms(), 1))
    assert [e.error for e in episodes] == [None, None]
    assert [e.artifacts["stdout"] for e in episodes] == ["***\n"] * 2
    assert [len(e.trajectories[0].steps) for e in episodes] == [1, 1]
    assert masking._known - before == {stage.harnesses[0]._gateway.token}  # what opens nothing is no secret


async def test_the_programs_of_a_run_that_is_killed_end_with_it(stage) -> None:
    text = f"""
    import os, subprocess, sys, time
    from ferrule_gateway.guard import RUN, Guard
    guard = Guard()
    program = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    env = {{**os.environ, RUN: str(guard.folder), {MARK!r}: "one"}}
    subprocess.Popen([sys.executable, "-c", program], env=env, start_new_session=True)
    (guard.folder / "task.json").touch()
    print(guard.folder, flush=True)
    time.sleep(600)
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(text), stdout=asyncio.subprocess.PIPE
    )
    folder = Path((await process.stdout.readline()).decode().strip())
    while len(alive()) < 2:
        await asyncio.sleep(0.02)
    process.kill()
    await process.wait()
    async with asyncio.timeout(30):
        while alive() or folder.exists():
            await asyncio.sleep(0.02)


async def test_a_run_leaves_no_folder_and_its_programs_bear_its_mark(stage) -> None:
    harness = stage.program(f"ask(hi)\nprint(os.environ[{RUN!r}], os.environ['FERRULE_TASK'])")
    episode = await stage.player(harness, [said("ok")]).play(Rooms())
    folder, task = map(Path, episode.artifacts["stdout"].split())
    assert folder.is_dir()
    assert task.is_relative_to(folder)
    assert not task.parent.exists()
    await harness.close()
    assert not folder.exists()


async def test_whatever_a_program_sends_its_task_it_is_told_what_is_wrong(stage) -> None:
    text = """
    def look(**function):
        status, out = play("calls", {"tool_calls": [{"id": str(len(seen)), "function": {"name": "look", **function}}]})
        seen.append(out["messages"][0]["content"] if status == 200 else out)
        return seen[-1]

    seen = []
    assert "nested too deep" in look(arguments="[" * 5000)
    assert "not an object" in look(arguments="5")
    assert "not an object" in look(arguments=5)
    assert "not JSON" in look(arguments="{")
    assert look(arguments={"at": "it"}) == "seen it"
    assert look(arguments=json.dumps({"at": chr(0xD800)})) == "seen ?"
    for message, param in ((5, "message"), ({"content": {"a": 1}}, "message.content"),
                           ({"content": "x", "tool_calls": 5}, "message.tool_calls"), ({"role": ["x"]}, "message.role"),
                           ({"role": "user", "content": "x"}, "message.role")):
        status, error = play("end", {"message": message})
        assert (status, error["param"]) == (400, param), error
    assert play("end", {"message": {"content": [{"type": "text", "text": "in parts"}]}})[0] == 200
    """
    task = Rooms()
    episode = await stage.play(text, [said("ok")], task)
    assert episode.failure is None, episode.error
    assert task.runs[0].replies == ["in parts"]


async def test_a_program_that_removes_what_it_was_given_harms_no_other(stage) -> None:
    player = stage.player(
        stage.program("import shutil\nshutil.rmtree(os.environ['FERRULE_PROGRAMS'])\nask(hi)"), [said("ok")]
    )
    for attempt in range(2):
        episode = await player.play(Rooms(), attempt)
        assert episode.failure is None, episode.error

"""``ferrule gateway``: a gateway that runs alone, is stopped in an orderly way, and is killed without losing a turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import socket
import stat
import struct
import sys
from pathlib import Path

import aiohttp
import pytest
from ferrule_test_assets import byte_tokenizer

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]

CONFIG = """
[renderer]
use = "chatml"
family = "qwen3"
[model]
tokenizer = "{tokenizer}"
[upstream]
urls = ["{url}"]
[sampling]
max_tokens = 60
[gateway]
store = "captured"
"""


class Running:
    """The command in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = self.token = ""
        self.out: list[str] = []

    async def line(self) -> str:
        assert self.process.stdout is not None
        line = (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode()
        self.out.append(line)
        return line

    async def ended(self) -> tuple[int, str, str]:
        """Its exit code, and all that it wrote."""
        out, err = await asyncio.wait_for(self.process.communicate(), 60)
        return self.process.returncode or 0, "".join(self.out) + out.decode(), err.decode()

    async def call(self, method: str, path: str, body=None):
        headers = {"authorization": f"Bearer {self.token}"}
        async with (
            aiohttp.ClientSession() as http,
            http.request(method, self.url + path, json=body, headers=headers) as got,
        ):
            return got.status, await got.json()

    async def chat(self, id_: str, messages):
        return await self.call("POST", f"/s/{id_}/v1/chat/completions", {"model": "m", "messages": messages})


@pytest.fixture
async def run(tmp_path: Path):
    """``await run(url, *flags)``: start it; with ``json``, wait until it says where it serves."""
    running = []

    async def start(url: str, *flags: str, config: str = CONFIG, wait: bool = True) -> Running:
        (tmp_path / "gateway.toml").write_text(config.format(tokenizer=byte_tokenizer(), url=url))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ferrule", "gateway", "gateway.toml", *flags),
            cwd=tmp_path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "FERRULE_LOG": "debug", "TMPDIR": str(tmp_path)},
        )
        out = Running(process)
        running.append(process)
        if wait:
            facts = json.loads(await out.line())
            out.url, out.token = facts["url"], Path(facts["token_file"]).read_text().strip()
        return out

    yield start
    for process in running:
        if process.returncode is None:
            process.kill()
            await process.wait()


def answer(prompt: str, number: int) -> str:
    return f"answer {number}{END}"


async def converse(running: Running, id_: str, turns: int) -> list:
    messages = list(HELLO)
    for _ in range(turns):
        status, out = await running.chat(id_, messages)
        assert status == 200, out
        messages += [out["choices"][0]["message"], {"role": "user", "content": "more"}]
    return messages


async def test_what_was_captured_is_readable_after_a_kill_in_the_middle_of_a_request(run, stub, tmp_path) -> None:
    asked, number = asyncio.Event(), 0

    async def script(prompt: str, at: int) -> str:
        nonlocal number
        number += 1
        if number == 6:
            asked.set()
            await asyncio.sleep(60)
        return f"<think>\nt\n</think>\n\nanswer {at}{END}"

    upstream = await stub(script)
    first = await run(upstream.url, "--json")
    assert (await first.call("POST", "/sessions", {"id": "one", "metadata": {"task": 1}}))[0] == 201
    messages = await converse(first, "one", 2)
    await first.chat("one", messages[:-2])  # the last again: sampled anew in its place
    await first.chat("one", [{"role": "user", "content": "another conversation"}])
    await first.call("POST", "/sessions", {"id": "empty"})
    assert (await first.call("GET", "/sessions/one"))[1]["turns"] == 4
    _, before = await first.call("GET", "/sessions/one/trajectory")
    again = messages[:-2]
    _, out = await first.chat("one", again)  # and once more
    _, before = await first.call("GET", "/sessions/one/trajectory")
    dying = asyncio.ensure_future(first.chat("one", [*again, out["choices"][0]["message"], *HELLO]))
    await asked.wait()
    first.process.kill()
    await first.process.wait()
    with pytest.raises(aiohttp.ClientError):
        await dying
    # A line that the kill cut short is left out.
    with (tmp_path / "captured" / "one.jsonl").open("ab") as file:
        file.write(b'{"from": 3, "tok')

    second = await run(upstream.url, "--json")
    assert second.token != first.token
    status, after = await second.call("GET", "/sessions/one/trajectory")
    assert status == 200
    assert after == {**before, "state": "closed"}
    assert len(after["segments"]) > 1
    listed = (await second.call("GET", "/sessions"))[1]["data"]
    assert [(each["id"], each["state"]) for each in listed] == [("empty", "closed"), ("one", "closed")]
    one = (await second.call("GET", "/sessions/one"))[1]
    assert one["metadata"] == {"task": 1}
    assert (await second.call("GET", "/sessions/empty/trajectory"))[1]["segments"] == []
    status, out = await second.chat("one", HELLO)
    assert (status, out["error"]["message"]) == (404, "the session 'one' is closed: create another")
    _, out = await second.call("POST", "/sessions", {"id": "one"})
    assert out["error"]["code"] == "session_exists"
    assert "in the store: take another id, or DELETE it first" in out["error"]["message"]
    assert (await second.call("DELETE", "/sessions/one"))[0] == 200
    assert (await second.call("GET", "/sessions/one/trajectory"))[0] == 404
    assert [path.name for path in (tmp_path / "captured").iterdir()] == ["empty.jsonl"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_lets_what_is_in_flight_end_and_a_second_one_does_not_wait(run, stub, number, tmp_path) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def script(prompt: str, at: int) -> str:
        asked.set()
        await go.wait()
        return f"done{END}"

    upstream = await stub(script)
    for patient in (True, False):
        asked.clear()
        go.clear()
        running = await run(upstream.url, "--json")
        await running.call("POST", "/sessions", {"id": f"s{patient}"})
        request = asyncio.ensure_future(running.chat(f"s{patient}", HELLO))
        await asked.wait()
        running.process.send_signal(number)
        await asyncio.sleep(0.3)
        if patient:
            go.set()
            assert (await request)[1]["choices"][0]["message"]["content"] == "done"
        else:
            running.process.send_signal(number)
        code, _, err = await running.ended()
        assert code == (0 if patient else 130)
        assert "in flight: 1" in err
        if patient:
            assert "stopped after" in err
            assert "1 turn, 5 tokens sampled" in err
        else:
            await asyncio.gather(request, return_exceptions=True)
        lines = (tmp_path / "captured" / f"s{patient}.jsonl").read_bytes().splitlines()
        assert len(lines) == 1 + patient


async def test_clients_that_leave_in_the_middle_of_an_answer_or_take_none_do_not_keep_it_from_ending(run, stub) -> None:
    upstream = await stub(lambda prompt, number: "x" * 20_000 + END)
    gateway = await run(upstream.url, "--json", "--set", "sampling.max_tokens=25000")
    await gateway.call("POST", "/sessions", {"id": "first"})
    assert (await gateway.chat("first", HELLO))[0] == 200
    host, port = gateway.url.removeprefix("http://").split(":")
    head = f"GET /sessions/first/trajectory HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.token}\r\n\r\n"
    clients = []
    for _ in range(2):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(head.encode() * 60)
        clients.append(client)
    await asyncio.sleep(1.0)  # until what they do not take fills what lies between
    clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    clients[0].close()
    assert (await gateway.call("GET", "/sessions/first"))[0] == 200
    gateway.process.terminate()
    while "stopping" not in (line := (await gateway.process.stderr.readline()).decode()):
        assert "Traceback" not in line
    await asyncio.sleep(0.3)
    gateway.process.terminate()
    code, _, err = await gateway.ended()
    clients[1].close()
    assert code == 130
    assert "Traceback" not in err


async def test_it_says_where_it_serves_and_how_to_point_a_client_at_it_and_never_the_token(run, stub, tmp_path) -> None:
    upstream = await stub(answer)
    running = await run(upstream.url, "--token-file", "the.token", "--port", "0", wait=False)
    while "trajectory" not in await running.line():
        pass
    said = "".join(running.out)
    file = tmp_path / "the.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "captured").stat().st_mode) == 0o700
    running.token = file.read_text().strip()
    running.url = re.search(r"at (http://\S+)", said)[1]
    assert f"export OPENAI_BASE_URL={running.url}/s/session-1/v1" in said
    assert 'export OPENAI_API_KEY="$(cat the.token)"' in said
    assert (await running.call("POST", "/sessions", {"id": "session-1"}))[0] == 201
    await converse(running, "session-1", 2)
    running.process.send_signal(signal.SIGTERM)
    code, out, err = await running.ended()
    assert code == 0
    assert running.token not in out + err
    assert running.token not in (tmp_path / "captured" / "session-1.jsonl").read_text()
    # What is said after another start holds as well: that session is taken.
    running = await run(upstream.url, wait=False)
    while "trajectory" not in await running.line():
        pass
    assert '-d \'{"id": "session-2"}\'' in "".join(running.out)


async def test_without_a_terminal_the_token_lies_in_a_file_that_goes_with_the_process(run, stub) -> None:
    upstream = await stub(answer)
    running = await run(upstream.url, wait=False)
    while "trajectory" not in await running.line():
        pass
    file = Path(re.search(r'cat (\S+)\)"', "".join(running.out))[1])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    running.process.send_signal(signal.SIGINT)
    assert (await running.ended())[0] == 0
    assert not file.exists()


async def test_mistakes_are_said_all_at_once_before_anything_is_asked(run, stub) -> None:
    config = """
[renderer]
use = "chatml"
famly = "qwen3"
[model]
tokenizer = "{tokenizer}"
[upstream]
urls = ["{url}", "example.org"]
[gateway]
heartbeat = -1
"""
    running = await run("http://127.0.0.1:9", "--port", "0", config=config, wait=False)
    code, _, err = await running.ended()
    assert code == 2
    for text in ("famly", "upstream.urls", "gateway.heartbeat"):
        assert text in err
    both = CONFIG.replace("[upstream]", '[trainer]\nuse = "local"\n[upstream]')
    neither = CONFIG.replace('[upstream]\nurls = ["{url}"]\n', "")
    for config in (both, neither):
        running = await run("http://127.0.0.1:9", config=config, wait=False)
        code, _, err = await running.ended()
        assert code == 2
        assert "[upstream] or [trainer]" in err or "trainer" in err


async def test_a_busy_port_a_host_for_all_and_an_upstream_that_is_not_there_are_one_line_each(run, stub) -> None:
    upstream = await stub(answer)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for url, flags, text in [
            (upstream.url, ("--port", port), f"port {port} of 127.0.0.1 is taken"),
            (upstream.url, ("--host", "0.0.0.0"), "allow_remote"),
            ("http://127.0.0.1:9", (), "no upstream answers: http://127.0.0.1:9"),
        ]:
            running = await run(url, *flags, wait=False)
            code, _, err = await running.ended()
            assert code == 1
            assert text in err
            assert "Traceback" not in err


async def test_a_remote_host_that_is_meant_is_warned_of(run, stub) -> None:
    upstream = await stub(answer)
    running = await run(
        upstream.url, "--host", "0.0.0.0", "--allow-remote", "--set", "gateway.idle_timeout=5", wait=False
    )
    while "trajectory" not in await running.line():
        pass
    running.process.send_signal(signal.SIGINT)
    code, _, err = await running.ended()
    assert code == 0
    assert "warning: 0.0.0.0 can be reached from elsewhere" in err


async def test_a_renderer_that_is_a_guess_is_warned_of(run, stub) -> None:
    upstream = await stub(answer)
    folder = byte_tokenizer(["<|im_start|>", "<|im_end|>"], template="qwen3", eos="<|im_end|>")
    config = CONFIG.replace('"chatml"\nfamily = "qwen3"', '"auto"')
    config = config.replace('tokenizer = "{tokenizer}"', f'id = "acme/new-model"\ntokenizer = "{folder}"')
    running = await run(upstream.url, config=config, wait=False)
    while "trajectory" not in await running.line():
        pass
    running.process.send_signal(signal.SIGINT)
    code, out, err = await running.ended()
    assert code == 0
    assert "renderer chat_template (none is written for acme/new-model" in out
    assert "thinking: template" in out
    assert "renderer_guessed" in err


async def test_a_trainer_in_the_same_process_serves_too(run, tmp_path) -> None:
    config = """
[renderer]
use = "chatml"
family = "qwen3"
[model]
tokenizer = "{tokenizer}"
[trainer]
use = "local"
threads = 1
device = "cpu"
tiny = {{ hidden_size = 32, layers = 2, heads = 4, intermediate_size = 48, max_positions = 512 }}
[sampling]
max_tokens = 12
"""
    running = await run("", "--json", config=config)
    await running.call("POST", "/sessions", {"id": "one", "sampling": {"seed": 3}})
    for _ in range(2):
        status, out = await running.chat("one", HELLO)
        assert status == 200, out
    trajectory = (await running.call("GET", "/sessions/one/trajectory"))[1]
    (step,) = trajectory["steps"]
    assert step["stop"] - step["start"] == out["usage"]["completion_tokens"] <= 12
    logprobs = trajectory["segments"][0]["logprobs"][step["start"] : step["stop"]]
    assert all(each < 0 for each in logprobs)
    running.process.send_signal(signal.SIGTERM)
    assert (await running.ended())[0] == 0


async def test_on_a_terminal_the_token_is_shown_and_one_line_says_how_it_goes(run, stub, tmp_path) -> None:
    upstream = await stub(answer)
    (tmp_path / "gateway.toml").write_text(CONFIG.format(tokenizer=byte_tokenizer(), url=upstream.url))
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ferrule", "gateway", "gateway.toml"), cwd=tmp_path, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    said = ""

    async def until(text: str) -> None:
        nonlocal said
        while text not in said:
            with contextlib.suppress(BlockingIOError):
                said += os.read(ours, 65536).decode()
            await asyncio.sleep(0.02)

    try:
        await asyncio.wait_for(until("trajectory"), 60)
        running = Running(process)
        running.url = re.search(r"at (http://\S+)", said)[1]
        running.token = re.search(r"OPENAI_API_KEY=(\S+)", said)[1]
        assert (await running.call("POST", "/sessions", {"id": "first"}))[0] == 201
        await converse(running, "first", 2)
        await asyncio.wait_for(until("1 session  0 in flight  2 turns"), 60)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(until("stopped after"), 60)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        os.close(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_what_was_captured_outlives_the_process_unless_it_is_kept_in_memory(run, stub, tmp_path) -> None:
    upstream = await stub(answer)
    config = CONFIG.replace('[gateway]\nstore = "captured"\n', "")
    for flags, kept in (((), ["first.jsonl"]), (("--in-memory",), [])):
        gateway = await run(upstream.url, "--json", *flags, config=config)
        await gateway.call("POST", "/sessions", {"id": "first"})
        assert (await gateway.chat("first", HELLO))[0] == 200
        gateway.process.terminate()
        code, _, err = await gateway.ended()
        assert code == 0, err
        folder = tmp_path / "gateway-sessions"
        assert [file.name for file in folder.glob("*")] == kept
        for file in folder.glob("*"):
            file.unlink()

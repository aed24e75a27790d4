"""The gateway beside a bare capture proxy and other gateways: CPU per request, requests per second, memory, ids.

    python tests/benchmarks/bench_gateway.py [--rounds 3] [--python rllm=PATH] [--python litellm=PATH]

    client (this process) -> gateway (a process of its own) -> stub upstream (a process of its own)

64 sessions of 20 growing turns, all at once, a session's turns in order. The stub answers at once, in vLLM's shape, with
ids that are a function of session and turn: to ``/v1/completions`` with token ids, which our gateway sends, and to
``/v1/chat/completions`` with ``return_token_ids``, which the others send: they leave rendering and parsing to the server
behind them, ours does it itself.

The floor is a bare capture proxy (aiohttp and orjson): it parses both bodies, takes out ids and logprobs, keeps them in
memory and sends the rest on; what a product does besides is its cost above the floor, compared round by round.
CPU is user and system time of the gateway's process, per request, of a whole round after one to warm up; rounds of all
systems alternate, and the table shows medians. ``ids right`` counts turns of the last round whose captured prompt,
completion and logprobs are all exactly what the stub was sent and sent. ``growth`` is what the process is larger after the
last round than after the first to warm up, its sessions deleted where it knows of that. rllm-model-gateway and litellm are
run where ``--python`` names an interpreter that has them, or this one does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import gateway_systems
import orjson
from gateway_systems import Floor, LiteLLM, Ours, Rllm, System, completion, digest, logprob, prompt_of

SYSTEM = "You are a careful agent. " + "Be brief. " * 60
TASK = "Fix the failing test in the request handler. " * 8
OBSERVATION = "$ pytest -q\n" + "tests/test_handler.py::test_retry FAILED assert 200 == 503\n" * 9


# -- one round ---------------------------------------------------------------------------------------------------------


async def converse(http: aiohttp.ClientSession, system: System, url: str, session: str, turns: int) -> list[float]:
    """One session, its turns in order; milliseconds of each."""
    messages = [{"role": "system", "content": f"session={session} {SYSTEM}"}, {"role": "user", "content": TASK}]
    target, waits = system.chat(url, session), []
    headers = {"content-type": "application/json", **system.headers}
    for _ in range(turns):
        request = {"model": "bench", "messages": messages, "temperature": 1.0, "max_tokens": 256}
        if system.asks_for_ids:
            request |= {"logprobs": True, "return_token_ids": True}
        body, began = orjson.dumps(request), time.perf_counter()
        async with http.post(target, data=body, headers=headers) as got:
            raw = await got.read()
            waits.append((time.perf_counter() - began) * 1e3)
            if got.status != 200:
                raise RuntimeError(f"HTTP {got.status}: {raw[:300]!r}")
        messages.append({"role": "assistant", "content": orjson.loads(raw)["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": OBSERVATION})
    return waits


class Process:
    """A server in a process of its own."""

    def __init__(self, argv: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log.open("wb")
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        self.log = log

    async def ready(self, http: aiohttp.ClientSession, url: str, limit: float = 90.0) -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, aiohttp.ClientError):
                async with http.get(url) as got:
                    if got.status == 200:
                        return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"did not come up: {self.log.read_text(errors='replace')[-400:]}")

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def mebibytes(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


class Measured:
    """A running system and what its rounds took."""

    def __init__(self, system: System, process: Process, url: str) -> None:
        self.system, self.process, self.url = system, process, url
        self.cpu: list[float] = []
        self.rate: list[float] = []
        self.wait: list[float] = []
        self.sizes: list[float] = []
        self.right = "-"

    async def round(self, http: aiohttp.ClientSession, number: int, a: Any, check: Any = None) -> None:
        sessions = [f"r{number}-{i}" for i in range(a.sessions)]
        for session in sessions:
            await self.system.create(http, self.url, session)
        cpu, began = self.process.cpu, time.perf_counter()
        waits = await asyncio.gather(*(converse(http, self.system, self.url, s, a.turns) for s in sessions))
        seconds = time.perf_counter() - began
        await asyncio.sleep(0.3)
        if number:  # the first warms up
            self.cpu.append((self.process.cpu - cpu) / (a.sessions * a.turns) * 1e3)
            self.rate.append(a.sessions * a.turns / seconds)
            self.wait.append(statistics.median([each for session in waits for each in session]))
        if check is not None:
            self.right = await check(self, sessions)
        for session in sessions:
            await self.system.delete(http, self.url, session)
        await asyncio.sleep(0.2)
        self.sizes.append(self.process.mebibytes)


async def bench(a: Any) -> None:
    from ferrule_test_assets import qwen3
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{qwen3()}/tokenizer.json")
    words = sorted(i for word, i in tokenizer.get_vocab().items() if word.startswith("Ġ") and word[1:].isalpha())
    words, stop = [i for i in words if tokenizer.decode([i]).isascii()][:20_000], tokenizer.token_to_id("<|im_end|>")
    pythons = dict(each.split("=", 1) for each in a.python)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vocabulary.json").write_text(json.dumps({"words": words, "stop": stop}))
        env = {**os.environ, "TMPDIR": name, "OMP_NUM_THREADS": "1"}
        processes: list[Process] = []
        running: list[Measured] = []
        skipped: list[tuple[str, str]] = []
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(120)
        ) as http:
            try:
                port = _free_port()
                upstream = f"http://127.0.0.1:{port}"
                argv = [
                    sys.executable,
                    gateway_systems.__file__,
                    "--serve-stub",
                    str(port),
                    "--vocabulary",
                    f"{folder}/vocabulary.json",
                ]
                processes.append(Process(argv, env, folder / "stub.log"))
                await processes[0].ready(http, f"{upstream}/health")
                for cls in (Floor, Ours, Rllm, LiteLLM):
                    python = pythons.get(getattr(cls, "dist", "").split("-")[0], sys.executable)
                    if hasattr(cls, "dist") and not _installed(python, cls.dist):
                        skipped.append((cls.name, f"{cls.dist} is not installed"))
                        continue
                    system, port = cls(python), _free_port()
                    own = folder / cls.__name__
                    own.mkdir()
                    process = Process(system.command(upstream, port, own), {**env, **system.env()}, own / "log")
                    processes.append(process)
                    try:
                        await process.ready(http, system.ready(f"http://127.0.0.1:{port}"))
                    except RuntimeError as error:
                        skipped.append((cls.name, str(error)))
                        continue
                    running.append(Measured(system, process, f"http://127.0.0.1:{port}"))

                async def right(measured: Measured, sessions: list[str]) -> str:
                    async with http.get(f"{upstream}/seen") as got:
                        seen = await got.json()
                    good, kept = 0, True
                    for session in sessions:
                        turns = await measured.system.captured(http, measured.url, session)
                        if turns is None:
                            kept = False
                            break
                        for turn, (prompt, ids, logprobs) in enumerate(turns):
                            expected = completion(words, stop, session, turn)
                            shown = (
                                seen[session][turn]
                                if isinstance(measured.system, Ours)
                                else digest(prompt_of(session, turn))
                            )
                            good += (
                                digest(prompt) == shown
                                and list(ids) == expected
                                and [float(x) for x in logprobs] == [logprob(i) for i in expected]
                            )
                    return f"{good}/{len(sessions) * a.turns}" if kept else "keeps none"

                for number in range(a.rounds + 1):
                    for measured in [*running] if number % 2 else [*reversed(running)]:
                        await measured.round(http, number, a, right if number == a.rounds else None)
            finally:
                for process in reversed(processes):
                    process.stop()
    _table(running, skipped, a)


def _table(running: list[Measured], skipped: list[tuple[str, str]], a: Any) -> None:
    floor = running[0]
    cpu, rate = statistics.median(floor.cpu), statistics.median(floor.rate)
    head = ("system", "CPU ms/request", "above floor", "requests/s", "of floor's", "p50 ms", "ids right", "growth MiB")
    rows = [head]
    for each in running:
        own, speed = statistics.median(each.cpu), statistics.median(each.rate)
        # Each round is compared with the floor's of the same round: the machine's load is then the same.
        above = statistics.median(x - y for x, y in zip(each.cpu, floor.cpu, strict=True))
        ratio = statistics.median(x / y for x, y in zip(each.rate, floor.rate, strict=True))
        growth = each.sizes[-1] - each.sizes[0]
        figures = (f"{own:.2f}", f"{above:.2f}", f"{speed:.0f}", f"{ratio:.2f}", f"{statistics.median(each.wait):.0f}")
        rows.append((each.system.name, *figures, each.right, f"{growth:.1f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    print(f"{a.sessions} sessions x {a.turns} turns, {a.rounds} rounds, medians; floor {cpu:.2f} ms, {rate:.0f}/s")
    for row in rows:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells))
    for name, why in skipped:
        print(f"skipped: {name}: {why}")


def _installed(python: str, dist: str) -> bool:
    code = "import importlib.metadata as m, sys; m.version(sys.argv[1])"
    return subprocess.run([python, "-c", code, dist], capture_output=True).returncode == 0


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", action="append", default=[], metavar="LABEL=PATH", help="rllm=PATH, litellm=PATH")
    asyncio.run(bench(parser.parse_args()))


if __name__ == "__main__":
    main()

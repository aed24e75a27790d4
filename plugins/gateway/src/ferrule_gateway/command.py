"""``ferrule gateway``: a gateway that runs alone, before a model server or a trainer's sampler."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from ferrule import FerruleError, RunInfo, Sampler, get_logger, load_config

if TYPE_CHECKING:
    from .config import GatewayConfig
    from .server import Gateway

log = get_logger("ferrule_gateway")

GRACE = 30.0


@click.command("gateway", short_help="Serve a model to agents over HTTP, and capture every token.")
@click.argument("config", type=click.Path(path_type=str))
@click.option("--host", default=None, help="The address to listen on. [default: gateway.host]")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=None, help="The port; 0 picks one. [default: gateway.port]"
)
@click.option("--allow-remote", is_flag=True, help="Allow a host that can be reached from elsewhere.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value: sampling.temperature=0.7. May be repeated.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write the token to this file, for its owner alone. [default: the terminal; without one, a new file]",
)
@click.option(
    "--in-memory",
    is_flag=True,
    help="Keep captured turns in memory alone: they end with their session, or with this process.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where it serves as JSON; progress goes to stderr.")
@click.pass_context
def command(
    ctx: click.Context,
    config: str,
    host: str | None,
    port: int | None,
    allow_remote: bool,
    sets: tuple[str, ...],
    token_file: Path | None,
    in_memory: bool,
    as_json: bool,
) -> None:
    """Serve the model of CONFIG as OpenAI's API is served, to agents that speak HTTP, and capture per session, token for
    token, what they were shown and sampled.

    CONFIG names a [renderer] and either an [upstream] that takes token ids or a [trainer]. An interrupt lets what is in
    flight end; a second one stops at once. What was captured stays in gateway.store, by default the folder
    gateway-sessions beside CONFIG.
    """
    from .config import GatewayConfig

    flags = [f"gateway.{key}={json.dumps(x)}" for key, x in (("host", host), ("port", port)) if x is not None]
    if allow_remote:
        flags.append("gateway.allow_remote=true")
    loaded = load_config(GatewayConfig, config, [*sets, *flags])
    folder = Path(config).absolute().parent
    store = None if in_memory else loaded.gateway.store or folder / "gateway-sessions"
    loaded = attrs.evolve(loaded, gateway=attrs.evolve(loaded.gateway, store=store))
    new_event_loop = asyncio.new_event_loop
    with contextlib.suppress(ImportError):  # not everywhere to be had
        from uvloop import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        ctx.exit(runner.run(_serve(loaded, folder, token_file, as_json)))


async def _serve(config: GatewayConfig, folder: Path, token_file: Path | None, as_json: bool) -> int:
    from .server import Gateway
    from .status import Status

    async with AsyncExitStack() as stack:
        if config.renderer.guess:
            log.warning("renderer_guessed", renderer=config.renderer.label, why=config.renderer.why)
        renderer = config.renderer.make(config.model)
        sampler, vocab_size = await _sampler(config, folder, stack)
        gateway = Gateway(
            renderer=renderer,
            sampler=sampler,
            sampling=config.sampling,
            options=config.gateway,
            model=config.name,
            vocab_size=vocab_size or renderer.vocab_size,
        )
        await gateway.start()
        stack.push_async_callback(gateway.stop, 0.0)
        # What there is by now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(5_000, 10, 10)  # requests make many objects and hardly a cycle
        stopped = _on_signals()  # before anything is said: who reads it may answer with a signal
        out = sys.stderr if as_json else sys.stdout
        if token_file is None and not (out.isatty() and not as_json):
            handle, name = tempfile.mkstemp(prefix="ferrule-gateway-", suffix=".token")
            os.close(handle)
            token_file = Path(name)
            stack.callback(token_file.unlink, missing_ok=True)
        if token_file is not None:
            _write_token(token_file, gateway.token)
        if as_json:
            facts = {"url": gateway.url, "model": gateway.model, "token_file": str(token_file), "pid": os.getpid()}
            click.echo(json.dumps(facts))
        else:
            _introduce(gateway, config, token_file)
        status = Status(gateway, out)
        watch = asyncio.ensure_future(status.watch())
        try:
            await stopped.wait()
        finally:
            watch.cancel()
            status.end()
        flying = sum(len(session.flights) for session in gateway.sessions.values())
        click.echo(f"stopping; in flight: {flying} (an interrupt stops at once)", file=out)
        stop = asyncio.ensure_future(gateway.stop(GRACE))
        again = asyncio.ensure_future(_cleared(stopped).wait())
        await asyncio.wait({stop, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not stop.done():
            stop.cancel()
            await asyncio.wait({stop})
            await gateway.stop(0.0)
            return 130
        stop.result()
        click.echo(status.closing(), file=out)
    return 0


async def _sampler(config: GatewayConfig, folder: Path, stack: AsyncExitStack) -> tuple[Sampler, int | None]:
    if config.upstream is not None:
        from .http import HttpSampler

        return HttpSampler(config.upstream), None
    assert config.trainer is not None
    trainer = config.trainer.make()
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferrule-gateway-")))
    stack.push_async_callback(trainer.close)
    await trainer.start(RunInfo("gateway", scratch, config.seed, config.model, folder))
    return trainer.sampler(), trainer.vocab_size


def _introduce(gateway: Gateway, config: GatewayConfig, token_file: Path | None) -> None:
    """Say where it serves, and how a client is pointed at it."""
    # On a terminal the token itself; elsewhere output ends in logs, where no token belongs.
    key = gateway.token if token_file is None else f'"$(cat {token_file})"'
    # One that an earlier start has not captured.
    first = next(id_ for n in itertools.count(1) if (id_ := f"session-{n}") not in (gateway.store or ()))
    why = f" ({config.renderer.why})" if config.renderer.why else ""
    lines = [
        f"serving {gateway.model} at {gateway.url}",
        f"renderer {gateway.renderer.name}{why}, thinking: {config.renderer.config.thinking}",
        f"captured turns: {gateway.store.root if gateway.store else 'in memory, until their session is deleted'}",
        "",
        "# a session, and a client pointed at it:",
        f"export OPENAI_API_KEY={key}",
        f'curl -s -X POST {gateway.url}/sessions -H "Authorization: Bearer $OPENAI_API_KEY" -d \'{{"id": "{first}"}}\'',
        f"export OPENAI_BASE_URL={gateway.base_url(first)}",
        "# what it captured:",
        f'curl -s {gateway.url}/sessions/{first}/trajectory -H "Authorization: Bearer $OPENAI_API_KEY"',
        "",
    ]
    click.echo("\n".join(lines))
    if config.gateway.allow_remote:
        click.echo(f"warning: {config.gateway.host} can be reached from elsewhere, in plain HTTP", err=True)


def _write_token(path: Path, token: str) -> None:
    """Readable by its owner from the first moment."""
    try:
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise FerruleError(f"the token cannot be written to {path}: {error.strerror}") from error
    with os.fdopen(handle, "w") as file:
        file.write(token + "\n")


def _on_signals() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _cleared(event: asyncio.Event) -> asyncio.Event:
    event.clear()
    return event

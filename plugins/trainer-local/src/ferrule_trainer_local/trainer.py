"""What a started local trainer holds: the model, its optimizer, its sampler, and the thread that trains."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ferrule import Checkpoint, CheckpointError, OptimParams, RunInfo, TrainerError, get_logger

from . import checkpoint as store
from . import model as models
from .decoder import FastDecoder
from .engine import Engine
from .learner import Learner
from .optimizers import Optimizer
from .sampler import LocalSampler

if TYPE_CHECKING:
    from . import LocalTrainer

T = TypeVar("T")
log = get_logger(__name__)


def prepare_thread(threads: int | None) -> None:
    """Settings that hold per thread: small numbers flushed to zero (or training slows down manyfold), and how many
    threads PyTorch takes."""
    torch.set_flush_denormal(True)
    if threads is not None:
        torch.set_num_threads(threads)


class Work:
    """A model in training. All of it but the sampler runs in one thread of its own."""

    def __init__(self, config: LocalTrainer.Config, run: RunInfo) -> None:
        self.config, self.info = config, run
        self.optimizer: Optimizer | None = None
        self.steps = 0
        self.version = 0
        self.dirty = False
        """Whether the weights have changed since they were published."""
        self._counted: int | None = None
        """Tokens sampled when weights were restored that had not been published, and were given their version then."""
        self._reported = 0
        device = config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise TrainerError("trainer.device is cuda, and PyTorch finds no GPU here")
        self.device = torch.device(device)
        self.dtype = torch.float32 if config.dtype == "float32" else torch.bfloat16
        self.model: Any = models.make(run.model, config.tiny, run.seed).to(self.device).eval()
        text = self.model.config.get_text_config()
        self.vocab: int = text.vocab_size
        positions = getattr(text, "max_position_embeddings", None)
        length = config.context_length or positions
        if length is None:
            raise TrainerError("the model does not say how long a context it takes: give trainer.context_length")
        if positions is not None and length > positions:
            raise TrainerError(f"trainer.context_length {length} is over the model's {positions} positions")
        split = models.splits(self.model)
        self.decoder = models.decoder_for(self.model, length, self.dtype)
        packs = split and isinstance(self.decoder, FastDecoder) and models.packs(self.model)
        if config.lora is not None:
            self.model = models.add_lora(self.model, config.lora, run.seed)
        self.learner = Learner(
            self.model,
            split=split,
            vocab=self.vocab,
            tokens=config.micro_batch_tokens,
            autocast=None if self.dtype == torch.float32 else self.dtype,
            dropout=config.lora is not None and config.lora.dropout > 0,
            packs=packs,
        )
        engine = Engine(
            self.decoder,
            lockstep=config.schedule == "lockstep",
            patience=config.patience,
            max_batch=config.max_batch,
            prefill_tokens=config.micro_batch_tokens,
            prepare=partial(prepare_thread, config.threads),
        )
        self.sampler = LocalSampler(engine, self.vocab, length)

    @classmethod
    async def start(cls, config: LocalTrainer.Config, run: RunInfo) -> Work:
        executor = ThreadPoolExecutor(1, "ferrule-trainer", prepare_thread, (config.threads,))
        try:
            work = await asyncio.get_running_loop().run_in_executor(executor, cls, config, run)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        work.executor = executor
        log.debug(
            "trainer_started",
            parameters=sum(p.numel() for p in work.model.parameters()),
            device=str(work.device),
            decoder=type(work.decoder).__name__,
            vocab=work.vocab,
        )
        return work

    executor: ThreadPoolExecutor

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run *function* in the training thread."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, partial(function, *args))

    async def close(self) -> None:
        await asyncio.to_thread(self.sampler.engine.close)
        self.executor.shutdown(wait=False)

    # Steps.

    def optim_step(self, optim: OptimParams) -> dict[str, float]:
        parameters = models.trainable(self.model)
        given = [p for p in parameters.values() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in given if p.grad is not None])) if given else 0.0
        if not math.isfinite(norm):
            self.clear_gradient()
            raise TrainerError(f"the gradient's norm is {norm}: the step was not taken")
        if given:
            if optim.max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(given, optim.max_grad_norm, torch.tensor(norm))
            if self.optimizer is None or self.optimizer.kind != optim.name:
                self.optimizer = Optimizer(optim.name, parameters)
            self.optimizer.step(optim)
            self.dirty = True
            if not math.isfinite(float(torch.nn.utils.get_total_norm(given))):
                raise TrainerError(
                    f"the weights are not finite after the step (learning rate {optim.lr:g}, gradient norm {norm:.3g}): "
                    "lower the rate, and go on from the last checkpoint"
                )
        self.clear_gradient()
        self.steps += 1
        late = self.sampler.counters["patience_expired"]
        metrics = {"grad_norm": norm, "sampler/patience_expired": float(late - self._reported)}
        self._reported = late
        return metrics

    def clear_gradient(self) -> None:
        for p in self.model.parameters():
            p.grad = None

    async def publish(self) -> int:
        # A run that is saved between two publications and resumed counts as one that was not; unless somebody sampled
        # from the weights in between, which the version then names.
        if self._counted is None or self._counted != self.sampler.counters["sampled_tokens"]:
            self.version += 1
        self._counted = None
        await self._show()
        return self.version

    async def _show(self) -> None:
        """Give the sampler the weights as they are."""
        weights = await self.run(models.published, self.model)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        engine, version = self.sampler.engine, self.version

        def load() -> None:
            error = None
            try:
                self.decoder.load(weights)
                engine.version = version
                engine.reset()
            except Exception as caught:
                error = TrainerError(f"the weights could not be given to the sampler: {caught}")
            loop.call_soon_threadsafe(self._settle, done, error)

        if not engine.alive:
            raise TrainerError("the sampler's thread has ended")
        engine.post(("call", load))
        await done
        self.dirty = False

    @staticmethod
    def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    # Files.

    def save(self, name: str) -> Checkpoint:
        path = Path(self.info.dir) / "checkpoints" / name
        tensors = {"weights": models.trainable(self.model), "random": {"cpu": torch.get_rng_state()}}
        if self.device.type == "cuda":
            tensors["random"]["cuda"] = torch.cuda.get_rng_state(self.device)
        if self.optimizer is not None:
            tensors["optimizer"] = self.optimizer.state()
        state = {
            "model": models.fingerprint(self.model),
            "step": self.steps,
            "version": self.version,
            "dirty": self.dirty,
            "optimizer": self.optimizer.kind if self.optimizer is not None else None,
        }
        store.save(path, tensors, state)
        return Checkpoint(str(path), self.steps, {"version": self.version})

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Weights not yet published when they were saved count as published one version later; the next publication
        then has that version, too, where nothing was sampled before it."""
        await self.run(self._restore, Path(checkpoint.path))
        await self._show()

    def _restore(self, path: Path) -> None:
        tensors, state = store.load(path)
        if state["model"] != models.fingerprint(self.model):
            raise CheckpointError(
                f"checkpoint {path} is of another model than this run's: shapes or frozen weights differ"
            )
        parameters = models.trainable(self.model)
        optimizer = Optimizer(state["optimizer"], parameters) if state["optimizer"] else None
        if optimizer is not None:
            optimizer.load(tensors["optimizer"])
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors["weights"][name])
        torch.set_rng_state(tensors["random"]["cpu"])
        if self.device.type == "cuda" and "cuda" in tensors["random"]:
            torch.cuda.set_rng_state(tensors["random"]["cuda"], self.device)
        self.clear_gradient()
        self.optimizer, self.steps = optimizer, state["step"]
        self.version = state["version"] + bool(state["dirty"])
        self._counted = self.sampler.counters["sampled_tokens"] if state["dirty"] else None

    def export(self, path: str) -> None:
        store.write_folder(Path(path), lambda folder: models.export(self.model, folder, self.info.model.tokenizer_path))

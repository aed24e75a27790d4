"""What only the whole configuration shows: capabilities, splits, rewards, duplicates. Classes and files are looked
at; no model loads, nothing starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from ..errors import FerruleError, Problem
from ..plugins.compat import nearest
from ..plugins.references import reason
from ..plugins.registry import Registry
from .schema import RunConfig
from .structure import Chosen, Place, Structurer


def cross_checks(
    good: Mapping[str, Any], raw: Mapping[str, Any], structurer: Structurer, registry: Registry
) -> list[Problem]:
    """All that is wrong between sections. *good* holds the fields of RunConfig that are right; what is wrong already
    is not held against others.
    """
    return _Checks(good, raw, structurer, registry).run()


def renderer_checks(structurer: Structurer) -> list[Problem]:
    """What the chosen renderer cannot do."""
    chosen = structurer.chosen.get(("renderer",))
    if chosen is None or chosen.config is None:
        return []
    choices = tuple(chosen.cls.thinking_choices)  # type: ignore[attr-defined]
    if chosen.config.thinking in choices:
        return []
    label, can = _label_of(chosen), ", ".join(map(repr, choices))
    message = f"renderer {label!r} cannot do {chosen.config.thinking!r}; it can do {can}"
    return [structurer.problem(message, ("renderer", "thinking"))]


class _Checks:
    def __init__(
        self, good: Mapping[str, Any], raw: Mapping[str, Any], structurer: Structurer, registry: Registry
    ) -> None:
        self.raw, self.structurer, self.registry = raw, structurer, registry
        self.problems: list[Problem] = []
        self.good = dict(good)
        for field in attrs.fields(RunConfig):
            if field.name not in raw and field.default is not attrs.NOTHING:
                self.good.setdefault(field.name, field.default)
        chosen = structurer.chosen
        self.trainer, self.sandbox = chosen.get(("trainer",)), chosen.get(("sandbox",))
        self.taskset, self.harness = chosen.get(("taskset",)), chosen.get(("harness",))
        train = self.good.get("train")
        self.training = "trainer" in raw and (train is None or train.steps > 0)

    def add(self, message: str, *place: str | int) -> None:
        self.problems.append(self.structurer.problem(message, place))

    def run(self) -> list[Problem]:
        self.required()
        self.listed_twice("losses", "loss")
        self.listed_twice("observers", "observer")
        self.parts()
        self.problems += renderer_checks(self.structurer)
        if self.trainer is not None:
            self.policy(self.trainer.cls)
            self.needs(self.trainer)
            self.optimizers(self.trainer.cls)
        if self.taskset is not None and self.taskset.config is not None:
            self.tasks(self.taskset)
        return self.problems

    def required(self) -> None:
        from packaging.requirements import InvalidRequirement, Requirement

        for i, text in enumerate(self.good.get("required", ())):
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                self.add(f"{text!r} is no requirement: {str(error).splitlines()[0]}", "required", i)
                continue
            version = self.registry.installed(requirement.name)
            if version is None:
                self.add(f"{requirement.name} is not installed: pip install {text!r}", "required", i)
            elif not requirement.specifier.contains(version, prereleases=True):
                self.add(
                    f"{requirement.name} {version} is installed; this configuration requires {requirement.specifier}",
                    "required",
                    i,
                )

    def many(self, section: str) -> list[tuple[int, Chosen]]:
        return [
            (int(place[1]), chosen)
            for place, chosen in sorted(self.structurer.chosen.items(), key=lambda item: str(item[0]))
            if len(place) == 2 and place[0] == section
        ]

    def listed_twice(self, section: str, kind: str) -> None:
        seen: dict[str, int] = {}
        for i, chosen in sorted(self.many(section), key=lambda item: item[0]):
            label = _label_of(chosen)
            if label in seen:
                self.add(
                    f"{kind} {label!r} is listed twice: {section}[{seen[label]}] and {section}[{i}]", section, i, "use"
                )
            seen.setdefault(label, i)

    def parts(self) -> None:
        """The sections that the harness makes necessary."""
        if self.harness is None or not getattr(self.harness.cls, "needs_model", True):
            return
        what = f"required, and missing: harness {self.harness.ref!r} samples from a model"
        for section in ("trainer", "renderer"):
            if section not in self.raw:
                self.add(f"{what}; add [{section}]", section)
        if self.training and self.good.get("train") is not None and "advantage" not in self.raw:
            self.add(
                "required, and missing: [train] learns from advantages; add [advantage], or set train.steps = 0",
                "advantage",
            )

    def policy(self, trainer: Any) -> None:
        policy = self.good.get("policy")
        offered = trainer.policy_losses
        if policy is not None and self.training and policy.loss not in offered:
            self.add(
                f"trainer {self._label()} has no policy loss {policy.loss!r}{nearest(policy.loss, offered)}",
                "policy",
                "loss",
            )
        if self.good.get("sft") is not None and "cross_entropy" not in offered:
            self.add(
                f"supervised training needs the policy loss 'cross_entropy', which trainer {self._label()} does not have",
                "sft",
            )

    def needs(self, trainer: Chosen) -> None:
        provides = frozenset(trainer.cls.provides)  # type: ignore[attr-defined]
        has = f"trainer {self._label()} (trainer.use) provides {', '.join(sorted(provides)) or 'nothing beyond policy losses'}"
        for i, loss in self.many("losses"):
            if loss.config is not None and getattr(loss.config, "coef", None) == 0.0:
                continue  # switched off
            label = _label_of(loss)
            # Every auxiliary loss is a cross-entropy beside the policy loss, whatever else its weights need.
            for need in sorted({"cross_entropy", *map(str, loss.cls.needs)} - provides):  # type: ignore[attr-defined]
                self.add(f"loss {label!r} (losses[{i}].use) needs {need!r}, and {has}", "losses", i, "use")
        policy = self.good.get("policy")
        if policy is not None and policy.recompute_old and "logprobs" not in provides:
            self.add(f"needs 'logprobs', and {has}", "policy", "recompute_old")

    def optimizers(self, trainer: Any) -> None:
        for section in ("sft", "train"):
            stage = self.good.get(section)
            if stage is not None and stage.optim.name not in trainer.optimizers:
                self.add(
                    f"trainer {self._label()} has no optimizer {stage.optim.name!r}{nearest(stage.optim.name, trainer.optimizers)}",
                    section,
                    "optim",
                    "name",
                )

    def _label(self) -> str:
        return repr(self.trainer.ref) if self.trainer else ""

    def tasks(self, chosen: Chosen) -> None:
        try:
            taskset = chosen.cls(chosen.config)
            splits = tuple(taskset.splits)
        except FerruleError as error:
            self.add(str(error), "taskset")
            return
        except (Exception, SystemExit) as error:
            self.add(f"task set {chosen.ref!r} could not be read: {reason(error)}", "taskset")
            return
        tasks: dict[str, Any] = {}
        for place, split in self.splits():
            if split != "all" and split not in splits:
                self.add(f"task set {chosen.ref!r} has no split {split!r}{nearest(split, splits)}", *place)
                continue
            try:
                found = list(taskset.tasks(split))
            except FerruleError as error:
                self.add(str(error), *place)
                continue
            except Exception as error:
                self.add(f"the tasks of split {split!r} could not be read: {reason(error)}", *place)
                continue
            if not found:
                self.add(f"split {split!r} of task set {chosen.ref!r} has no tasks", *place)
            tasks |= {task.id: task for task in found}
        self.rewards(list(tasks.values()))
        self.sandboxes(list(tasks.values()))

    def splits(self) -> Iterable[tuple[Place, str]]:
        """The splits that will be played, and where each is named."""
        train, sft, evaluation = (self.good.get(name) for name in ("train", "sft", "eval"))
        if self.training and train is not None:
            yield ("train", "split"), train.split
        if sft is not None:
            yield ("sft", "split"), sft.split
            if sft.target is not None:
                yield ("sft", "dev_split"), sft.dev_split
        if evaluation is not None:
            yield ("eval", "split"), evaluation.split

    def rewards(self, tasks: Sequence[Any]) -> None:
        rollout = self.good.get("rollout")
        without = [task for task in tasks if not task.score_names]
        if without:
            self.add(f"{_some(without, 'makes', 'make')} no reward: no verifier gives a score", "taskset")
        scored = [task for task in tasks if task.score_names]
        if rollout is None:
            return
        if rollout.reward is None:
            several = [task for task in scored if len(task.score_names) > 1]
            if several:
                names = ", ".join(sorted({name for task in several for name in task.score_names}))
                self.add(
                    f"{_some(several, 'has', 'have')} several scores ({names}): name the one that is the reward",
                    "rollout",
                    "reward",
                )
            return
        lacking = [task for task in scored if rollout.reward not in task.score_names]
        if lacking:
            known = sorted({name for task in lacking for name in task.score_names})
            self.add(
                f"{_some(lacking, 'has', 'have')} no score {rollout.reward!r}{nearest(rollout.reward, known)}",
                "rollout",
                "reward",
            )

    def sandboxes(self, tasks: Sequence[Any]) -> None:
        needing = [task for task in tasks if task.sandbox is not None or task.needs_isolation]
        if needing and "sandbox" not in self.raw:
            self.add(f"required, and missing: {_some(needing, 'needs', 'need')} a sandbox; add [sandbox]", "sandbox")
        if self.sandbox is None:
            return
        provides = frozenset(self.sandbox.cls.provides)  # type: ignore[attr-defined]
        needs = {
            "isolation": [task for task in tasks if task.needs_isolation],
            "images": [task for task in tasks if task.sandbox is not None and task.sandbox.image is not None],
        }
        place = ("sandbox",) if isinstance(self.raw.get("sandbox"), str) else ("sandbox", "use")
        for need, by in needs.items():
            if by and need not in provides:
                self.add(
                    f"{_some(by, 'needs', 'need')} {need!r}, and sandbox {self.sandbox.ref!r} does not provide it",
                    *place,
                )


def _label_of(chosen: Chosen) -> str:
    return getattr(chosen.cls, "name", "") or chosen.cls.__name__


def _some(tasks: Sequence[Any], one: str, many: str) -> str:
    """``task 'a' has``, or ``3 tasks ('a' and others) have``: the beginning of a sentence, with its verb."""
    if len(tasks) == 1:
        return f"task {tasks[0].id!r} {one}"
    return f"{len(tasks)} tasks ({tasks[0].id!r} and others) {many}"

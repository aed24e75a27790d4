"""Observers: told in order, checked against the hooks that there are, never fatal."""

from __future__ import annotations

import pytest
import structlog

import ferrule
from ferrule import PluginError
from ferrule.plugins import Observers
from ferrule.plugins.observers import check_observer


class Recorder(ferrule.Observer, name="recorder"):
    def __init__(self, label, log, fail=False):
        super().__init__(None)
        self.label, self.log, self.fail = label, log, fail

    @ferrule.hookimpl
    def ferrule_metrics(self, step, metrics):
        self.log.append((self.label, step, metrics))
        if self.fail:
            raise RuntimeError("disk full")

    @ferrule.hookimpl(specname="ferrule_run_finished")
    def at_the_end(self, summary):
        self.log.append((self.label, summary))


def test_the_configurations_order_is_the_order_of_the_calls():
    log = []
    observers = Observers([Recorder(label, log) for label in "abc"])
    observers.call("metrics", run=None, stage="train", step=3, metrics={"x": 1.0})
    observers.call("ferrule_run_finished", run=None, summary={})
    assert [entry[0] for entry in log] == ["a", "b", "c", "a", "b", "c"]
    assert log[0] == ("a", 3, {"x": 1.0})


def test_an_exception_in_one_is_logged_with_its_name_and_the_others_are_told():
    log = []
    observers = Observers([Recorder("a", log), Recorder("b", log, fail=True), Recorder("c", log)])
    with structlog.testing.capture_logs() as events:
        structlog.configure(processors=structlog.get_config()["processors"])
        observers.call("metrics", run=None, stage="train", step=1, metrics={})
        structlog.reset_defaults()
    assert [entry[0] for entry in log] == ["a", "b", "c"]
    (event,) = events
    assert (event["event"], event["observer"], event["hook"]) == ("observer_failed", "recorder", "ferrule_metrics")
    assert "disk full" in event["error"]


def test_an_observer_that_calls_exit_does_not_end_the_run():
    class Leaver(ferrule.Observer, name="leaver"):
        @ferrule.hookimpl
        def ferrule_metrics(self):
            raise SystemExit(3)

    log = []
    Observers([Leaver(None), Recorder("a", log)]).call("metrics", run=None, stage="train", step=1, metrics={})
    assert len(log) == 1


def test_stopping_is_not_a_failure_of_an_observer():
    class Stopper(ferrule.Observer, name="stopper"):
        @ferrule.hookimpl
        def ferrule_metrics(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Observers([Stopper(None)]).call("metrics", run=None, stage="train", step=1, metrics={})


def observer(**hooks):
    return type("Odd", (ferrule.Observer,), hooks)


@ferrule.hookimpl
def misspelt(self, run):
    return None


@ferrule.hookimpl
def extra_argument(self, run, steps):
    return None


@ferrule.hookimpl(wrapper=True)
def wrapper(self):
    return (yield)


@ferrule.hookimpl
async def coroutine(self):
    return None


def unmarked(self, run):
    return None


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"ferrule_metric": misspelt}, ["no hook 'ferrule_metric'", "did you mean 'ferrule_metrics'"]),
        ({"ferrule_metrics": extra_argument}, ["takes 'steps'", "'step'"]),
        ({"ferrule_metrics": wrapper}, ["may not be a wrapper"]),
        ({"ferrule_metrics": coroutine}, ["is async"]),
        ({"ferrule_metrics": unmarked}, ["is never called: put @ferrule.hookimpl on it"]),
        (
            {"ferrule_run_start": misspelt, "ferrule_episod_finished": misspelt},
            ["'ferrule_run_started'", "'ferrule_episode_finished'"],
        ),
    ],
)
def test_a_hook_that_would_never_be_called_rightly_is_named(hooks, said):
    with pytest.raises(PluginError) as raised:
        check_observer(observer(**hooks), "observer 'odd'")
    for part in ("observer 'odd'", *said):
        assert part in str(raised.value)


def test_a_property_of_an_observer_is_not_evaluated_by_the_check():
    class Lazy(ferrule.Observer, name="lazy"):
        @property
        def expensive(self):
            raise RuntimeError("evaluated")

        @ferrule.hookimpl
        def ferrule_metrics(self):
            return None

    Observers([Lazy(None)]).call("metrics", run=None, stage="train", step=1, metrics={})


def test_calling_a_hook_that_does_not_exist_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="did you mean 'ferrule_metrics'"):
        Observers().call("metric", step=1)

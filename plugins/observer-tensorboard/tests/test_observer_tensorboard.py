"""What TensorBoard would read back from the event files."""

from pathlib import Path

from ferrule_observer_tensorboard import TensorBoard
from tensorboardX.proto.event_pb2 import Event

import ferrule


def run_info(folder: Path) -> ferrule.RunInfo:
    return ferrule.RunInfo("r", folder, 0, ferrule.ModelSpec())


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """The scalars of every event file below *folder*: TFRecord frames are length (8), crc (4), data, crc (4)."""
    found = {}
    for file in folder.rglob("events.*"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_every_finite_metric_is_written_under_its_stage_and_step(tmp_path: Path) -> None:
    observer = TensorBoard(TensorBoard.Config())
    run = run_info(tmp_path)
    observer.ferrule_metrics(run=run, stage="train", step=3, metrics={"reward/agent/mean": 0.5, "bad": float("nan")})
    observer.ferrule_metrics(run=run, stage="train", step=4, metrics={"reward/agent/mean": 0.75})
    observer.ferrule_run_finished(run=run, summary={})
    assert scalars(tmp_path / "tensorboard" / "train") == {
        ("reward/agent/mean", 3): 0.5,
        ("reward/agent/mean", 4): 0.75,
    }


def test_stages_do_not_share_a_writer(tmp_path: Path) -> None:
    observer = TensorBoard(TensorBoard.Config(folder="tb"))
    run = run_info(tmp_path)
    observer.ferrule_metrics(run=run, stage="sft", step=1, metrics={"sft/loss": 2.0})
    observer.ferrule_metrics(run=run, stage="eval", step=0, metrics={"eval/sampled/reward": 0.1})
    observer.ferrule_run_finished(run=run, summary={})
    assert set(scalars(tmp_path / "tb" / "sft")) == {("sft/loss", 1)}
    assert set(scalars(tmp_path / "tb" / "eval")) == {("eval/sampled/reward", 0)}

"""Runs or resumes a training in a process of its own, as the command line does: ``drive.py CONFIG RUNS [RUN]``. Prints
the run's id and status.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from ferrule.config import load, load_data
from ferrule.store import RunStore
from ferrule.training import StopFlag, on_signals, train


async def main(config: str, runs: str, run: str | None = None) -> int:
    stop = StopFlag()
    with on_signals(stop, asyncio.current_task(), lambda text: None):
        if run is None:
            summary = await train(load(Path(config), [f"runs={json.dumps(runs)}"]), stop=stop)
        else:
            store = RunStore.open(Path(runs), run, write=True)
            summary = await train(load_data(store.config_raw, store.manifest["config_file"]), resume=store, stop=stop)
    print(json.dumps({"run": summary.run, "status": summary.status}))
    return 130 if summary.status == "stopped" else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))

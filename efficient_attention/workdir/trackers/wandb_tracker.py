"""Logs metrics to Weights & Biases. Only the separate process of the tracker imports this module."""

import os
from collections.abc import Mapping

from efficient_attention.workdir.trackers.tracker import PROJECT, End, TrackedRun


class WandbTracker:
    """Logs to the Weights & Biases run with a given id.

    A resumed run continues the run with this id. In the offline mode each start writes one more folder with the same
    id; `wandb sync` joins them. Weights & Biases drops a step below its last step, so the steps of a run only grow.
    """

    def __init__(self, run: TrackedRun, entry: str) -> None:
        self._run, self._entry = run, entry

    def start(self) -> str:
        """Creates or continues the run, in `wandb/` of the workdir if WANDB_DIR is not set."""
        workdir = self._run.workdir
        os.environ.setdefault('WANDB_CACHE_DIR', str(workdir / 'wandb' / 'cache'))
        import wandb

        self._entry_run = wandb.init(
            project=os.environ.get('WANDB_PROJECT', PROJECT),
            name=os.environ.get('WANDB_NAME', self._run.name),
            id=self._entry,
            dir=os.environ.get('WANDB_DIR', str(workdir)),
            config=dict(self._run.config),
            resume='allow',
            settings=wandb.Settings(console='off', silent=True),
        )
        return str(self._entry_run.url or f'offline in {self._entry_run.dir}')

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of one step; two splits of a step become one row."""
        self._entry_run.log(dict(metrics), step=step)

    def finish(self, end: End) -> None:
        """Uploads pending metrics, and marks the run as finished or as failed."""
        self._entry_run.finish(exit_code=int(end != 'finished'))

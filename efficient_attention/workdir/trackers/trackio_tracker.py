"""Logs metrics to Trackio. Only the separate process of the tracker imports this module."""

import os
from collections.abc import Mapping

from efficient_attention.workdir.trackers.tracker import PROJECT, End, TrackedRun


class TrackioTracker:
    """Logs to the Trackio run whose name ends in the entry's id, because Trackio resumes runs by name.

    Without TRACKIO_DIR, the database is in `trackio/` of the workdir.
    """

    def __init__(self, run: TrackedRun, entry: str) -> None:
        self._run, self._entry = run, entry

    def start(self) -> str:
        """Creates or continues the run."""
        # Trackio reads the variable when it is imported.
        folder = os.environ.setdefault('TRACKIO_DIR', str(self._run.workdir.absolute() / 'trackio'))
        import trackio

        name = f'{self._run.name}-{self._entry}'
        project = os.environ.get('TRACKIO_PROJECT', PROJECT)
        self._entry_run = trackio.init(
            project, name, config=dict(self._run.config), resume='allow', embed=False, auto_log_cpu=False
        )
        place = os.environ.get('TRACKIO_SPACE_ID') or os.environ.get('TRACKIO_SERVER_URL') or folder
        return f'run {name} in {place}'

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queues the metrics of one step; Trackio writes them soon."""
        self._entry_run.log(dict(metrics), step=step)

    def finish(self, end: End) -> None:  # noqa: ARG002  Trackio does not store how a run ended
        """Waits until all metrics are written."""
        self._entry_run.finish()

"""Writes metrics as TensorBoard events to the folder `tensorboard/` of a workdir."""

from collections.abc import Mapping

from efficient_attention.workdir.trackers.tracker import End, TrackedRun

EVENTS_FOLDER = 'tensorboard'


class TensorBoardTracker:
    """Writes a new file of events at each start of a run. TensorBoard hides repeated steps of older files."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run

    def start(self) -> str:
        """Creates the file of events."""
        from efficient_attention.workdir.tensorboard_events import EventsFile

        self._events = EventsFile(self._run.workdir / EVENTS_FOLDER, first_step=self._run.start_step + 1)
        return ''

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics; what cannot be written is left out, with one error line."""
        self._events.add_scalars(step, metrics)

    def finish(self, end: End) -> None:  # noqa: ARG002  TensorBoard does not store how a run ended
        """Closes the file of events."""
        self._events.close()

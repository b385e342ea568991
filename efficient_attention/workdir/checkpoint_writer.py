"""Saves a run: asynchronous, sharded checkpoints of the whole state, with Orbax.

The step under way is written beside the others under another name. A thread waits until it has its own, flushes it to
disk and seals it (`seal.py`); only then it counts as saved, and only then steps that are no longer kept go. Such a step
is first renamed into `checkpoints/trash/` and then removed, so that a process killed in between leaves no half-deleted
step behind.

A save that fails is said at once by that thread, and what it wrote is removed. Training goes on with the last good
checkpoint until the next save, or stops (`checkpoint.when_save_fails`); a run whose newest save failed ends with that.
"""

import contextlib
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError, RunError, show_error
from efficient_attention.processes.peers import compare_with_peers
from efficient_attention.whole_files import flush
from efficient_attention.workdir.checkpoint_reader import (
    HAS_SEAL,
    RECORD,
    STATE,
    CheckpointReader,
    Saved,
    label_of,
)
from efficient_attention.workdir.evaluations import LATER, write_later
from efficient_attention.workdir.lock import WorkdirLock
from efficient_attention.workdir.metrics import FILE_NAME as METRICS_FILE
from efficient_attention.workdir.metrics import score_of
from efficient_attention.workdir.orbax_errors import reason, without_orbax_log
from efficient_attention.workdir.saved_before import note_saved
from efficient_attention.workdir.seal import is_sealed, write_seal

TRASH = 'trash'
DAMAGED = 'damaged'  # folder of steps that were found damaged or not sealed
UNFINISHED = '*.orbax-checkpoint-tmp*'  # what Orbax calls a step that it is writing
POLL_SECONDS = 0.02
SEALS_SECONDS = 600.0  # for which process 0 waits for the seals of the others, as Orbax does for their files
LOG = logging.getLogger(__name__)


class SaveError(RunError):
    """A checkpoint was not saved: one line with the step and the reason. Entry points print it and exit with code 1."""


class Checkpoints:
    """The checkpoints of one workdir, opened by its one trainer; `reader` tells what is there and restores it.

    Use as a context manager: leaving it waits for the last save and raises if that failed. Every process of a run calls
    every method: all take part in a save, and process 0 holds the lock of the workdir. Orbax's own log lines are
    dropped meanwhile; what they would say is said in one line.

    `newest` is the checkpoint to go on from, None where there is none. Newer steps that are damaged or not sealed are
    named and moved to `checkpoints/damaged/`.

    `before_seal` is called with a step that is on disk but does not count yet, by the thread that seals it; what it
    raises makes the save a failed one.

    Raises:
        InputError: another trainer has the workdir open, or all its checkpoints are damaged.
    """

    def __init__(self, workdir: Path, config: CheckpointConfig) -> None:
        self.reader = CheckpointReader(workdir)
        self.before_seal: Callable[[int], None] = lambda _: None
        self._config = config
        self._sealing: threading.Thread | None = None  # sees the save under way through
        self._failure: SaveError | None = None  # of the newest save
        self._is_awaited = False  # whether somebody waits for the save under way, who raises its failure
        with contextlib.ExitStack() as opened:
            if jax.process_index() == 0:
                opened.enter_context(WorkdirLock(workdir))
            self.newest = self._newest_undamaged()
            opened.enter_context(without_orbax_log())
            self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
            self._scores = {step: self.reader.metrics(step) for step in self.reader.steps()}
            self._resources = opened.pop_all()

    def save(
        self, step: int, state: Any, *, record: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Starts to save a state; returns as soon as its arrays are copied, so that they may be donated or changed.

        Waits for the save before, if that is still under way. A step that is already saved is left as it is.

        Args:
            step: updates made so far.
            state: pytree of arrays, on any mesh.
            record: JSON object that goes with it, with the 'fingerprint' that a run compares when it goes on.
            metrics: {name: value} known for this state, `best_metric` among them; None = this state was not evaluated.

        Raises:
            SaveError: this save could not start, or the one before it failed, and the run is to stop then.
            InputError: `metrics` lacks `checkpoint.best_metric`.
        """
        self._join()
        self.check()
        if step in self.reader.steps():
            return
        known = {name: float(value) for name, value in (metrics or {}).items() if math.isfinite(value)}
        if metrics is not None and self._config.best_metric not in ('', *metrics):
            raise InputError(f'checkpoint.best_metric is {self._config.best_metric!r}; known: {", ".join(metrics)}')
        items = {
            STATE: ocp.args.StandardSave(state),
            RECORD: ocp.args.JsonSave({**record, 'step': step, 'metrics': known, HAS_SEAL: True}),
        }
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        try:
            self._make_folder()
            self._checkpointer.save(self.reader.folder / str(step), ocp.args.Composite(**items))
        except Exception as error:  # Orbax and TensorStore raise many kinds, after hundreds of lines of traceback
            self._fail(step, size, error)
            self.check()
            return
        self._scores[step] = known
        self._sealing = threading.Thread(target=self._see_through, args=(step, size), name='seal', daemon=True)
        self._sealing.start()

    def is_saved(self, step: int) -> bool:
        """Whether a step is sealed by now; does not wait."""
        return is_sealed(self.reader.folder / str(step))

    def score(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a saved step that was evaluated after its save; removes a best step that it replaces.

        Raises:
            RunError, InputError: they cannot be written.
        """
        if step in self._scores:
            if jax.process_index() == 0:
                write_later(self.reader.folder, step, metrics)
            self._scores[step] = {name: value for name, value in metrics.items() if math.isfinite(value)}
            self.remove_superseded()

    def check(self) -> None:
        """Raises the SaveError of the newest save if that has failed and the run is to stop then; costs nothing."""
        if self._failure and self._stops_at_failure():
            raise self._failure

    def wait(self) -> None:
        """Waits until the save under way is complete on disk and sealed; raises SaveError if the newest one failed."""
        self._is_awaited = True
        try:
            self._join()
        finally:
            self._is_awaited = False
        if self._failure:
            raise self._failure

    def remove_superseded(self) -> None:
        """Removes the steps that are no longer kept, in process 0; each save that succeeds does so.

        A run that goes on calls it once it is known to be the run of this workdir: it may have been killed before.
        """
        kept = self._kept_steps()
        superseded = sorted(self._scores.keys() - kept)
        self._scores = {step: metrics for step, metrics in self._scores.items() if step in kept}
        if jax.process_index() > 0 or not superseded:
            return
        trash = self.reader.folder / TRASH
        try:
            trash.mkdir(exist_ok=True)
            for step in superseded:
                with contextlib.suppress(FileNotFoundError):  # somebody else has removed it
                    (self.reader.folder / str(step)).rename(trash / str(step))
                (self.reader.folder / f'{step}{LATER}').unlink(missing_ok=True)
        except OSError as error:  # the new step is saved all the same
            LOG.warning('%s: old checkpoints cannot be removed (%s)', self.reader.folder, error.strerror)
        _remove([trash])

    def close(self) -> None:
        """Waits for the save under way and releases the workdir; raises SaveError if the newest save failed."""
        with self._resources:
            try:
                self.wait()
            finally:
                self._checkpointer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, trace
        try:
            self.close()
        except SaveError as failure:
            if error is None:
                raise
            if failure is not error:
                show_error(failure)  # what ends the run goes on upwards; this must not be lost

    def _join(self) -> None:
        if self._sealing:
            self._sealing.join()
        self._sealing = None

    def _see_through(self, step: int, size: int) -> None:
        """Seals a step when Orbax has given it its name; other processes seal what they wrote themselves."""
        folder = self.reader.folder / str(step)
        try:
            self._checkpointer.wait_until_finished()
            self.before_seal(step)
            if (log := self.reader.folder.parent / METRICS_FILE).exists() and jax.process_index() == 0:
                flush(log)  # its lines up to this step: a run that goes on from it does not write them again
            write_seal(folder, label_of(step), process=jax.process_index(), processes=jax.process_count())
            self._wait_for_seals(folder)
        except Exception as error:
            self._fail(step, size, error)
            return
        self._note_saved(step)
        if self._failure:
            LOG.warning('checkpoint step %d is saved in %s: saving works again', step, self.reader.folder)
        self._failure = None
        self.remove_superseded()

    def _note_saved(self, step: int) -> None:
        """Notes beside the checkpoints that a step is saved. If the note cannot be written, the step still counts."""
        try:
            if jax.process_index() == 0:
                note_saved(self.reader.folder.parent, step)
        except (RunError, InputError) as error:
            LOG.warning('%s', error)

    def _wait_for_seals(self, folder: Path) -> None:
        """In process 0, which removes older steps, waits for the seals of all processes."""
        latest = time.monotonic() + SEALS_SECONDS
        while jax.process_index() == 0 and not is_sealed(folder):
            if time.monotonic() > latest:
                raise TimeoutError('another process has not sealed its files')
            time.sleep(POLL_SECONDS)

    def _fail(self, step: int, size: int, error: Exception) -> None:
        """Keeps and says that a save has failed, unless somebody waits to raise it, and removes what it has written."""
        folder = self.reader.folder
        sizes = f'{size / 1e6:.1f} MB to write, {_free_space(folder)}'
        line = f'checkpoint step {step} not saved in {folder}: {reason(error)} ({sizes})'
        self._scores.pop(step, None)
        self._failure = SaveError(f'{line}; {self._last_good_one()}')
        if not self._is_awaited:
            then = 'the run stops' if self._stops_at_failure() else 'training goes on, to the next save'
            LOG.error('%s; %s', self._failure, then)
        if jax.process_index() == 0:
            _remove([*folder.glob(UNFINISHED), folder / str(step)])

    def _last_good_one(self) -> str:
        with contextlib.suppress(OSError):
            if (good := self.reader.latest_step()) is not None:
                return f'the last good one is step {good}'
        return 'there is no other one'

    def _stops_at_failure(self) -> bool:
        """Whether a failed save ends the run. One of several processes may be the only one that knows of it."""
        return self._config.when_save_fails == 'stop' or jax.process_count() > 1

    def _make_folder(self) -> None:
        """Makes the folder of the checkpoints where it has gone, but not the workdir, which may be elsewhere now."""
        if jax.process_index() == 0 and not self.reader.folder.is_dir():
            self.reader.folder.mkdir()
            flush(self.reader.folder.parent)

    def _newest_undamaged(self) -> Saved | None:
        """The checkpoint to go on from. Steps that cannot be used, which a save would stumble over, are set aside."""
        compare_with_peers({'checkpoints': {'newest': self.reader.latest_step()}})
        newest = self.reader.newest()
        if jax.process_count() > 1:  # all have looked before anything is moved, and nobody goes on before it is
            multihost_utils.sync_global_devices('checkpoints are chosen')
        if jax.process_index() == 0:
            self._make_folder()
            _remove([*self.reader.folder.glob(UNFINISHED), self.reader.folder / TRASH])
            for step in self.reader.written_steps():
                if newest is None or step > newest.step or step not in self.reader.steps():
                    self._set_aside(step)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices('checkpoints are set aside')
        return newest

    def _set_aside(self, step: int) -> None:
        """Moves a step to `damaged/`, in the place of one of the same number that is there."""
        target = self.reader.folder / DAMAGED / str(step)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        (self.reader.folder / str(step)).rename(target)
        (self.reader.folder / f'{step}{LATER}').unlink(missing_ok=True)

    def _kept_steps(self) -> set[int]:
        """The newest steps, and those that are best by their metric, of equals the newest."""
        sign = 1.0 if self._config.best_mode == 'max' else -1.0
        values = {step: score_of(metrics, self._config.best_metric) for step, metrics in self._scores.items()}
        ranked = sorted((sign * value, step) for step, value in values.items() if value is not None)
        best = [step for _, step in ranked[max(len(ranked) - self._config.keep_best, 0) :]]
        return {*sorted(self._scores)[-self._config.keep :], *best}


def _free_space(folder: Path) -> str:
    try:
        return f'{shutil.disk_usage(folder).free / 1e6:.0f} MB free'
    except OSError:
        return 'the folder is gone'


def _remove(folders: Iterable[Path]) -> None:
    """Removes folders with what is in them, as far as that is possible."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)

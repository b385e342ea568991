"""Saves checkpoints of a run's whole training state with Orbax, asynchronously; each process writes its own shards.

A step is first written under a temporary name. A thread waits until Orbax renames it, flushes it to disk and writes its
checksums (`checksums.py`). Only then the step counts as saved, and only then superseded steps are removed. A superseded
step is first renamed into `checkpoints/trash/` and then deleted. A process killed in between thus leaves no
half-deleted step behind.

If a save fails, the thread logs the failure at once and removes the written files. Training continues with the last
good checkpoint until the next save, or stops (`checkpoint.when_save_fails`). If the newest save of a run failed, the
run ends with that error.
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

from efficient_attention.atomic_files import flush
from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError, RunError, show_error
from efficient_attention.processes.peer_monitor import check_facts_agree_with_peers
from efficient_attention.workdir.checkpoint_reader import (
    HAS_SEAL,
    RECORD,
    STATE,
    CheckpointReader,
    UnreadCheckpoint,
    checkpoint_label,
)
from efficient_attention.workdir.checksums import has_all_checksums, write_checksums
from efficient_attention.workdir.last_saved_step import write_last_saved_step
from efficient_attention.workdir.lock import WorkdirLock
from efficient_attention.workdir.metrics import FILE_NAME as METRICS_FILE
from efficient_attention.workdir.metrics import best_metric_value
from efficient_attention.workdir.orbax_errors import failure_reason, without_orbax_log
from efficient_attention.workdir.stored_evaluations import LATER, write_late_evaluation

TRASH = 'trash'
DAMAGED = 'damaged'  # folder for checkpoints that were found damaged or without checksums
UNFINISHED = '*.orbax-checkpoint-tmp*'  # Orbax's temporary name for a step that it is still writing
POLL_SECONDS = 0.02
# Process 0 waits this long for the checksums of the other processes. Orbax waits equally long for their files.
SEALS_SECONDS = 600.0
LOG = logging.getLogger(__name__)


class SaveError(RunError):
    """A checkpoint could not be saved; the message is one line with the step and the reason. Programs print it and exit
    with code 1.
    """


class CheckpointWriter:
    """Saves the checkpoints of one workdir and removes superseded ones. Only one trainer at a time may open it;
    `reader` reads the checkpoints.

    Use as a context manager: leaving it waits for the last save and raises if that failed. Every process of a run must
    call every method: all take part in a save, and process 0 holds the lock of the workdir. Orbax's own log lines are
    dropped meanwhile; failures are logged in one line instead.

    `newest` is the checkpoint from which the run resumes, None if there is none. Newer steps that are damaged or have
    no checksums are logged and moved to `checkpoints/damaged/`.

    `before_seal` is called with a step that is on disk but does not count yet, in the thread that writes its checksums.
    If `before_seal` raises, the save fails.

    Raises:
        InputError: another trainer has the workdir open, or all its checkpoints are damaged.
    """

    def __init__(self, workdir: Path, config: CheckpointConfig) -> None:
        self.reader = CheckpointReader(workdir)
        self.before_seal: Callable[[int], None] = lambda _: None
        self._config = config
        self._sealing: threading.Thread | None = None  # the thread that finishes the save in progress
        self._failure: SaveError | None = None  # error of the newest save, if the save failed
        # True while `wait_until_saved` waits. That method then raises the error if the save in progress fails.
        self._is_awaited = False
        with contextlib.ExitStack() as opened:
            if jax.process_index() == 0:
                opened.enter_context(WorkdirLock(workdir))
            self.newest = self._newest_undamaged()
            opened.enter_context(without_orbax_log())
            self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
            self._scores = {step: self.reader.metrics_of_step(step) for step in self.reader.complete_steps()}
            self._resources = opened.pop_all()

    def save(
        self, step: int, state: Any, *, record: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Starts to save a checkpoint in the background. It returns once the arrays are copied, so the caller may
        donate or change them.

        Waits for the previous save, if it is still in progress. Does nothing if the step is already saved.

        Args:
            step: updates made so far.
            state: pytree of arrays, on any mesh.
            record: JSON object saved with the state; contains the 'fingerprint' that a resumed run compares.
            metrics: {name: value} known for this state, including `best_metric`; None = this state was not evaluated.

        Raises:
            SaveError: this save could not start, or the previous one failed, and a failure stops the run.
            InputError: `metrics` lacks `checkpoint.best_metric`.
        """
        self._wait_for_save_thread()
        self.raise_if_save_failed()
        if step in self.reader.complete_steps():
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
        # Orbax and TensorStore raise errors of many types, with hundreds of lines of traceback.
        except Exception as error:
            self._handle_save_failure(step, size, error)
            self.raise_if_save_failed()
            return
        self._scores[step] = known
        self._sealing = threading.Thread(target=self._finish_save, args=(step, size), name='seal', daemon=True)
        self._sealing.start()

    def is_saved(self, step: int) -> bool:
        """Returns whether the checkpoint of a step has all its checksums by now; does not wait."""
        return has_all_checksums(self.reader.folder / str(step))

    def write_evaluation_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a checkpoint that was evaluated after its save. If it is now the best checkpoint, the
        former best one is removed.

        Raises:
            RunError, InputError: the metrics cannot be written.
        """
        if step in self._scores:
            if jax.process_index() == 0:
                write_late_evaluation(self.reader.folder, step, metrics)
            self._scores[step] = {name: value for name, value in metrics.items() if math.isfinite(value)}
            self.remove_superseded()

    def raise_if_save_failed(self) -> None:
        """Raises SaveError if the newest save failed, unless the run continues after failed saves. Does not wait for a
        save in progress.
        """
        if self._failure and self._stops_at_failure():
            raise self._failure

    def wait_until_saved(self) -> None:
        """Waits until the save in progress is on disk with its checksums; raises SaveError if the newest save
        failed.
        """
        self._is_awaited = True
        try:
            self._wait_for_save_thread()
        finally:
            self._is_awaited = False
        if self._failure:
            raise self._failure

    def remove_superseded(self) -> None:
        """Removes superseded checkpoints from disk, in process 0. Every successful save calls it.

        A resumed run also calls it, once the workdir is known to be its own: the previous process may have been killed
        before it removed superseded steps.
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
                with contextlib.suppress(FileNotFoundError):  # Another process may have removed the checkpoint already.
                    (self.reader.folder / str(step)).rename(trash / str(step))
                (self.reader.folder / f'{step}{LATER}').unlink(missing_ok=True)
        except OSError as error:  # This is only a warning, because the new checkpoint is saved.
            LOG.warning('%s: old checkpoints cannot be removed (%s)', self.reader.folder, error.strerror)
        _remove_folders([trash])

    def close(self) -> None:
        """Waits for the save in progress, and releases the workdir; raises SaveError if the newest save failed."""
        with self._resources:
            try:
                self.wait_until_saved()
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
                # The error of the `with` block's body propagates, so the failed save is only printed.
                show_error(failure)

    def _wait_for_save_thread(self) -> None:
        if self._sealing:
            self._sealing.join()
        self._sealing = None

    def _finish_save(self, step: int, size: int) -> None:
        """Writes a checkpoint's checksums once Orbax has written its files. Each process covers the files that it
        wrote.
        """
        folder = self.reader.folder / str(step)
        try:
            self._checkpointer.wait_until_finished()
            self.before_seal(step)
            if (log := self.reader.folder.parent / METRICS_FILE).exists() and jax.process_index() == 0:
                # A resumed run does not write the earlier lines of metrics.jsonl again, so they must be on disk.
                flush(log)
            write_checksums(folder, checkpoint_label(step), process=jax.process_index(), processes=jax.process_count())
            self._wait_for_checksums(folder)
        except Exception as error:
            self._handle_save_failure(step, size, error)
            return
        self._record_last_saved(step)
        if self._failure:
            LOG.warning('checkpoint step %d is saved in %s: saving works again', step, self.reader.folder)
        self._failure = None
        self.remove_superseded()

    def _record_last_saved(self, step: int) -> None:
        """Records the last saved step in `last_saved.json`. If this file cannot be written, the checkpoint still counts
        as saved.
        """
        try:
            if jax.process_index() == 0:
                write_last_saved_step(self.reader.folder.parent, step)
        except (RunError, InputError) as error:
            LOG.warning('%s', error)

    def _wait_for_checksums(self, folder: Path) -> None:
        """Waits in process 0 for the checksums of all processes, because process 0 removes older checkpoints
        afterwards.
        """
        latest = time.monotonic() + SEALS_SECONDS
        while jax.process_index() == 0 and not has_all_checksums(folder):
            if time.monotonic() > latest:
                raise TimeoutError('another process has not written its checksums')
            time.sleep(POLL_SECONDS)

    def _handle_save_failure(self, step: int, size: int, error: Exception) -> None:
        """Stores the failure of a save, and logs it unless `wait_until_saved` will raise it. Removes the files of the
        failed save.
        """
        folder = self.reader.folder
        sizes = f'{size / 1e6:.1f} MB to write, {_describe_free_space(folder)}'
        line = f'checkpoint step {step} not saved in {folder}: {failure_reason(error)} ({sizes})'
        self._scores.pop(step, None)
        self._failure = SaveError(f'{line}; {self._last_good_step_message()}')
        if not self._is_awaited:
            then = 'the run stops' if self._stops_at_failure() else 'training goes on, to the next save'
            LOG.error('%s; %s', self._failure, then)
        if jax.process_index() == 0:
            _remove_folders([*folder.glob(UNFINISHED), folder / str(step)])

    def _last_good_step_message(self) -> str:
        with contextlib.suppress(OSError):
            if (good := self.reader.latest_step()) is not None:
                return f'the last good one is step {good}'
        return 'there is no other one'

    def _stops_at_failure(self) -> bool:
        """Returns whether a failed save ends the run. A run of several processes always ends, because only one process
        may know of the failure.
        """
        return self._config.when_save_fails == 'stop' or jax.process_count() > 1

    def _make_folder(self) -> None:
        """Recreates the folder of checkpoints if it is missing, but never the workdir, which may have been moved."""
        if jax.process_index() == 0 and not self.reader.folder.is_dir():
            self.reader.folder.mkdir()
            flush(self.reader.folder.parent)

    def _newest_undamaged(self) -> UnreadCheckpoint | None:
        """Returns the checkpoint from which the run resumes. Moves unusable checkpoints aside, because they would block
        new saves.
        """
        check_facts_agree_with_peers({'checkpoints': {'newest': self.reader.latest_step()}})
        newest = self.reader.newest_checkpoint()
        # No checkpoint is moved before all processes have looked for the newest one.
        # At the second barrier, all processes wait until the unusable checkpoints are moved.
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices('checkpoints are chosen')
        if jax.process_index() == 0:
            self._make_folder()
            _remove_folders([*self.reader.folder.glob(UNFINISHED), self.reader.folder / TRASH])
            for step in self.reader.written_steps():
                if newest is None or step > newest.step or step not in self.reader.complete_steps():
                    self._quarantine_step(step)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices('checkpoints are set aside')
        return newest

    def _quarantine_step(self, step: int) -> None:
        """Moves the checkpoint of a step into the folder `damaged/`, where it replaces a checkpoint of the same
        step.
        """
        target = self.reader.folder / DAMAGED / str(step)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        (self.reader.folder / str(step)).rename(target)
        (self.reader.folder / f'{step}{LATER}').unlink(missing_ok=True)

    def _kept_steps(self) -> set[int]:
        """Returns the steps of the checkpoints to keep: the newest ones, and the best ones by their metric. Of equally
        good ones, it keeps the newest.
        """
        sign = 1.0 if self._config.best_mode == 'max' else -1.0
        values = {step: best_metric_value(metrics, self._config.best_metric) for step, metrics in self._scores.items()}
        ranked = sorted((sign * value, step) for step, value in values.items() if value is not None)
        best = [step for _, step in ranked[max(len(ranked) - self._config.keep_best, 0) :]]
        return {*sorted(self._scores)[-self._config.keep :], *best}


def _describe_free_space(folder: Path) -> str:
    try:
        return f'{shutil.disk_usage(folder).free / 1e6:.0f} MB free'
    except OSError:
        return 'the folder is gone'


def _remove_folders(folders: Iterable[Path]) -> None:
    """Deletes folders with their content; errors are ignored."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)

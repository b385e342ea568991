"""Reads the checkpoints of a workdir, to evaluate or resume a run, also while a trainer is writing new checkpoints.

`checkpoints/<step>/` holds `state`, a pytree of arrays, and `record`, a JSON object. The record holds the step, the
run's fingerprint, the metrics known at that time and other entries of the writer. A step gets this name once all its
files are written. It counts as a checkpoint once it has checksums (`checksums.py`). Steps older than this feature count
without checksums: their record does not announce any.

A trainer may remove a step while it is being read. If the newest or the best step was requested, the reader then
chooses again, because another step exists.

All processes of a run read the same step, which process 0 chooses. Each process verifies the checksums of a share of
the files. If one process fails to read the step, all fail (`process_agreement.py`).
"""

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import path_name
from efficient_attention.processes.peer_monitor import gather_from_peers, process_index_and_count
from efficient_attention.workdir.checksums import (
    ProcessShare,
    find_checksum_mismatch,
    has_all_checksums,
    missing_checksums,
)
from efficient_attention.workdir.last_saved_step import is_past_first_save, lost_checkpoints_message
from efficient_attention.workdir.metrics import best_metric_value, read_metrics
from efficient_attention.workdir.orbax_errors import drop_late_orbax_errors, failure_reason, without_orbax_log
from efficient_attention.workdir.process_agreement import broadcast_from_process_0, require_in_all_processes
from efficient_attention.workdir.stored_evaluations import HELD_OUT, pick_best_evaluation, read_evaluations_until_step

FOLDER = 'checkpoints'
STATE = 'state'
RECORD = 'record'
HAS_SEAL = 'has_seal'  # A checkpoint whose record has this key is complete only if it has its checksums.
UNSEALED = 'as happens if its save is killed'
# A trainer may take this long to write checksums, so readers do not warn about younger checkpoints without checksums.
SEALING_SECONDS = 600.0
LAST, BEST = 'last', 'best'  # names of checkpoints that a user may give instead of step numbers
LOG = logging.getLogger(__name__)
# Each failed attempt means that a trainer has removed that checkpoint, and so has saved a newer one.
READ_ATTEMPTS = 100
Read = TypeVar('Read')
NAMED_DIFFERENCES = 3  # An error message names this many differing arrays, and says how many more there are.


class RestoredCheckpoint(NamedTuple):
    """The content of a loaded checkpoint: its step, its state and its JSON record."""

    step: int
    state: Any  # a tree of arrays with the structure of the requested abstract state
    record: dict[str, Any]


class UnreadCheckpoint(NamedTuple):
    """A checkpoint whose JSON record is loaded, but whose arrays are not."""

    step: int
    record: dict[str, Any]


class BestChoice(NamedTuple):
    """A user's choice of the best checkpoint, by one of the metrics in the checkpoints' records."""

    metric: str
    mode: str  # 'min' if the smallest value of the metric is best, 'max' if the largest is


Wanted = int | BestChoice | None  # The wanted checkpoint is a step, the best checkpoint, or (None) the newest.


class CheckpointReader:
    """Reads the checkpoints of one workdir. It writes nothing and takes no lock, so any number of processes may
    read.
    """

    def __init__(self, workdir: Path) -> None:
        self.folder = workdir.absolute() / FOLDER
        drop_late_orbax_errors()

    def complete_steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints, ascending. A complete checkpoint has all its files, and also
        checksums if its record announces them.
        """
        found: list[int] | None = None
        # If a trainer adds a checkpoint and removes another one meanwhile, one listing of the folder may miss both.
        for _ in range(READ_ATTEMPTS):
            before, found = found, [step for step in self.written_steps() if self._is_complete_step(step)]
            if found == before:
                break
        return found or []

    def written_steps(self) -> list[int]:
        """Returns the steps of all checkpoints whose files are written, in ascending order, whether they have checksums
        or not.
        """
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

    def existing_steps(self) -> list[int]:
        """Returns the steps of all checkpoints whose files are written, in ascending order; raises InputError if there
        are none.
        """
        steps = self.written_steps()
        if not steps:
            raise InputError(self._no_checkpoint_message())
        return steps

    def check_checkpoints_not_lost(self) -> None:
        """Raises InputError if the run has saved checkpoints but all of them are gone. Otherwise the run would silently
        start over.
        """
        if line := self._lost_checkpoints_text():
            raise InputError(f'{line}, name a new --workdir, or remove {self.folder.parent} to begin anew')

    def _lost_checkpoints_text(self) -> str:
        return '' if self.written_steps() else lost_checkpoints_message(self.folder.parent, self.folder)

    def _no_checkpoint_message(self) -> str:
        return self._lost_checkpoints_text() or f'there is no checkpoint in {self.folder}'

    def find_damage(self, step: int) -> str:
        """Returns a short text that says how a checkpoint's files differ from their checksums; '' if they are equal, or
        the checkpoint is too old for checksums.

        A step that is a link counts as damaged: its target may be anywhere, and may change.
        Each of several processes verifies a share of the files; all get the same answer.
        """
        folder, found = self.folder / str(step), ''
        if links := [path for path in (self.folder, folder) if path.is_symlink()]:
            found = f'{links[0]} is a link'
        elif has_all_checksums(folder) or not self._is_complete_step(step):
            found = find_checksum_mismatch(
                folder, checkpoint_label(step), share=ProcessShare(*process_index_and_count())
            )
        return next(filter(None, gather_from_peers(found)), '')

    def is_being_saved(self, step: int) -> bool:
        """Returns whether a checkpoint has no checksums yet, but is so young that a trainer may still write them."""
        try:
            age = time.time() - (self.folder / str(step)).stat().st_mtime
        except FileNotFoundError:
            return False
        return age < SEALING_SECONDS and not self._is_complete_step(step)

    def latest_step(self) -> int | None:
        """Returns the newest complete checkpoint step; None if there is none."""
        return max(self.complete_steps(), default=None)

    def best_step(self, metric: str, mode: str = 'min') -> int | None:
        """Returns the checkpoint step with the best value of `metric` in its record, or None. Of equally good steps, it
        returns the newest.
        """
        steps: list[int] | None = None
        for _ in range(READ_ATTEMPTS):  # The loop repeats until no checkpoint was removed while the records were read.
            before, steps = steps, self.complete_steps()
            if steps == before:
                break
            values = {step: best_metric_value(self.metrics_of_step(step), metric) for step in steps}
        scored = [(value if mode == 'max' else -value, step) for step, value in values.items() if value is not None]
        return max(scored, default=(None, None))[1]

    def parse_choice(self, choice: str, *, metric: str, mode: str = 'min') -> Wanted:
        """Parses the checkpoint that a user asks for, into the form that `restore` and `read_record` accept.

        Args:
            choice: 'last', 'best' or a step number, as given on the command line.
            metric: decides 'best'; the run's `checkpoint.best_metric`, '' = none.
            mode: 'min' or 'max': whether the smallest or largest value is best.

        Raises:
            InputError: there is no such checkpoint, or no best one; lists the existing ones.
        """
        if choice == LAST:
            return None
        step = self._existing_step_or_error(int(choice) if choice.isdecimal() else None)
        if choice.isdecimal():
            return step
        kept = f'kept steps in {self.folder}: {_format_steps(self.complete_steps())}'
        if choice != BEST:
            raise InputError(f'checkpoint {choice!r} is none of {LAST}, {BEST} and a step; {kept}')
        if not metric:
            raise InputError(f'no checkpoint is the best one, as checkpoint.best_metric names no metric; {kept}')
        self._best_step_or_error(BestChoice(metric, mode))
        return BestChoice(metric, mode)

    def resolve_step(self, wanted: Wanted) -> int:
        """Returns the step number of the wanted checkpoint; raises InputError if there is no such checkpoint."""
        return (
            self._best_step_or_error(wanted) if isinstance(wanted, BestChoice) else self._existing_step_or_error(wanted)
        )

    def metrics_of_step(self, step: int) -> dict[str, float]:
        """Returns the validation metrics of a checkpoint, from its record or from the file of a later evaluation.

        Returns {} if there are none, the record cannot be read, or a trainer removes the step meanwhile.
        """
        try:
            record = self._read_step_record(step)
            lines = [] if record.get('metrics') else read_evaluations_until_step(self.folder, step, record)
        except InputError:
            return {}
        found = next((line for line in lines if line['step'] == step), {})
        finite = {name: one for name, one in found.items() if name not in ('step', 'split') and math.isfinite(one)}
        return record.get('metrics') or finite

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns the metrics of all evaluations up to the run's newest checkpoint. Without a checkpoint, they come
        from metrics.jsonl.
        """
        step = self.latest_step()
        if step is None:
            return [line for line in read_metrics(self.folder.parent) if line['split'] == HELD_OUT]
        return read_evaluations_until_step(self.folder, step, self._read_step_record(step))

    def read_record(self, wanted: Wanted = None) -> dict[str, Any]:
        """Returns the JSON record of a checkpoint; raises InputError as `restore` does."""
        return self._read_with_retry(self._step_chooser(wanted), self._read_step_record)

    def restore(self, abstract_state: Any, wanted: Wanted = None) -> RestoredCheckpoint:
        """Loads a checkpoint: returns its state, placed on devices with the shardings of `abstract_state`, and its JSON
        record.

        Args:
            abstract_state: pytree of `jax.ShapeDtypeStruct` with shardings, structured as the saved state. A dict with
                some of its top-level fields, such as {'params': ...}, loads only these fields.
            wanted: a step number, or the best step; None = the newest undamaged one.

        Raises:
            InputError: the step does not exist (lists the existing ones), the arrays differ in name, shape or dtype
                (names the first), or the files are damaged.
        """

        def read(step: int) -> RestoredCheckpoint:
            if wanted is not None:
                self._check_undamaged(step)
            return self._restore_step(abstract_state, step)

        return self._read_with_retry(self._step_chooser(wanted), read)

    def read_state(self, abstract_state: Any, step: int) -> Any:
        """Loads the state of an existing checkpoint, without its record; arguments and errors are as in `restore`."""
        folder = self.folder / str(step)
        arguments = ocp.args.PyTreeRestore(
            abstract_state,
            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract_state),
            # An older state may lack a field without arrays; `check_arrays_match` still finds missing arrays.
            partial_restore=True,
        )
        saved = array_specs(self.saved_array_metadata(step))
        if isinstance(abstract_state, dict):
            saved = {name: leaf for name, leaf in saved.items() if name.split('/')[0] in abstract_state}
        check_arrays_match(saved, array_specs(abstract_state), where=f'checkpoint {folder}')
        with self._shorten_orbax_errors(step), _open_checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(folder / STATE, args=arguments)

    def saved_array_metadata(self, step: int) -> Any:
        """Returns the names, shapes and dtypes of a checkpoint's arrays as a tree; raises InputError if they are
        unreadable.
        """
        with self._shorten_orbax_errors(step):
            tree = ocp.PyTreeCheckpointHandler().metadata(self.folder / str(step) / STATE).tree
            array_specs(tree)
        return tree

    def newest_checkpoint(self) -> UnreadCheckpoint | None:
        """Returns the newest undamaged checkpoint with its record, or None if there is none. Use it only while no
        trainer is running.

        Logs a warning for each skipped checkpoint.

        Raises:
            InputError: all checkpoints are damaged, or none has checksums although a save was complete; names them.
        """
        if not broadcast_from_process_0(self.complete_steps):
            self._check_checksums_exist()
            self._log_incomplete_steps(-1, seconds=0.0)
            return None
        return self._read_with_retry(
            lambda: self._newest_undamaged_step(0.0), lambda step: UnreadCheckpoint(step, self._read_step_record(step))
        )

    def _check_checksums_exist(self) -> None:
        """Raises InputError if checkpoints are written but none has checksums, unless a kill during the first save
        explains this.
        """
        steps = self.written_steps()
        if len(steps) > 1 or any(is_past_first_save(self.folder.parent, step) for step in steps):
            raise InputError(
                f'no checkpoint in {self.folder} has checksums, which a kill in the first save does not explain; kept '
                f'steps: {_format_steps(steps)}; restore their files seal-*.sha256, or name a new --workdir'
            )

    def _read_with_retry(self, choose: Callable[[], int], read: Callable[[int], Read]) -> Read:
        """Chooses a checkpoint by `choose` and reads it by `read`. If a trainer removes the checkpoint meanwhile, it
        chooses and reads again.
        """
        for _ in range(READ_ATTEMPTS - 1):
            step = choose()
            try:
                return require_in_all_processes(functools.partial(read, step))
            except InputError:
                if step in broadcast_from_process_0(self.written_steps):
                    raise
        return require_in_all_processes(functools.partial(read, choose()))

    def _step_chooser(self, wanted: Wanted) -> Callable[[], int]:
        return (
            self._newest_undamaged_step
            if wanted is None
            else lambda: broadcast_from_process_0(lambda: self.resolve_step(wanted))
        )

    def _newest_undamaged_step(self, seconds: float = SEALING_SECONDS) -> int:
        """Returns the newest undamaged checkpoint step, and warns about newer steps that are damaged or have no
        checksums.

        Raises:
            InputError: there is none.
        """
        skipped: set[int] = set()
        while (
            step := broadcast_from_process_0(lambda: max(set(self.complete_steps()) - skipped, default=None))
        ) is not None:
            found = self.find_damage(step)
            if not found:
                self._log_incomplete_steps(step, seconds=seconds)
                return step
            # If the checkpoint is gone, a trainer has removed it meanwhile, and no warning is needed.
            if step in self.complete_steps():
                LOG.warning('checkpoint %s is skipped: %s', self.folder / str(step), found)
            skipped.add(step)
        self._existing_step_or_error(None)
        raise InputError(
            f'no checkpoint in {self.folder} is undamaged; kept steps: {_format_steps(self.complete_steps())}'
        )

    def _log_incomplete_steps(self, step: int, *, seconds: float) -> None:
        """Warns about checkpoints newer than `step` that have no checksums, if they were written at least `seconds`
        ago.
        """
        for newer in self.written_steps():
            folder = self.folder / str(newer)
            with contextlib.suppress(FileNotFoundError):  # A trainer may remove the checkpoint meanwhile.
                if (
                    newer > step
                    and time.time() - folder.stat().st_mtime >= seconds
                    and not self._is_complete_step(newer)
                ):
                    line = 'checkpoint %s is skipped: it lacks checksums: %s, %s'
                    LOG.warning(line, folder, missing_checksums(folder), UNSEALED)

    def _check_undamaged(self, step: int) -> None:
        found = self.find_damage(step)
        if found:
            others = [other for other in self.complete_steps() if other != step]
            rest = f'; other steps: {_format_steps(others)}' if others else ''
            raise InputError(f'checkpoint {self.folder / str(step)} is damaged: {found}{rest}')

    def _is_complete_step(self, step: int) -> bool:
        """Returns whether a checkpoint has checksums, or is from an older version that wrote none."""
        folder = self.folder / str(step)
        if has_all_checksums(folder):
            return True
        try:
            return HAS_SEAL not in read_json_file(folder / RECORD / 'metadata')
        except (OSError, ValueError, TypeError):
            return False

    def _restore_step(self, abstract_state: Any, step: int) -> RestoredCheckpoint:
        return RestoredCheckpoint(step, self.read_state(abstract_state, step), self._read_step_record(step))

    def _read_step_record(self, step: int) -> dict[str, Any]:
        with self._shorten_orbax_errors(step), _open_checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
            return _check_record_types(checkpointer.restore(self.folder / str(step) / RECORD))

    def _best_step_or_error(self, wanted: BestChoice) -> int:
        step = self.best_step(*wanted)
        if step is None:
            kept = f'kept steps in {self.folder}: {_format_steps(self.complete_steps())}'
            raise InputError(f'no checkpoint is the best one, as none has the metric {wanted.metric!r}; {kept}')
        return step

    def _existing_step_or_error(self, step: int | None) -> int:
        steps = self.complete_steps()
        if not steps:
            raise InputError(self._no_checkpoint_message())
        if step is not None and step not in steps:
            raise InputError(
                f'there is no checkpoint of step {step} in {self.folder}; kept steps: {_format_steps(steps)}'
            )
        return steps[-1] if step is None else step

    @contextlib.contextmanager
    def _shorten_orbax_errors(self, step: int) -> Iterator[None]:
        """Context manager that turns errors of Orbax and TensorStore, which may be pages long, into an InputError of
        one line.
        """
        try:
            with without_orbax_log():
                yield
        except Exception as error:
            others = [other for other in self.complete_steps() if other != step]
            rest = f'; other steps: {_format_steps(others)}' if others else ''
            line = f'checkpoint {self.folder / str(step)} cannot be read: {failure_reason(error)}{rest}'
            raise InputError(line) from error


def _open_checkpointer(handler: ocp.CheckpointHandler) -> ocp.Checkpointer:
    """Returns an Orbax checkpointer that does not synchronise processes; otherwise a process that fails would leave the
    others waiting.
    """
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _check_record_types(record: Any) -> dict[str, Any]:
    """Returns a checkpoint's record if its groups have the types that other code relies on; otherwise raises
    ValueError.
    """
    if not isinstance(record, dict):
        raise ValueError('its record is not a JSON object of the expected form')
    fingerprint, metrics = record.get('fingerprint', {}), record.get('metrics', {})
    if not (isinstance(fingerprint, dict) and isinstance(metrics, dict)):
        raise ValueError('its record is not a JSON object of the expected form')
    if not all(isinstance(value, (int, float)) for value in metrics.values()):
        raise ValueError('the metrics of its record are not numbers')
    return record


def read_best_evaluation(workdir: Path, config: CheckpointConfig) -> dict[str, float]:
    """Returns step and metrics of a run's best evaluation by `checkpoint.best_metric`, or of the last one if no metric
    is named; {} without evaluations.
    """
    return pick_best_evaluation(CheckpointReader(workdir).evaluations(), config)


def checkpoint_label(step: int) -> str:
    """Returns the label of a step, which the checksum files of its checkpoint contain."""
    return f'step {step}'


def _format_steps(steps: list[int]) -> str:
    return ', '.join(map(str, steps))


class ArraySpec(NamedTuple):
    """Shape and dtype of one array in a training state."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f'{self.dtype} {list(self.shape)}'


def array_specs(tree: Any) -> dict[str, ArraySpec]:
    """Returns {path: ArraySpec} for a tree of arrays or of their metadata, with paths such as
    'params/layers/up/kernel'.
    """
    return {
        path_name(path): ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype).name)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def check_arrays_match(saved: Mapping[str, ArraySpec], wanted: Mapping[str, ArraySpec], *, where: str) -> None:
    """Raises InputError unless a checkpoint holds exactly the wanted arrays, by names, shapes and dtypes; reads no
    array.

    Orbax reports a wrong shape or name with a page of text, and casts a wrong dtype silently.

    Raises:
        InputError: one line; names the first differing arrays, parameters before optimizer state, and counts the rest.
    """
    names = sorted({*saved, *wanted}, key=lambda name: (not name.startswith('params/'), name))
    different = [name for name in names if saved.get(name) != wanted.get(name)]
    if different:
        described = [
            _describe_mismatch(name, saved.get(name), wanted.get(name)) for name in different[:NAMED_DIFFERENCES]
        ]
        rest = len(different) - len(described)
        more = f'; and {rest} more' if rest else ''
        raise InputError(f'{where} is from another model: {"; ".join(described)}{more}')


def _describe_mismatch(name: str, saved: ArraySpec | None, wanted: ArraySpec | None) -> str:
    if saved is None:
        return f'{name} is missing in the checkpoint ({wanted} in this model)'
    if wanted is None:
        return f'{name} is only in the checkpoint ({saved})'
    return f'{name} is {saved} in the checkpoint and {wanted} in this model'

"""Reads the checkpoints of a workdir, for evaluation, for resuming, and while a trainer is running.

`checkpoints/<step>/` holds `state`, a pytree of arrays, and `record`, a JSON object. The record holds the step, the
run's fingerprint, the metrics known at that time and other entries of the writer. A step gets this name once all its
files are written. It counts as a checkpoint once it has checksums (`checksums.py`). Steps older than this feature count
without checksums: their record does not announce any.

A trainer may remove a step while it is being read. A request for the newest or the best step then looks again, because
there is always another one.

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
from efficient_attention.config.json_text import read_json_file
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import path_name
from efficient_attention.processes.peers import gather_from_peers, process_index_and_count
from efficient_attention.workdir.checksums import (
    ProcessShare,
    find_checksum_mismatch,
    has_all_checksums,
    missing_checksums,
)
from efficient_attention.workdir.evaluations import HELD_OUT, earlier_evaluations, pick_best_evaluation
from efficient_attention.workdir.last_saved_step import is_past_first_save, lost_checkpoints_message
from efficient_attention.workdir.metrics import best_metric_value, read_metrics
from efficient_attention.workdir.orbax_errors import drop_late_orbax_errors, failure_reason, without_orbax_log
from efficient_attention.workdir.process_agreement import broadcast_from_process_0, require_in_all_processes

FOLDER = 'checkpoints'
STATE = 'state'
RECORD = 'record'
HAS_SEAL = 'has_seal'  # key in a record: this step counts only with its checksums
UNSEALED = 'as happens if its save is killed'
# How long a trainer may take to write checksums; readers do not warn about steps younger than this.
SEALING_SECONDS = 600.0
LAST, BEST = 'last', 'best'  # names of checkpoints besides step numbers
LOG = logging.getLogger(__name__)
READ_ATTEMPTS = 100  # each failed attempt means that a trainer has removed the step, and so has saved a newer one
Read = TypeVar('Read')
NAMED_DIFFERENCES = 3  # number named in the message; the rest is counted


class RestoredCheckpoint(NamedTuple):
    """The content of a checkpoint."""

    step: int
    state: Any  # has the structure of the requested abstract state
    record: dict[str, Any]


class UnreadCheckpoint(NamedTuple):
    """A checkpoint whose arrays have not been read yet."""

    step: int
    record: dict[str, Any]


class BestChoice(NamedTuple):
    """A user's choice of the best checkpoint by a metric in the checkpoint records."""

    metric: str
    mode: str  # 'min' or 'max': whether the smallest or largest value is best


Wanted = int | BestChoice | None  # a step, the best one, or the newest


class CheckpointReader:
    """Reads the checkpoints of one workdir; writes nothing and takes no lock, so any number of processes may read."""

    def __init__(self, workdir: Path) -> None:
        self.folder = workdir.absolute() / FOLDER
        drop_late_orbax_errors()

    def complete_steps(self) -> list[int]:
        """Returns all completely written steps, ascending; a step whose record announces checksums must have them."""
        found: list[int] | None = None
        # A listing may miss both steps if a trainer adds one and removes another meanwhile.
        for _ in range(READ_ATTEMPTS):
            before, found = found, [step for step in self.written_steps() if self._is_complete_step(step)]
            if found == before:
                break
        return found or []

    def written_steps(self) -> list[int]:
        """Returns all completely written steps, ascending, with or without checksums."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

    def existing_steps(self) -> list[int]:
        """Returns all completely written steps, ascending; raises InputError if there are none."""
        steps = self.written_steps()
        if not steps:
            raise InputError(self._no_checkpoint_message())
        return steps

    def check_checkpoints_not_lost(self) -> None:
        """Raises InputError if the run has saved checkpoints but all are gone: the run must not silently start over."""
        if line := self._lost_line():
            raise InputError(f'{line}, name a new --workdir, or remove {self.folder.parent} to begin anew')

    def _lost_line(self) -> str:
        return '' if self.written_steps() else lost_checkpoints_message(self.folder.parent, self.folder)

    def _no_checkpoint_message(self) -> str:
        return self._lost_line() or f'there is no checkpoint in {self.folder}'

    def find_damage(self, step: int) -> str:
        """Returns how a step differs from its checksums, in a few words; '' if it does not or is too old for checksums.

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
        """Whether a step has no checksums yet but is so young that a trainer may still write them."""
        try:
            age = time.time() - (self.folder / str(step)).stat().st_mtime
        except FileNotFoundError:
            return False
        return age < SEALING_SECONDS and not self._is_complete_step(step)

    def latest_step(self) -> int | None:
        """Returns the newest of `steps`, or None."""
        return max(self.complete_steps(), default=None)

    def best_step(self, metric: str, mode: str = 'min') -> int | None:
        """Returns the step with the best ('min' or 'max') `metric` in its record, the newest of equal ones, or None."""
        steps: list[int] | None = None
        for _ in range(READ_ATTEMPTS):  # repeats until no step was removed while the records were read
            before, steps = steps, self.complete_steps()
            if steps == before:
                break
            values = {step: best_metric_value(self.metrics_of_step(step), metric) for step in steps}
        scored = [(value if mode == 'max' else -value, step) for step, value in values.items() if value is not None]
        return max(scored, default=(None, None))[1]

    def parse_choice(self, choice: str, *, metric: str, mode: str = 'min') -> Wanted:
        """Returns a user's `choice` in the form that `record` and `restore` accept.

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
        """Returns the number of the requested step; raises InputError if there is none."""
        return (
            self._best_step_or_error(wanted) if isinstance(wanted, BestChoice) else self._existing_step_or_error(wanted)
        )

    def metrics_of_step(self, step: int) -> dict[str, float]:
        """Returns a step's metrics, from its record or, if it was evaluated after its save, from the file next to it.

        Returns {} if there are none, the record cannot be read, or a trainer removes the step meanwhile.
        """
        try:
            record = self._read_step_record(step)
            lines = [] if record.get('metrics') else earlier_evaluations(self.folder, step, record)
        except InputError:
            return {}
        found = next((line for line in lines if line['step'] == step), {})
        finite = {name: one for name, one in found.items() if name not in ('step', 'split') and math.isfinite(one)}
        return record.get('metrics') or finite

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns all evaluations up to the run's newest checkpoint; from metrics.jsonl if it has no checkpoint."""
        step = self.latest_step()
        if step is None:
            return [line for line in read_metrics(self.folder.parent) if line['split'] == HELD_OUT]
        return earlier_evaluations(self.folder, step, self._read_step_record(step))

    def read_record(self, wanted: Wanted = None) -> dict[str, Any]:
        """Returns the JSON record of a step; raises InputError as `restore` does."""
        return self._read_with_retry(self._step_chooser(wanted), self._read_step_record)

    def restore(self, abstract_state: Any, wanted: Wanted = None) -> RestoredCheckpoint:
        """Returns the state of a step, placed on devices with the shardings of `abstract_state`, and its record.

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
        """Returns the state of an existing step, without its record; arguments and errors as `restore`."""
        folder = self.folder / str(step)
        arguments = ocp.args.PyTreeRestore(
            abstract_state,
            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract_state),
            # `check_arrays_match` compares all names; an older state may lack a field that is now empty.
            partial_restore=True,
        )
        saved = array_specs(self.saved_array_metadata(step))
        if isinstance(abstract_state, dict):
            saved = {name: leaf for name, leaf in saved.items() if name.split('/')[0] in abstract_state}
        check_arrays_match(saved, array_specs(abstract_state), where=f'checkpoint {folder}')
        with self._shorten_orbax_errors(step), _open_checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(folder / STATE, args=arguments)

    def saved_array_metadata(self, step: int) -> Any:
        """Returns names, shapes and dtypes of a step's arrays as a pytree; raises InputError if they are unreadable."""
        with self._shorten_orbax_errors(step):
            tree = ocp.PyTreeCheckpointHandler().metadata(self.folder / str(step) / STATE).tree
            array_specs(tree)
        return tree

    def newest_checkpoint(self) -> UnreadCheckpoint | None:
        """Returns the newest undamaged checkpoint with its record, or None if there is none; for use without a trainer.

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
        """Raises InputError if no written step has checksums and a kill during the first save cannot explain it."""
        steps = self.written_steps()
        if len(steps) > 1 or any(is_past_first_save(self.folder.parent, step) for step in steps):
            raise InputError(
                f'no checkpoint in {self.folder} has checksums, which a kill in the first save does not explain; kept '
                f'steps: {_format_steps(steps)}; restore their files seal-*.sha256, or name a new --workdir'
            )

    def _read_with_retry(self, choose: Callable[[], int], read: Callable[[int], Read]) -> Read:
        """Returns what `read` returns for the step from `choose`; chooses again if a trainer has removed that step."""
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
        """Returns the newest undamaged step; warns about newer steps, except ones without checksums within `seconds`.

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
            if step in self.complete_steps():  # otherwise a trainer has removed it meanwhile
                LOG.warning('checkpoint %s is skipped: %s', self.folder / str(step), found)
            skipped.add(step)
        self._existing_step_or_error(None)
        raise InputError(
            f'no checkpoint in {self.folder} is undamaged; kept steps: {_format_steps(self.complete_steps())}'
        )

    def _log_incomplete_steps(self, step: int, *, seconds: float) -> None:
        """Warns about steps after this one that have no checksums and are older than this many seconds."""
        for newer in self.written_steps():
            folder = self.folder / str(newer)
            with contextlib.suppress(FileNotFoundError):  # a trainer has removed it meanwhile
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
        """Whether a step has checksums, or its record announces none."""
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
            return _check_record(checkpointer.restore(self.folder / str(step) / RECORD))

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
        """Turns the errors of Orbax and TensorStore, of many types and pages long, into an InputError of one line."""
        try:
            with without_orbax_log():
                yield
        except Exception as error:
            others = [other for other in self.complete_steps() if other != step]
            rest = f'; other steps: {_format_steps(others)}' if others else ''
            line = f'checkpoint {self.folder / str(step)} cannot be read: {failure_reason(error)}{rest}'
            raise InputError(line) from error


def _open_checkpointer(handler: ocp.CheckpointHandler) -> ocp.Checkpointer:
    """Returns Orbax's reader without a barrier: otherwise a process that fails would leave the others waiting."""
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _check_record(record: Any) -> dict[str, Any]:
    """Returns a record after checking the types of its groups, on which other code relies; raises ValueError."""
    if not isinstance(record, dict):
        raise ValueError('its record is not a JSON object of the expected form')
    fingerprint, metrics = record.get('fingerprint', {}), record.get('metrics', {})
    if not (isinstance(fingerprint, dict) and isinstance(metrics, dict)):
        raise ValueError('its record is not a JSON object of the expected form')
    if not all(isinstance(value, (int, float)) for value in metrics.values()):
        raise ValueError('the metrics of its record are not numbers')
    return record


def best_evaluation(workdir: Path, config: CheckpointConfig) -> dict[str, float]:
    """Returns step and metrics of a run's best evaluation by `config`, else of the last one; {} without any."""
    return pick_best_evaluation(CheckpointReader(workdir).evaluations(), config)


def checkpoint_label(step: int) -> str:
    """Returns the label of a checkpoint in its checksum files."""
    return f'step {step}'


def _format_steps(steps: list[int]) -> str:
    return ', '.join(map(str, steps))


class ArraySpec(NamedTuple):
    """Shape and dtype of one array of a state."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f'{self.dtype} {list(self.shape)}'


def array_specs(tree: Any) -> dict[str, ArraySpec]:
    """Returns {'params/layers/up/kernel': Leaf} for a pytree of arrays, abstract arrays or their metadata."""
    return {
        path_name(path): ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype).name)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def check_arrays_match(saved: Mapping[str, ArraySpec], wanted: Mapping[str, ArraySpec], *, where: str) -> None:
    """Checks that a checkpoint holds exactly the wanted arrays, by names, shapes and dtypes, before anything is read.

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

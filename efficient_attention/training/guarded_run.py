"""Protects a training run: claims and locks the workdir, restores the newest checkpoint, watches for hangs, and writes
the report at the end.

Before the first step, it also checks that all processes have the same config and the same data.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from efficient_attention.config.dict_conversion import flatten, to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, RunError, counted, show_error
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.processes.graceful_stop import GracefulStop
from efficient_attention.processes.peer_monitor import check_facts_agree_with_peers, report_error_to_peers
from efficient_attention.processes.phase_log import END, RESTORING, note_phase
from efficient_attention.processes.watchdog import Watchdog
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.training.early_stop import Patience
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.progress import ProgressDisplay, show_long_activity, show_progress
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.startup_notes import unusual_setting_notes
from efficient_attention.training.state import TrainState
from efficient_attention.training.step_queue import INTERVAL, MetricsInterval
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, UnreadCheckpoint
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.config_file import (
    changeable_fields,
    check_saved_config,
    claim_workdir,
    more_steps_note,
    with_new_field_defaults,
)
from efficient_attention.workdir.environment import write_environment
from efficient_attention.workdir.fingerprint import compare_fingerprints
from efficient_attention.workdir.folder_kind import RUN, check_folder_kind
from efficient_attention.workdir.inference_files import FILES, FINGERPRINT, describe_changed_file, file_hashes
from efficient_attention.workdir.last_saved_step import last_logged_step, missing_newer_step_note
from efficient_attention.workdir.metrics import FILE_NAME as METRICS
from efficient_attention.workdir.metrics import MetricsLog, changed_lines_note, read_metrics, unreadable_lines_note
from efficient_attention.workdir.report import write_report
from efficient_attention.workdir.run_status import record_end, record_start
from efficient_attention.workdir.samples_log import remove_samples_after
from efficient_attention.workdir.stored_evaluations import read_evaluations_until_step
from efficient_attention.workdir.trackers.all_trackers import Trackers, check_trackers, open_trackers
from efficient_attention.workdir.trackers.tracker import TrackedRun

LINES = 'metrics_lines'  # key in a checkpoint's JSON record: how many lines metrics.jsonl had
LINES_HASH = 'metrics_sha256'  # key in a checkpoint's JSON record: the SHA-256 of all lines that metrics.jsonl had


@dataclasses.dataclass(frozen=True)
class GuardedRun:
    """A training run that has claimed its workdir and is ready for its next step."""

    run: Run
    state: TrainState  # training state of the newest checkpoint, or of a new run
    evaluations: list[dict[str, Any]]  # the metrics of each evaluation up to the restored checkpoint
    patience: Patience  # the early-stopping counter, which has counted all earlier evaluations
    interval: MetricsInterval  # sums of the metrics of all steps since the last line in the log
    checkpoints: CheckpointWriter
    record: dict[str, Any]  # JSON values that all checkpoints of the run store
    log: MetricsLog
    progress: ProgressDisplay
    watchdog: Watchdog
    stop: GracefulStop

    def is_complete(self, step: int) -> bool:
        """Returns whether the run ends after this step, because it is the last step or the run stops early."""
        return step == self.run.config.train.steps or self.patience.is_patience_exhausted


@contextlib.contextmanager
def guarded_run(
    config: RunConfig, workdir: Path, *, examples: EncodedExamples | None = None, pretrained: Pretrained | None = None
) -> Iterator[GuardedRun]:
    """Yields a training run whose state is restored or newly initialised. At the end, it writes the report and releases
    the workdir.

    While the run lasts:

    - a watchdog ends the process if the run makes no progress
    - once `stop.enable_graceful_stop` was called, a stop signal makes the run save and stop
    - other processes are informed of an error

    Args:
        config: the complete config of the run.
        workdir: the folder of the run; created if missing.
        examples: the encoded examples of a fine-tuning run, if already read.
        pretrained: the checkpoint of `train.start_from`, if already open.

    Raises:
        InputError: bad config, data or workdir.
        SaveError: the newest checkpoint was not saved.
    """
    stop = GracefulStop()
    is_begun = bool(CheckpointReader(workdir).complete_steps())
    if is_begun:
        # The config is checked before the data are prepared, which may take minutes.
        check_saved_config(workdir, config)
    else:
        check_folder_kind(workdir, RUN)
        CheckpointReader(workdir).check_checkpoints_not_lost()
    # Only process 0 logs, so other hosts need no packages and keys.
    check_trackers(config.train.tracker_names if jax.process_index() == 0 else ())
    # Data are prepared before the workdir is claimed, so that bad training data leave no workdir behind.
    run, start = build_run_with_data(config, examples), InitialParams(config, pretrained)
    if not is_begun:
        # The mask is loaded before the workdir is claimed, so that a bad mask leaves no workdir behind.
        start.load_pruning_mask(run)
    fingerprint = {'config': to_dict(config)} | run.fingerprint
    with contextlib.ExitStack() as stack:
        watchdog = stack.enter_context(Watchdog(config.train.stall_seconds, workdir))
        # The stop-signal handler ends late, so that a stop waits until the report is written and all files are closed.
        stack.enter_context(stop)
        note_phase(RESTORING)
        with show_long_activity(f'verifying the checkpoints in {workdir}'):
            checkpoints = stack.enter_context(CheckpointWriter(workdir, config.checkpoint))
        newest, evaluations = checkpoints.newest, evaluations_until_checkpoint(checkpoints)
        going_on_from = {'step': newest.step if newest else 0, 'evaluations': len(evaluations)}
        # Hosts may see different versions of the checkpoint files, so all processes compare what they found.
        check_facts_agree_with_peers({**fingerprint, 'going_on_from': going_on_from})
        with show_long_activity(f'restoring step {newest.step}' if newest else start.activity()):
            state = claim_and_restore_state(run, start, checkpoints, fingerprint)
        renewed = write_workdir_files(run, workdir, newest)
        first = int(state.step)
        write_environment(workdir)
        record_start(workdir)
        # The report is also written after an error, when it is most useful.
        stack.push(functools.partial(write_report_at_the_end, workdir))
        unsaved = (
            missing_newer_step_note(workdir, checkpoints.reader.folder, newest.step)
            if newest
            else no_checkpoint_note(workdir)
        )
        log = stack.enter_context(MetricsLog(workdir, start_step=first))
        if jax.process_index() == 0:
            remove_samples_after(workdir, first)
        checkpoints.before_seal = log.check_lines_written
        progress = stack.enter_context(show_progress(config.train.steps, start_step=first, activity=watchdog.activity))
        begun = f'resumed at step {first} in {workdir}' if newest else f'new run in {workdir}, {start.origin()}'
        progress.print_line(f'{run.describe_run()}; {begun}')
        log.trackers = stack.enter_context(trackers_of_run(config, workdir, first, progress))
        # `report_error_to_peers` runs first at the end, because closing the other objects may wait for other processes.
        stack.push(report_error_to_peers)
        guarded = GuardedRun(
            run=run,
            state=state,
            record={FINGERPRINT: fingerprint, FILES: file_hashes(workdir) if jax.process_index() == 0 else {}},
            evaluations=evaluations,
            patience=Patience(config.train.early_stop, config.checkpoint, evaluations),
            interval=restore_metrics_interval(newest),
            checkpoints=checkpoints,
            log=log,
            progress=progress,
            watchdog=watchdog,
            stop=stop,
        )
        notes = [
            *unsaved,
            *renewed,
            *more_steps_note(saved_fingerprint(newest), config),
            *damaged_metrics_notes(newest, log),
        ]
        for note in [*notes, *unusual_setting_notes(run, is_complete=guarded.is_complete(first))]:
            progress.print_line(note)
        yield guarded
        note_phase(END)


def build_run_with_data(config: RunConfig, examples: EncodedExamples | None) -> Run:
    """Returns a run whose training data are prepared, and shows that the preparation is going on.

    Raises:
        InputError: bad config or data.
    """
    # The data of the other tasks show their own progress.
    is_silent = config.task in ('text_to_text', 'fine_tuning')
    with show_long_activity('preparing the data') if is_silent else contextlib.nullcontext():
        run = build_run(config, examples=examples)
        check_best_metric(run)
        run.task.prepare_training()
    return run


def trackers_of_run(config: RunConfig, workdir: Path, start_step: int, progress: ProgressDisplay) -> Trackers:
    """Returns the trackers of `train.trackers`, which have not started yet; none in processes other than process 0."""
    names = config.train.tracker_names if jax.process_index() == 0 else ()
    tracked = TrackedRun(workdir.absolute(), flatten(to_dict(config)), start_step)
    return open_trackers(names, tracked, progress.print_line)


def claim_and_restore_state(
    run: Run, start: InitialParams, checkpoints: CheckpointWriter, fingerprint: dict[str, Any]
) -> TrainState:
    """Claims the workdir and returns the training state at the start: from the newest checkpoint, or of a new run.

    Raises:
        InputError: the workdir belongs to another run, or the checkpoint has other data or another config.
    """
    newest, workdir = checkpoints.newest, checkpoints.reader.folder.parent
    if newest is None:
        # The training state is made before the claim, so that a run that fails here does not claim the workdir.
        state = start.make_initial_state(run)
        claim_workdir(workdir, run.config, has_checkpoint=False)
        return state
    claim_workdir(workdir, run.config, has_checkpoint=True)
    saved = saved_fingerprint(newest)
    allowed = changeable_fields(saved, run.config)
    where = f'checkpoint {checkpoints.reader.folder / str(newest.step)}'
    compare_fingerprints(saved, fingerprint, where=where, changeable=allowed)
    checkpoints.remove_superseded()
    return checkpoints.reader.read_state(run.abstract_state, newest.step)


def saved_fingerprint(newest: UnreadCheckpoint | None) -> dict[str, Any]:
    """Returns the fingerprint in a checkpoint's record, with defaults for config fields that are newer; {} without a
    checkpoint.
    """
    return with_new_field_defaults(newest.record.get(FINGERPRINT, {})) if newest else {}


def evaluations_until_checkpoint(checkpoints: CheckpointWriter) -> list[dict[str, Any]]:
    """Returns the metrics of all evaluations up to the checkpoint from which a run resumes."""
    newest = checkpoints.newest
    return read_evaluations_until_step(checkpoints.reader.folder, newest.step, newest.record) if newest else []


def write_report_at_the_end(
    workdir: Path, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Records how a run ended, and writes its HTML report.

    Only process 0 writes the report, and only if the run has logged metrics.

    Raises:
        RunError, InputError: the report cannot be written. If the run ends with an error, the failure is only printed,
            so that it does not hide the error.
    """
    del kind, trace
    try:
        record_end(workdir, error)
        if jax.process_index() == 0 and read_metrics(workdir):
            write_report(workdir)
    except (RunError, InputError) as failure:
        if error is None:
            raise
        show_error(failure)


def check_best_metric(run: Run) -> None:
    """Raises InputError if the evaluations of the run do not compute the metric `checkpoint.best_metric`."""
    name = run.config.checkpoint.best_metric
    if name and name not in run.evaluation_metric_names:
        raise InputError(f'checkpoint.best_metric is {name!r}; known: {", ".join(sorted(run.evaluation_metric_names))}')


def write_workdir_files(run: Run, workdir: Path, newest: UnreadCheckpoint | None) -> list[str]:
    """In process 0, writes the tokenizer and vocabulary files of a workdir if they are missing or changed; returns a
    note about a changed file.

    Raises:
        InputError: even the new files differ from the files with which the checkpoint was saved.
    """
    record = newest.record if newest else {}
    if jax.process_index() > 0:
        return []
    changed = describe_changed_file(workdir, record)
    if FILES in record and not changed:
        return []
    run.task.save_assets(workdir)
    if found := describe_changed_file(workdir, record):
        raise InputError(f'{workdir} is damaged: {found}, and the data no longer produce the old file; restore it')
    return [f'{workdir}: {changed}; it is written anew'] if changed else []


def no_checkpoint_note(workdir: Path) -> list[str]:
    """Returns a list with one note if the previous run in this workdir ended before its first checkpoint, so that this
    run starts over; otherwise [].
    """
    last = last_logged_step(workdir)
    return [f'the run before ended at step {last} or later without a checkpoint; this one begins anew'] if last else []


def damaged_metrics_notes(newest: UnreadCheckpoint | None, log: MetricsLog) -> list[str]:
    """Returns notes on lines of metrics.jsonl from before the checkpoint that are unreadable, lost or changed; [] if
    there are none.
    """
    record = newest.record if newest else {}
    before, digest = record.get(LINES, 0), record.get(LINES_HASH)
    notes = unreadable_lines_note(log.workdir, log.dropped)
    if not isinstance(before, int) or jax.process_index() > 0:
        return notes
    if log.lines < before:
        found = f'{log.workdir / METRICS} has {counted(log.lines, "line")} of the steps so far'
        return [*notes, f'{found}, and had {before}: the rest is lost']
    return [*notes, *(changed_lines_note(log.workdir, log.kept[:before], digest) if isinstance(digest, str) else [])]


def restore_metrics_interval(newest: UnreadCheckpoint | None) -> MetricsInterval:
    """Returns the sums of metrics since the last log line, as the checkpoint stored them; empty sums without a
    checkpoint.
    """
    return (
        MetricsInterval.from_json(newest.record[INTERVAL])
        if newest and INTERVAL in newest.record
        else MetricsInterval()
    )

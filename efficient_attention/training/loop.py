"""The train loop: one for every task."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from efficient_attention.config.nested_dicts import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.distillation.kept_logits import keep_logits
from efficient_attention.errors import ExitCode, InputError, RunError, RunStopped, show_error
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.processes.peers import compare_with_peers, tell_peers
from efficient_attention.processes.phases import END, RESTORING, note_phase
from efficient_attention.processes.stop_signal import Cut, StopSignal
from efficient_attention.processes.watchdog import COMPILING, DEVICE, EVALUATING, INPUT, SAVING, Watchdog
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.training.early_stop import Patience
from efficient_attention.training.finite import check_state
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.interval import INTERVAL, Interval
from efficient_attention.training.peak_flops import peak_flops
from efficient_attention.training.progress import ProgressDisplay, show_progress
from efficient_attention.training.pruning_report import pruning_metrics
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.run_notes import run_notes
from efficient_attention.training.schedules import make_schedule
from efficient_attention.training.state import TrainState
from efficient_attention.training.step import jit_train_step
from efficient_attention.training.step_queue import StepQueue
from efficient_attention.training.throughput import Throughput
from efficient_attention.workdir.answer_files import FILES, FINGERPRINT, changed_file, file_hashes
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, Saved
from efficient_attention.workdir.checkpoint_writer import Checkpoints
from efficient_attention.workdir.config_file import (
    check_claim,
    claim_workdir,
    growth_note,
    may_differ,
    with_new_fields,
)
from efficient_attention.workdir.environment import write_environment
from efficient_attention.workdir.evaluations import EVALUATIONS, HELD_OUT, earlier_evaluations
from efficient_attention.workdir.fingerprint import compare_fingerprints
from efficient_attention.workdir.folder_kind import RUN, check_kind
from efficient_attention.workdir.metrics import FILE_NAME as METRICS
from efficient_attention.workdir.metrics import (
    MetricsLog,
    changed_lines_note,
    dropped_note,
    line_of,
    read_metrics,
    shown,
)
from efficient_attention.workdir.report import write_report
from efficient_attention.workdir.saved_before import gone_note, last_line


def train(
    config: RunConfig, workdir: Path, *, examples: EncodedExamples | None = None, pretrained: Pretrained | None = None
) -> dict[str, float]:
    """Trains to `train.steps`, from the newest checkpoint where there is one; returns the held-out metrics at its end.

    Where no text is held out there are no metrics.

    Args:
        config: complete.
        workdir: of the run; made where it is missing.
        examples: of a fine-tuning run, where they are read already.
        pretrained: the checkpoint of `train.start_from`, where it is open already.

    Raises:
        InputError: bad config, data or workdir.
        TrainingStopped: too many steps in a row were not finite, or the state is not.
        SaveError: the newest checkpoint was not saved, which is said at once and raised at the end, or at once
            where `checkpoint.when_save_fails` is 'stop'.
        RunStopped: a stop signal (SIGINT, SIGTERM) ended it after the step it was in, with a checkpoint, or in an
            evaluation. The same call goes on from there.
    """
    stop = StopSignal()
    is_begun = bool(CheckpointReader(workdir).steps())
    if is_begun:
        check_claim(workdir, config)  # before data are prepared, which may take minutes
    else:
        check_kind(workdir, RUN)
        CheckpointReader(workdir).check_not_lost()
    run, start = build_run(config, examples=examples), InitialParams(config, pretrained)
    check_best_metric(run)
    run.task.prepare_training()  # what it refuses leaves no workdir behind
    if not is_begun:
        start.read_mask(run)  # likewise
    fingerprint = {'config': to_dict(config)} | run.fingerprint
    with contextlib.ExitStack() as stack:
        watchdog = stack.enter_context(Watchdog(config.train.stall_seconds, workdir))
        stack.enter_context(stop)  # left after the report is written and all files are closed, which a stop waits for
        note_phase(RESTORING)
        checkpoints = stack.enter_context(Checkpoints(workdir, config.checkpoint))
        newest = checkpoints.newest
        compare_with_peers({**fingerprint, 'going_on_from': going_on_from(checkpoints)})
        state = begin_or_restore(run, start, checkpoints, fingerprint)
        renewed = write_assets(run, workdir, newest)
        first = int(state.step)
        write_environment(workdir)
        stack.push(functools.partial(write_report_at_the_end, workdir))  # also after an error: it is needed most then
        unsaved = gone_note(workdir, checkpoints.reader.folder, newest.step) if newest else unsaved_note(workdir)
        log = stack.enter_context(MetricsLog(workdir, start_step=first))
        checkpoints.before_seal = log.check_written
        progress = stack.enter_context(show_progress(config.train.steps, start_step=first))
        begun = f'resumed at step {first} in {workdir}' if newest else f'new run in {workdir}, {start.origin()}'
        progress.say(f'{run.describe()}; {begun}')
        stack.push(tell_peers)  # before anything of the above is closed, which may wait for the other processes
        record = {FINGERPRINT: fingerprint, FILES: file_hashes(workdir) if jax.process_index() == 0 else {}}
        trainer = Trainer(run, checkpoints, log, progress, record, watchdog)
        notes = [*unsaved, *renewed, *growth_note(saved_fingerprint(newest), config), *metrics_notes(newest, log)]
        for note in [*notes, *run_notes(run, is_complete=trainer.is_complete(first))]:
            progress.say(note)
        held_out = trainer.run_steps(state, stop)
        note_phase(END)
    return held_out


def begin_or_restore(
    run: Run, start: InitialParams, checkpoints: Checkpoints, fingerprint: dict[str, Any]
) -> TrainState:
    """The state that a run begins with, its workdir claimed: of `checkpoints.newest`, or a new one.

    Raises:
        InputError: the workdir is another run's, or the checkpoint is of other data or another config.
    """
    newest, workdir = checkpoints.newest, checkpoints.reader.folder.parent
    if newest is None:
        state = start.state(run)  # a run that is refused here does not claim the workdir
        claim_workdir(workdir, run.config, has_checkpoint=False)
        return state
    claim_workdir(workdir, run.config, has_checkpoint=True)
    saved = saved_fingerprint(newest)
    allowed = may_differ(saved, run.config)
    where = f'checkpoint {checkpoints.reader.folder / str(newest.step)}'
    compare_fingerprints(saved, fingerprint, where=where, changeable=allowed)
    checkpoints.remove_superseded()
    return checkpoints.reader.read_state(run.abstract_state, newest.step)


def saved_fingerprint(newest: Saved | None) -> dict[str, Any]:
    """The fingerprint that a checkpoint holds, with the fields that have been added since; {} without a checkpoint."""
    return with_new_fields(newest.record.get(FINGERPRINT, {})) if newest else {}


def going_on_from(checkpoints: Checkpoints) -> dict[str, int]:
    """The step from which a run goes on, and the evaluations before it; hosts may see older ones in a shared folder."""
    newest = checkpoints.newest
    return {'step': newest.step if newest else 0, 'evaluations': len(evaluations_before(checkpoints))}


def evaluations_before(checkpoints: Checkpoints) -> list[dict[str, Any]]:
    """The evaluations of a run until the checkpoint from which it goes on."""
    newest = checkpoints.newest
    return earlier_evaluations(checkpoints.reader.folder, newest.step, newest.record) if newest else []


def write_report_at_the_end(
    workdir: Path, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Writes the report in the first process, if there is anything to report.

    Raises:
        RunError, InputError: it cannot be written; only said where an error ends the run, which must not be lost.
    """
    del kind, trace
    try:
        if jax.process_index() == 0 and read_metrics(workdir):
            write_report(workdir)
    except (RunError, InputError) as failure:
        if error is None:
            raise
        show_error(failure)


def check_best_metric(run: Run) -> None:
    """Raises InputError at the start of a run whose `checkpoint.best_metric` no evaluation will give."""
    name = run.config.checkpoint.best_metric
    if name and name not in run.held_out_metrics:
        raise InputError(f'checkpoint.best_metric is {name!r}; known: {", ".join(sorted(run.held_out_metrics))}')


def write_assets(run: Run, workdir: Path, newest: Saved | None) -> list[str]:
    """Writes the files beside the checkpoints in the first process, if missing or changed; returns a line on a change.

    Raises:
        InputError: the new files differ, too, from those that the checkpoint was saved with.
    """
    record = newest.record if newest else {}
    if jax.process_index() > 0:
        return []
    changed = changed_file(workdir, record)
    if FILES in record and not changed:
        return []
    run.task.save_assets(workdir)
    if found := changed_file(workdir, record):
        raise InputError(f'{workdir} is damaged: {found}, and the data no longer give the old file; bring it back')
    return [f'{workdir}: {changed}; it is written anew'] if changed else []


def unsaved_note(workdir: Path) -> list[str]:
    """A line if the run before ended before its first checkpoint, so that this one begins anew; else none."""
    last = last_line(workdir)
    return [f'the run before ended at step {last} or later without a checkpoint; this one begins anew'] if last else []


def metrics_notes(newest: Saved | None, log: MetricsLog) -> list[str]:
    """Lines on metrics before the checkpoint that are unreadable, lost or changed; [] if all are as written."""
    record = newest.record if newest else {}
    before, digest = record.get(LINES, 0), record.get(LINES_HASH)
    notes = dropped_note(log.workdir, log.dropped)
    if not isinstance(before, int) or jax.process_index() > 0:
        return notes
    if log.lines < before:
        line = f'{log.workdir / METRICS} has {log.lines} lines of the steps so far, and had {before}: the rest is lost'
        return [*notes, line]
    return [*notes, *(changed_lines_note(log.workdir, log.kept[:before], digest) if isinstance(digest, str) else [])]


def saved_interval(newest: Saved | None) -> Interval:
    """The steps before a checkpoint that no line of the log tells of; of none without a checkpoint."""
    return Interval.restored(newest.record[INTERVAL]) if newest and INTERVAL in newest.record else Interval()


LINES = 'metrics_lines'  # of the record of a checkpoint: how many lines metrics.jsonl had
LINES_HASH = 'metrics_sha256'  # of the record: the SHA-256 of these lines


class Trainer:
    """The steps of one run, with logs, evaluations and checkpoints at their intervals."""

    def __init__(
        self,
        run: Run,
        checkpoints: Checkpoints,
        log: MetricsLog,
        progress: ProgressDisplay,
        record: dict[str, Any],  # what all checkpoints of the run hold
        watchdog: Watchdog,
    ) -> None:
        self.run, self.config, self.watchdog = run, run.config, watchdog
        self.checkpoints, self.log, self.progress, self.record = checkpoints, log, progress, record
        self.eval_step = run.evaluation.step()
        self.has_evaluations = self.config.has_held_out
        self.held_out: dict[str, float] = {}  # of the last evaluation
        self.is_cut = False  # whether a stop signal has ended the evaluation of the last step
        self.schedule = make_schedule(self.config.optimizer, self.config.train.steps)
        self.evaluations = evaluations_before(checkpoints)
        self.patience = Patience(self.config.train.early_stop, self.config.checkpoint, self.evaluations)
        self.queue = StepQueue(self.config.train.max_skipped_in_row, saved_interval(checkpoints.newest))
        device_peak = peak_flops(run.mesh.devices.flat[0].device_kind)
        self.throughput = Throughput(
            tokens_per_step=run.task.tokens_per_step() or self.config.train.batch_size * self.config.data.length,
            flops_per_step=run.task.training_flops(),
            peak_flops=device_peak * run.mesh.size if device_peak else None,
        )

    def is_complete(self, step: int) -> bool:
        """Whether a run that begins at this step has no step left to take."""
        return step == self.config.train.steps or self.patience.is_over

    def run_steps(self, state: TrainState, stop: StopSignal) -> dict[str, float]:
        """Takes the steps to the last, or to a stop signal, and saves; returns the held-out metrics of its end.

        Raises:
            RunStopped: at the stop signal, when the state is saved.
        """
        start, last = int(state.step), self.config.train.steps
        if self.was_cut(start):
            self.note_evaluation(start, self.evaluate(start, state))
            self.checkpoints.score(start, self.held_out)
        elif self.is_complete(start) and self.has_evaluations:
            self.evaluate(start, state)
        if self.is_complete(start):
            return self.held_out
        run, on_batch = self.run, lambda: self.watchdog.note(start, EVALUATING)
        kept = keep_logits(run.teacher, run.task, run.evaluation, self.progress.say, on_batch)
        batches = self.run.task.training_batches(start, last, jax.process_index(), jax.process_count())
        train_step = jit_train_step(self.run)
        for step in range(start + 1, last + 1):
            self.watchdog.note(step, COMPILING if step == start + 1 else INPUT)
            rows = self.next_batch(batches)
            batch = self.run.on_devices(rows if kept is None else kept.add(rows))
            self.watchdog.note(step, COMPILING if step == start + 1 else DEVICE)
            state, metrics = train_step(state, batch)
            if step == start + 1:  # the first step holds the compilation
                jax.block_until_ready(metrics)
                self.throughput.restart(untimed=1 + self.queue.interval.steps)
                stop.expect()
            self.queue.push(step, metrics, batch, state)
            for skipped, reason in self.queue.take_skipped():
                self.progress.say(f'step {skipped} skipped: {reason}')
            self.progress.advance(step)
            self.checkpoints.check()
            if self.finish_step(step, state, stop):
                break
        self.checkpoints.wait()  # here, where a stop signal still lets it
        if self.is_cut or not self.is_complete(step):
            self.say_stopped(step)
            raise RunStopped
        return self.held_out

    def finish_step(self, step: int, state: TrainState, stop: StopSignal) -> bool:
        """Logs, evaluates and saves after a step where that is due; returns whether the run ends with it."""
        is_last = step == self.config.train.steps
        is_end = stop.is_due() or is_last
        is_evaluated = self.has_evaluations and (is_last or step % self.config.eval.every_steps == 0)
        is_saved = is_end or step % self.config.checkpoint.every_steps == 0
        if is_last or is_evaluated or step % self.config.train.log_every_steps == 0:
            self.log_interval(step)
        found = self.evaluate_or_stop(step, state, stop) if is_evaluated else None
        self.is_cut = is_evaluated and found is None
        if found is not None:
            self.note_evaluation(step, found)
            is_saved = is_saved or (self.config.checkpoint.save_best and self.patience.is_best)
            if self.patience.is_over:
                self.progress.say(f'stopped early after step {step}: {self.patience.describe()}')
                is_end = is_saved = True
        if is_saved or self.is_cut:
            self.save(step, state, found)
        return is_end or self.is_cut

    def note_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Counts an evaluation; checkpoints from here on have it."""
        self.patience.add(metrics)
        self.evaluations.append(line_of(step, HELD_OUT, metrics))

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        """Starts to save a state, which must be finite; `metrics` are those of its evaluation, if there was one."""
        self.watchdog.note(step, SAVING)
        check_state(step, state)
        lines = {LINES: self.log.lines, LINES_HASH: self.log.digest(), EVALUATIONS: list(map(shown, self.evaluations))}
        record = {**self.record, INTERVAL: self.queue.finished().as_json(), **lines}
        self.checkpoints.save(step, state, record=record, metrics=metrics)

    def was_cut(self, step: int) -> bool:
        """Whether a stop signal has ended the evaluation that belongs to the step from which this run goes on."""
        is_due = self.has_evaluations and step > 0 and step % self.config.eval.every_steps == 0
        return is_due and step not in [line['step'] for line in self.evaluations]

    def next_batch(self, batches: Iterator[dict]) -> dict:
        """The next batch; the time it takes counts as waiting if the device has nothing left to do at its end."""
        with self.throughput.waiting(lambda: self.queue.is_idle):
            return next(batches)

    def log_interval(self, step: int) -> None:
        """Writes the mean metrics since the last call, the learning rate and the throughput."""
        interval = self.queue.take()
        means, rates = interval.means(), self.throughput.measure(interval.steps)
        updates = max(step - 1 - int(means['skipped']), 0)
        metrics = self.run.task.finish_metrics(means) | {'learning_rate': float(self.schedule(updates))} | rates
        self.log.write(step, 'train', metrics)
        self.progress.report(step, metrics)

    def evaluate(
        self, step: int, state: TrainState, before_batch: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Writes and returns the metrics of the whole held-out split; `before_batch` may end it by an error."""

        def on_batch() -> None:
            self.watchdog.note(step, EVALUATING)
            before_batch()

        with self.throughput.paused():
            metrics = self.run.evaluation.metrics(self.eval_step, self.run.evaluated(state), on_batch=on_batch)
            metrics |= pruning_metrics(self.run, state, self.progress.say)
            self.held_out = metrics
            self.log.write(step, HELD_OUT, metrics)
            shown = '  '.join(f'{name} {value:.4g}' for name, value in metrics.items())
            self.progress.say(f'step {step} held out: {shown}')
            if bad := [name for name, value in metrics.items() if not math.isfinite(value)]:
                self.progress.say(f'step {step} held out: not finite, and never the best: {", ".join(bad)}')
        return metrics

    def evaluate_or_stop(self, step: int, state: TrainState, stop: StopSignal) -> dict[str, float] | None:
        """As `evaluate`; None where a stop signal ends it between two batches, and the next start makes up for it."""

        def save() -> int:
            self.save(step, state)
            self.checkpoints.wait()
            self.log.close()
            self.say_stopped(step)
            return ExitCode.STOPPED

        try:
            with stop.rescue(save):
                return self.evaluate(step, state, stop.check)
        except Cut:
            return None

    def say_stopped(self, step: int) -> None:
        """The line of a stop."""
        self.progress.say(f'stopped after step {step}, which is saved; the same command goes on from there')

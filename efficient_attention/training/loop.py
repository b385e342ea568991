"""Runs the training loop of every task, with evaluations, logs and checkpoints."""

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from efficient_attention.attention.choice_log import recorded_choices
from efficient_attention.config.run import RunConfig
from efficient_attention.distillation.cached_logits import CachedTeacherLogits, load_or_compute_logits
from efficient_attention.errors import ExitCode, InputError, RunError, RunStopped, one_line
from efficient_attention.inference.evaluation_samples import Sampler, local_params, make_sampler
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.processes.graceful_stop import EvaluationInterrupted
from efficient_attention.processes.watchdog import COMPILING, DEVICE, EVALUATING, INPUT, SAVING
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.training.attention_line import attention_line, remedies_of_run
from efficient_attention.training.guarded_run import LINES, LINES_HASH, GuardedRun, guarded_run
from efficient_attention.training.pruning_report import pruning_metrics
from efficient_attention.training.remat_choice import StepWithinMemory
from efficient_attention.training.schedules import make_schedule
from efficient_attention.training.state import TrainState, check_state_finite
from efficient_attention.training.step import StepFn, jit_train_step
from efficient_attention.training.step_profile import StepProfile, check_profiled_steps, steps_left_to_profile
from efficient_attention.training.step_queue import INTERVAL, StepQueue
from efficient_attention.training.throughput import Throughput, peak_flops
from efficient_attention.workdir.metrics import metrics_line, nonfinite_as_text
from efficient_attention.workdir.report import FILE_NAME as REPORT
from efficient_attention.workdir.report import write_report
from efficient_attention.workdir.run_status import record_still_running
from efficient_attention.workdir.samples_log import append_samples
from efficient_attention.workdir.stored_evaluations import EVALUATIONS, HELD_OUT

# During the run, evaluations write the report at most once in these seconds, and in at most this share of the time.
REPORT_SECONDS, REPORT_SHARE = 10.0, 0.01
SHOWN = 100  # number of characters of a sample's input and of its output in the line of an evaluation


def train(
    config: RunConfig,
    workdir: Path,
    *,
    examples: EncodedExamples | None = None,
    pretrained: Pretrained | None = None,
    profile: tuple[int, int] | None = None,
) -> dict[str, float]:
    """Trains a run up to step `train.steps`, resuming from its newest checkpoint if there is one. Returns the
    validation metrics at the end.

    Returns {} if the run has no validation set.

    Args:
        config: the complete config of the run.
        workdir: the folder of the run; created if missing.
        examples: the encoded examples of a fine-tuning run, if already read.
        pretrained: the checkpoint of `train.start_from`, if already open.
        profile: first and last of the training steps to trace for XProf; None = no trace. A resumed run that has made
            some of these steps before traces none.

    Raises:
        InputError: bad config, data or workdir, or `profile` has steps after the last step of the run.
        NonFiniteTrainingError: too many steps in a row were not finite, or the state is not.
        SaveError: the newest checkpoint could not be saved. The error is printed at once and raised at the end. If
            `checkpoint.when_save_fails` is 'stop', it is raised at once.
        RunStopped: a stop signal (SIGINT, SIGTERM) ended the run after the current step, with a checkpoint, or during
            an evaluation. The same call resumes the run.
    """
    step, held_out = train_to_the_end(config, workdir, examples=examples, pretrained=pretrained, profile=profile)
    if jax.process_index() == 0:
        print(closing_line(config, workdir, step, held_out), file=sys.stderr, flush=True)
    return held_out


def closing_line(config: RunConfig, workdir: Path, step: int, held_out: Mapping[str, float]) -> str:
    """Returns the last line of a complete run: its step, its `checkpoint.best_metric` or first loss, its report, and
    the command that evaluates it.
    """
    losses = [name for name in held_out if name.endswith('loss')]
    name = config.checkpoint.best_metric or next(iter([*losses, *held_out]), '')
    metric = f', {name} {held_out[name]:.4g}' if name in held_out else ''
    advice = f'; evaluate the run with: efficient-attention eval --workdir {workdir}' if held_out else ''
    return f'done: step {step}{metric}, report {workdir / REPORT}{advice}'


def train_to_the_end(
    config: RunConfig,
    workdir: Path,
    *,
    examples: EncodedExamples | None,
    pretrained: Pretrained | None,
    profile: tuple[int, int] | None,
) -> tuple[int, dict[str, float]]:
    """Trains like `train`, without the last line; returns the last step and the validation metrics there."""
    check_profiled_steps(profile, config.train.steps)
    with contextlib.ExitStack() as stack:
        guarded = stack.enter_context(guarded_run(config, workdir, examples=examples, pretrained=pretrained))
        trainer, run, stop = Trainer(guarded), guarded.run, guarded.stop
        # The state comes from a checkpoint or is new.
        state, first, last = guarded.state, int(guarded.state.step), run.config.train.steps
        left = steps_left_to_profile(profile, first, guarded.progress.print_line)
        profiled = stack.enter_context(StepProfile(workdir, left))
        if guarded.is_complete(first):
            only = '; only its evaluation is run' if run.config.has_evaluation_data else ''
            guarded.progress.print_line(f'the run is complete after step {first}{only}')
        trainer.run_missed_evaluation(first, state)
        if guarded.is_complete(first):
            return first, trainer.held_out
        guarded.log.trackers.start()
        trainer.cache_teacher_logits(first)
        batches = trainer.training_batches(first)
        options = profiled.jit_options(run.mesh)
        if run.config.model.remat == 'auto':
            train_step: StepFn = StepWithinMemory(run, guarded.progress.print_line, options)
        else:
            train_step = jit_train_step(run, **options)
        for step in range(first + 1, last + 1):
            trainer.begin_profile(step, profiled)
            batch = trainer.next_device_batch(step, batches)
            with trainer.note_compilation(step, batch), profiled.annotated_step(step):
                state, metrics = train_step(state, batch)
            trainer.record_step(step, metrics, batch, state)
            trainer.end_profile(step, profiled)
            is_end = stop.is_stop_due() or step == last
            is_evaluated = trainer.is_evaluation_step(step)
            if step == last or is_evaluated or step % run.config.train.log_every_steps == 0:
                trainer.log_mean_metrics(step)
            found = trainer.evaluate_or_stop(step, state) if is_evaluated else None
            is_end = is_end or trainer.is_cut or trainer.patience.is_patience_exhausted
            is_best = found is not None and trainer.patience.is_best and run.config.checkpoint.save_best
            if is_end or is_best or step % run.config.checkpoint.every_steps == 0:
                trainer.save(step, state, found)
            if is_end:
                break
        trainer.finish_run(step)
        return step, trainer.held_out


class Trainer:
    """Does the work around each training step: loads batches, logs metrics, runs evaluations and saves checkpoints."""

    def __init__(self, guarded: GuardedRun) -> None:
        self.guarded, self.run, self.config = guarded, guarded.run, guarded.run.config
        self.checkpoints, self.log, self.progress = guarded.checkpoints, guarded.log, guarded.progress
        self.evaluations, self.patience, self.watchdog = guarded.evaluations, guarded.patience, guarded.watchdog
        self.eval_step = self.run.evaluation.step()
        self.held_out: dict[str, float] = {}  # metrics of the last evaluation on the validation set
        self.next_report = time.monotonic() + REPORT_SECONDS
        self.is_cut = False  # True if a stop signal interrupted the last evaluation
        # cached teacher logits of all training rows; None if the run caches none
        self.kept: CachedTeacherLogits | None = None
        # number of the first step after the start, which includes the compilation
        self.first_step = int(guarded.state.step) + 1
        # shapes of the batches for which the training step is compiled, one tuple per program
        self.compiled_shapes: set[tuple[tuple[int, ...], ...]] = set()
        self.attention_lines: set[str] = set()  # printed lines about the backends of attention
        self.schedule = make_schedule(self.config.optimizer, self.config.train.steps)
        self.queue = StepQueue(self.config.train.max_skipped_in_row, guarded.interval)
        device_peak = peak_flops(self.run.mesh.devices.flat[0].device_kind)
        self.throughput = Throughput(
            tokens_per_step=self.run.task.tokens_per_step() or self.config.train.batch_size * self.config.data.length,
            flops_per_step=self.run.task.training_flops(),
            peak_flops=device_peak * self.run.mesh.size if device_peak else None,
        )

    # ---- batches and steps ----

    def cache_teacher_logits(self, first: int) -> None:
        """Loads or computes the teacher's logits of all training rows, if the run caches teacher logits."""
        self.kept = load_or_compute_logits(
            self.run.teacher,
            self.run.task,
            self.run.evaluation,
            self.progress.print_line,
            lambda: self.watchdog.note_progress(first, EVALUATING),
        )

    def training_batches(self, first: int) -> Iterator[dict]:
        """Returns an iterator over this process's training batches after step `first`, as arrays on the host."""
        last = self.config.train.steps
        return self.run.task.training_batches(first, last, jax.process_index(), jax.process_count())

    def next_device_batch(self, step: int, batches: Iterator[dict]) -> dict[str, jax.Array]:
        """Loads the next training batch and puts it on the devices."""
        is_first = step == self.first_step
        self.watchdog.note_progress(step, COMPILING if is_first else INPUT)
        rows = self.next_batch(batches)
        batch = self.run.put_batch_on_devices(rows if self.kept is None else self.kept.add_teacher_logits(rows))
        self.watchdog.note_progress(step, COMPILING if is_first else DEVICE)
        return batch

    @contextlib.contextmanager
    def note_compilation(self, step: int, batch: dict[str, jax.Array]) -> Iterator[None]:
        """Context manager for a call of the training step, which reports a compilation.

        If the call compiles, it prints a line before and after. Speed and remaining time then leave out the time of the
        compilation. Each new combination of shapes in a batch, such as another length of rows, compiles another
        program.
        """
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        if shapes in self.compiled_shapes:
            yield
            return
        self.compiled_shapes.add(shapes)
        count = len(self.compiled_shapes)
        other = f' for batches of another shape, program {count}' if count > 1 else ''
        self.queue.finish_all_steps()  # otherwise queued steps would run within the time that is left out
        self.watchdog.note_progress(step, COMPILING)
        self.progress.print_line(f'compiling the training step{other}')
        start = time.monotonic()
        with self.throughput.pause_timing(), recorded_choices() as choices:
            yield
        if (line := attention_line(choices, remedies_of_run(self.config))) and line not in self.attention_lines:
            self.attention_lines.add(line)
            self.progress.print_line(line)
        seconds = time.monotonic() - start
        self.progress.exclude_seconds(seconds)
        self.progress.print_line(f'compiled in {seconds:.0f} s')

    def next_batch(self, batches: Iterator[dict]) -> dict:
        """Returns the next training batch. The loading time counts as waiting for data if the device has nothing to do
        afterwards.
        """
        with self.throughput.time_data_wait(lambda: self.queue.is_idle):
            return next(batches)

    def record_step(self, step: int, metrics: dict[str, jax.Array], batch: Any, state: TrainState) -> None:
        """Records a training step that the device has started, and prints which earlier steps were skipped.

        Raises:
            NonFiniteTrainingError: too many steps in a row were not finite, or the state is not.
            SaveError: the newest save failed, and `checkpoint.when_save_fails` is 'stop'.
        """
        if step == self.first_step:
            jax.block_until_ready(metrics)
            self.throughput.restart(untimed=1 + self.queue.interval.steps)
            self.guarded.stop.enable_graceful_stop()
            if step % self.config.train.log_every_steps:  # otherwise the line of the log says more
                self.progress.report_metrics(step, {'loss': float(metrics['loss'])})
        self.queue.push(step, metrics, batch, state)
        for skipped, reason in self.queue.take_skipped_steps():
            self.progress.print_line(f'step {skipped} skipped: {reason}')
        self.progress.advance_display(step)
        self.checkpoints.raise_if_save_failed()

    def begin_profile(self, step: int, profiled: StepProfile) -> None:
        """Starts the trace before the first profiled step, when the device has finished all earlier steps."""
        if profiled.is_first(step):
            with self.throughput.pause_timing():
                self.queue.finish_all_steps()
                for line in profiled.start_trace():
                    self.progress.print_line(line)

    def end_profile(self, step: int, profiled: StepProfile) -> None:
        """Ends the trace after the last profiled step, and prints the longest operations."""
        if profiled.is_last(step):
            with self.throughput.pause_timing():
                self.queue.finish_all_steps()
                for line in profiled.end_trace():
                    self.progress.print_line(line)

    def log_mean_metrics(self, step: int) -> None:
        """Logs the mean training metrics since the last call, with the learning rate and the throughput."""
        interval = self.queue.take_interval()
        means, rates = interval.mean_metrics(), self.throughput.measure_rates(interval.steps)
        updates = max(step - 1 - int(means['skipped']), 0)
        metrics = self.run.task.finish_metrics(means) | {'learning_rate': float(self.schedule(updates))} | rates
        self.log.write_metrics(step, 'train', metrics)
        self.progress.report_metrics(step, metrics)

    # ---- evaluations ----

    def is_evaluation_step(self, step: int) -> bool:
        """Returns whether the run evaluates after this step."""
        is_due = step == self.config.train.steps or step % self.config.eval.every_steps == 0
        return self.config.has_evaluation_data and is_due

    def run_missed_evaluation(self, step: int, state: TrainState) -> None:
        """Evaluates the restored state before the first step, if its evaluation is missing or the run is already
        complete.
        """
        is_due = self.config.has_evaluation_data and step > 0 and step % self.config.eval.every_steps == 0
        if is_due and step not in [line['step'] for line in self.evaluations]:
            self.note_evaluation(step, self.evaluate(step, state))
            self.checkpoints.write_evaluation_metrics(step, self.held_out)
        elif self.guarded.is_complete(step) and self.config.has_evaluation_data:
            self.evaluate(step, state)

    def evaluate_or_stop(self, step: int, state: TrainState) -> dict[str, float] | None:
        """Evaluates the model and records its metrics. Returns None if a stop signal interrupts; the resumed run then
        evaluates again.
        """

        def save() -> int:
            self.save(step, state)
            self.checkpoints.wait_until_saved()
            self.log.close()
            self.print_run_stopped(step)
            return ExitCode.STOPPED

        try:
            with self.guarded.stop.save_if_unresponsive(save):
                metrics = self.evaluate(step, state, self.guarded.stop.raise_if_stop_due)
        except EvaluationInterrupted:
            self.is_cut = True
            return None
        self.note_evaluation(step, metrics)
        if self.patience.is_patience_exhausted:
            self.progress.print_line(f'stopped early after step {step}: {self.patience.describe_early_stop()}')
        return metrics

    def evaluate(
        self, step: int, state: TrainState, before_batch: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Computes, logs and returns the metrics on the whole validation set. `before_batch` may raise an error to end
        the evaluation.
        """

        def on_batch() -> None:
            self.watchdog.note_progress(step, EVALUATING)
            before_batch()

        with self.throughput.pause_timing():
            params = self.run.evaluation_params_fn(state)
            metrics = self.run.evaluation.metrics(self.eval_step, params, on_batch=on_batch)
            metrics |= pruning_metrics(self.run, state, self.progress.print_line)
            self.held_out = metrics
            self.log.write_metrics(step, HELD_OUT, metrics)
            shown = '  '.join(f'{name} {value:.4g}' for name, value in metrics.items())
            self.progress.print_line(f'step {step} held out: {shown}')
            if bad := [name for name, value in metrics.items() if not math.isfinite(value)]:
                self.progress.print_line(f'step {step} held out: not finite, and never the best: {", ".join(bad)}')
            self.make_samples(step, params)
            self.refresh_report()
        return metrics

    def make_samples(self, step: int, params: Any) -> None:
        """Prints and stores samples of the model's outputs, in process 0. A fault here turns the samples off; it never
        ends the run.
        """
        try:
            sampler = self.sampler
            if sampler is None:
                return
            samples = sampler.make(local_params(params))
            if not samples:
                raise InputError('there is no held-out text')
            append_samples(self.log.workdir, step, sampler.kind, samples)
            first, made = (' '.join(samples[0][part].split()) for part in ('input', 'output'))
            self.progress.print_line(f'step {step} {sampler.kind}: {first[-SHOWN:]} -> {made[:SHOWN]}')
        except Exception as error:  # Samples come from any tokenizer, data and decoder, so any error is possible.
            self.__dict__['sampler'] = None
            reason = one_line(error) or type(error).__name__
            self.progress.print_line(f'step {step}: no more samples of outputs (eval.samples): {reason}')

    @functools.cached_property
    def sampler(self) -> Sampler | None:
        """Makes the samples of evaluations; None in processes other than process 0, and if the run has no samples."""
        return make_sampler(self.config, self.run.task, self.run.graph) if jax.process_index() == 0 else None

    def refresh_report(self) -> None:
        """Writes the report during the run, in process 0. It takes at most REPORT_SHARE of the time, and comes at most
        once in REPORT_SECONDS.
        """
        begun = time.monotonic()
        if jax.process_index() > 0 or begun < self.next_report:
            return
        try:
            record_still_running(self.log.workdir)
            write_report(self.log.workdir)
        except (InputError, RunError) as error:  # The report at the end raises it again.
            self.progress.print_line(f'no report yet: {error}')
        self.next_report = begun + max((time.monotonic() - begun) / REPORT_SHARE, REPORT_SECONDS)

    def note_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Counts an evaluation for early stopping, and keeps its metrics so that later checkpoints store them."""
        self.patience.add_evaluation(metrics)
        self.evaluations.append(metrics_line(step, HELD_OUT, metrics))

    # ---- checkpoints, and the end of the run ----

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        """Starts to save a checkpoint of a state, which must be finite. `metrics` come from the evaluation at this
        step, if there is one.
        """
        self.watchdog.note_progress(step, SAVING)
        check_state_finite(step, state)
        lines = {
            LINES: self.log.lines,
            LINES_HASH: self.log.digest(),
            EVALUATIONS: list(map(nonfinite_as_text, self.evaluations)),
        }
        record = {**self.guarded.record, INTERVAL: self.queue.finish_all_steps().as_json(), **lines}
        self.checkpoints.save(step, state, record=record, metrics=metrics)

    def finish_run(self, step: int) -> None:
        """Waits until the last checkpoint is saved; raises RunStopped if a stop signal ended the run after this
        step.
        """
        # The run waits for its last save while it still handles stop signals, so that no signal can interrupt the save.
        self.checkpoints.wait_until_saved()
        if self.is_cut or not self.guarded.is_complete(step):
            self.print_run_stopped(step)
            raise RunStopped

    def print_run_stopped(self, step: int) -> None:
        """Prints that the run stopped after this step and can be resumed."""
        self.progress.print_line(f'stopped after step {step}, which is saved; the same command goes on from there')

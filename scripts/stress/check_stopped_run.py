"""Checks whether a stopped run ended as docs/reliability.md says: output, exit code, duration and saved steps."""

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from efficient_attention.errors import ExitCode
from efficient_attention.processes import phase_log
from efficient_attention.processes.signal_thread import stop_message
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, checkpoint_label
from efficient_attention.workdir.checksums import find_checksum_mismatch
from scripts.stress.signal_moments import BESIDE, START, PhaseEvent, phase_at

MOST_SECONDS = 5.0  # the process must end within these seconds after the interrupted step, evaluation batch or save
STEPS_BEHIND = 2  # number of further steps that may already be dispatched to the device when the signal comes
SAVED = re.compile(r'stopped after step (\d+), which is saved; the same command goes on from there')
BEGUN = re.compile(r'[\d,]+ parameters on .*; (?:new run in |resumed at step (\d+) in )')
# This pattern matches the lines that a run also prints if it is not stopped.
PROGRESS = re.compile(
    r'allocator: |preparing |held out: |attention: |compiling the training step|compiled in '
    r'|step \d+/\d+  (?:loss |[a-z ]+ for \d+ s)|step \d+ (?:held out|filled masks|generated text|targets): '
    r'|[\d,]+ parameters on '
)
BEFORE_THE_FIRST_STEP = (phase_log.IMPORTS, phase_log.PREPARATION, phase_log.RESTORING, phase_log.COMPILATION)


class StoppedProcess(NamedTuple):
    """A training process that got a stop signal: times, exit code, error lines, phases, and saved steps."""

    number: signal.Signals
    start: float  # time of the start in seconds on the machine's clock, like all times here
    sent: float
    end: float
    code: int  # exit code; a negative number means that the signal of this number killed the process
    lines: list[str]  # lines that the process wrote to standard error
    events: list[PhaseEvent]
    before: int | None  # newest saved step when the process started
    after: int | None  # newest saved step when the process had ended

    @property
    def phase(self) -> str:
        """The phase in which the process was when the signal came."""
        return phase_at(self.events, self.sent)

    @property
    def overtime_seconds(self) -> float:
        """Seconds from the end of the interrupted step, evaluation batch or save to the end of the process."""
        return self.end - min(max(self.sent, work_end_time(self.events, self.sent)), self.end)


def work_end_time(events: Sequence[PhaseEvent], sent: float) -> float:
    """Returns the end time of the step, evaluation batch or save during which the signal came.

    Returns the time of the signal if nothing of this kind was under way.
    """
    phase = phase_at(events, sent)
    later = [event for event in events if event.time > sent]
    if phase in (phase_log.SAVE, phase_log.SEALING):
        later = [event for event in later if event.phase == phase_log.SEALED]
    elif phase in (phase_log.STEP, phase_log.EVALUATION):
        later = [event for event in later if event.phase not in BESIDE]
    else:
        later = []
    return later[0].time if later else sent


def newest_saved_step(workdir: Path) -> int | None:
    """Returns the newest saved step of a run; None if no step is saved."""
    return CheckpointReader(workdir).latest_step() if (workdir / 'checkpoints').is_dir() else None


def stop_faults(ending: StoppedProcess, workdir: Path, last_step: int) -> list[str]:
    """Returns how the end of a stopped run deviates from the documented behaviour; [] for a clean stop.

    Args:
        ending: the stopped process; `workdir` has not changed since its end.
        workdir: the workdir of the run.
        last_step: the last step of the whole run.
    """
    found = (
        [f'{ending.overtime_seconds:.1f} s after what was under way'] if ending.overtime_seconds > MOST_SECONDS else []
    )
    if ending.phase == START:
        is_pythons = ending.code in (-ending.number, 1, *allowed_exit_codes(ending, last_step))
        return found if is_pythons else [*found, f'exit code {ending.code}']
    if ending.code not in allowed_exit_codes(ending, last_step):
        found.append(f'exit code {ending.code}')
    return [*found, *output_faults(ending), *saved_step_faults(ending, workdir)]


def allowed_exit_codes(ending: StoppedProcess, last_step: int) -> tuple[int, ...]:
    """Returns the exit codes that a process may have, which depend on the phase in which it got the stop signal.

    A run that was at its last steps may also end normally.
    """
    nothing = ExitCode.INTERRUPTED if ending.number == signal.SIGINT else ExitCode.TERMINATED
    is_last = ending.phase == phase_log.END or step_at_signal(ending) + STEPS_BEHIND >= last_step
    done = (ExitCode.DONE,) if is_last and ending.after == last_step else ()
    if ending.phase in (START, *BEFORE_THE_FIRST_STEP):
        return (nothing,)
    is_before = phase_log.COMPILATION not in [event.phase for event in ending.events if event.time <= ending.sent]
    return (nothing if is_before or ending.phase == phase_log.END else ExitCode.STOPPED, *done)


def output_faults(ending: StoppedProcess) -> list[str]:
    """Returns faults in the output of a stopped run: unexpected lines, or a stop not reported in the last line."""
    stops = [line for line in ending.lines if line == stop_message(ending.number) or SAVED.fullmatch(line)]
    others = [line for line in ending.lines if line not in stops and not PROGRESS.match(line)]
    found = [f'said: {line[:200]}' for line in others]
    if len(stops) != (ending.code != ExitCode.DONE):
        found.append(f'{len(stops)} lines of a stop')
    if stops and ending.lines[-1] != stops[-1]:
        found.append(f'said after the line of the stop: {ending.lines[-1][:200]}')
    if stops and bool(SAVED.fullmatch(stops[-1])) != (ending.code == ExitCode.STOPPED):
        found.append(f'exit code {ending.code} with: {stops[-1]}')
    return found


def saved_step_faults(ending: StoppedProcess, workdir: Path) -> list[str]:
    """Returns faults in the checkpoints of a stopped run: lost, damaged or wrong steps.

    The step that the run reports must be saved, be undamaged, and be the step at the signal. No step saved before may
    be lost.
    """
    found = [begun for line in ending.lines if (begun := BEGUN.match(line))]
    begun = [
        f'it went on from step {line[1]}, and {ending.before} was saved'
        for line in found
        if not is_resumed_from_newest(line, ending)
    ]
    said = next((int(match[1]) for line in ending.lines if (match := SAVED.fullmatch(line))), None)
    if said is None:
        is_lost = (ending.before or 0) > (ending.after or 0)
        return [*begun, f'step {ending.before} was saved before, {ending.after} is now'] if is_lost else begun
    if said != ending.after:
        return [*begun, f'step {said} was said to be saved, and {ending.after} is']
    if hurt := find_checksum_mismatch(workdir / 'checkpoints' / str(said), checkpoint_label(said)):
        begun.append(f'step {said}: {hurt}')
    if not step_at_signal(ending) <= said <= step_at_signal(ending) + STEPS_BEHIND:
        begun.append(f'stopped at step {step_at_signal(ending)}, and {said} is saved')
    return begun


def step_at_signal(ending: StoppedProcess) -> int:
    """Returns the training step that was under way when the signal came; 0 before the first step."""
    begun = [event for event in ending.events if event.time <= ending.sent and event.phase not in BESIDE]
    return begun[-1].step if begun else 0


def is_resumed_from_newest(begun: re.Match[str], ending: StoppedProcess) -> bool:
    """Returns whether a run's first message says that it resumed from the newest step saved before its start."""
    return (int(begun[1]) if begun[1] else None) == ending.before

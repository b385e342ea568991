"""Judges how a stopped run has ended: what it said, its exit code, its seconds, what is saved (docs/reliability.md)."""

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from efficient_attention.errors import ExitCode
from efficient_attention.processes import phases
from efficient_attention.processes.stopping import line_of
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, label_of
from efficient_attention.workdir.seal import damage
from scripts.stress.phase_moments import BESIDE, START, Event, phase_at

MOST_SECONDS = 5.0  # beyond the step, the batch of an evaluation or the save under way
STEPS_BEHIND = 2  # that the device may have been given before the signal
SAVED = re.compile(r'stopped after step (\d+), which is saved; the same command goes on from there')
BEGUN = re.compile(r'[\d,]+ parameters on .*; (?:new run in |resumed at step (\d+) in )')
PROGRESS = re.compile(  # what a run says that nobody stops
    r'allocator: |preparing |attention: |step \d+/\d+  loss |step \d+ held out: \w|[\d,]+ parameters on '
)
BEFORE_THE_FIRST_STEP = (phases.IMPORTS, phases.PREPARATION, phases.RESTORING, phases.COMPILATION)


class Ending(NamedTuple):
    """A process that got a signal, and what it was before and after."""

    number: signal.Signals
    start: float  # seconds of the machine's clock, as in all times here
    sent: float
    end: float
    code: int  # negative: killed by the signal of that number
    lines: list[str]  # of its standard error
    events: list[Event]
    before: int | None  # the newest saved step when it began
    after: int | None  # and when it had ended

    @property
    def phase(self) -> str:
        """What it was at when the signal came."""
        return phase_at(self.events, self.sent)

    @property
    def beyond(self) -> float:
        """Seconds from the end of what was under way at the signal to its own end."""
        return self.end - min(max(self.sent, under_way_until(self.events, self.sent)), self.end)


def under_way_until(events: Sequence[Event], sent: float) -> float:
    """When the step, the batch of an evaluation or the save was done that was under way; `sent` where none was."""
    phase = phase_at(events, sent)
    later = [event for event in events if event.time > sent]
    if phase in (phases.SAVE, phases.SEALING):
        later = [event for event in later if event.phase == phases.SEALED]
    elif phase in (phases.STEP, phases.EVALUATION):
        later = [event for event in later if event.phase not in BESIDE]
    else:
        later = []
    return later[0].time if later else sent


def newest_saved(workdir: Path) -> int | None:
    """The newest step of a run that counts as saved; None where there is none."""
    return CheckpointReader(workdir).latest_step() if (workdir / 'checkpoints').is_dir() else None


def faults(ending: Ending, workdir: Path, last_step: int) -> list[str]:
    """What is not as documented, in a few words each; [] for a clean stop.

    Args:
        ending: of a run in `workdir`, which nothing has changed since.
        workdir: of the run.
        last_step: of the whole run.
    """
    found = [f'{ending.beyond:.1f} s after what was under way'] if ending.beyond > MOST_SECONDS else []
    if ending.phase == START:
        is_pythons = ending.code in (-ending.number, 1, *codes(ending, last_step))
        return found if is_pythons else [*found, f'exit code {ending.code}']
    if ending.code not in codes(ending, last_step):
        found.append(f'exit code {ending.code}')
    return [*found, *faults_of_lines(ending), *faults_of_steps(ending, workdir)]


def codes(ending: Ending, last_step: int) -> tuple[int, ...]:
    """The exit codes that the phase allows. A run whose last steps were under way may end as it would have."""
    nothing = ExitCode.INTERRUPTED if ending.number == signal.SIGINT else ExitCode.TERMINATED
    is_last = ending.phase == phases.END or step_at(ending) + STEPS_BEHIND >= last_step
    done = (ExitCode.DONE,) if is_last and ending.after == last_step else ()
    if ending.phase in (START, *BEFORE_THE_FIRST_STEP):
        return (nothing,)
    is_before = phases.COMPILATION not in [event.phase for event in ending.events if event.time <= ending.sent]
    return (nothing if is_before or ending.phase == phases.END else ExitCode.STOPPED, *done)


def faults_of_lines(ending: Ending) -> list[str]:
    """Whether one line says that it was stopped, the last one, and no other says what an unbroken run does not."""
    stops = [line for line in ending.lines if line == line_of(ending.number) or SAVED.fullmatch(line)]
    others = [line for line in ending.lines if line not in stops and not PROGRESS.match(line)]
    found = [f'said: {line[:200]}' for line in others]
    if len(stops) != (ending.code != ExitCode.DONE):
        found.append(f'{len(stops)} lines of a stop')
    if stops and ending.lines[-1] != stops[-1]:
        found.append(f'said after the line of the stop: {ending.lines[-1][:200]}')
    if stops and bool(SAVED.fullmatch(stops[-1])) != (ending.code == ExitCode.STOPPED):
        found.append(f'exit code {ending.code} with: {stops[-1]}')
    return found


def faults_of_steps(ending: Ending, workdir: Path) -> list[str]:
    """Whether the step of the stop is saved, undamaged and that of the signal, and nothing saved before is lost."""
    found = [begun for line in ending.lines if (begun := BEGUN.match(line))]
    begun = [
        f'it went on from step {line[1]}, and {ending.before} was saved' for line in found if not goes(line, ending)
    ]
    said = next((int(match[1]) for line in ending.lines if (match := SAVED.fullmatch(line))), None)
    if said is None:
        is_lost = (ending.before or 0) > (ending.after or 0)
        return [*begun, f'step {ending.before} was saved before, {ending.after} is now'] if is_lost else begun
    if said != ending.after:
        return [*begun, f'step {said} was said to be saved, and {ending.after} is']
    if hurt := damage(workdir / 'checkpoints' / str(said), label_of(said)):
        begun.append(f'step {said}: {hurt}')
    if not step_at(ending) <= said <= step_at(ending) + STEPS_BEHIND:
        begun.append(f'stopped at step {step_at(ending)}, and {said} is saved')
    return begun


def step_at(ending: Ending) -> int:
    """The step that was under way at the signal; 0 before the first one."""
    begun = [event for event in ending.events if event.time <= ending.sent and event.phase not in BESIDE]
    return begun[-1].step if begun else 0


def goes(begun: re.Match[str], ending: Ending) -> bool:
    """Whether a run says that it goes on from the newest step that was saved before."""
    return (int(begun[1]) if begun[1] else None) == ending.before

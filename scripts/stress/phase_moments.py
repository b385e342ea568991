"""Moments at which a process is killed or stopped, spread over its phases, and what it was at when that came.

A process notes its phases in a file (`efficient_attention/processes/phases.py`). An unbroken run tells which there are
and how long each takes; a moment is a share of the way through one of them.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from efficient_attention.processes import phases

START = 'start'  # of Python, up to the first line of the command
NAMED = (  # phases that a process notes, and in which moments may lie
    phases.IMPORTS,
    phases.PREPARATION,
    phases.RESTORING,
    phases.COMPILATION,
    phases.STEP,
    phases.EVALUATION,
    phases.SAVE,
    phases.SEALING,
    phases.END,
    phases.READING,
    phases.WRITING,
)
OF_A_STEP = (phases.INPUT, phases.STEP)
BESIDE = (phases.SEALING, phases.SEALED)  # of a thread beside the training
LOOK_SECONDS = 0.005
OCCURRENCES = 2  # of a phase in one process that moments are drawn for; most have more, and go on from them


class Event(NamedTuple):
    """A phase that began."""

    time: float  # of the machine's clock
    phase: str
    step: int


class Span(NamedTuple):
    """A stretch of a process in one phase; a save counts until its seal, whatever goes on beside it."""

    phase: str
    start: float
    end: float


class Moment(NamedTuple):
    """When a signal is sent: when so much of the phase has passed, for the so-manieth time in a process."""

    phase: str
    occurrence: int
    seconds: float


def noting(path: Path) -> dict[str, str]:
    """The environment of a process that notes its phases in a new file."""
    path.unlink(missing_ok=True)
    return {**os.environ, phases.VARIABLE: str(path)}


def read_events(path: Path) -> list[Event]:
    """The phases that a process has noted so far."""
    try:
        lines = path.read_text(encoding='utf-8').splitlines()
    except FileNotFoundError:
        return []
    found = (line.split() for line in lines)
    return [Event(float(moment), phase, int(step)) for moment, phase, step in found]


def spans_of(events: Sequence[Event], start: float, end: float) -> list[Span]:
    """The phases of a process from its start to its end, one after another."""
    begun = [(start, START)]
    main, beside = START, ''
    for event in events:
        if event.phase not in BESIDE:
            main = phases.STEP if event.phase in OF_A_STEP else event.phase
        if event.phase in (phases.SAVE, *BESIDE):
            beside = '' if event.phase == phases.SEALED else event.phase
        if (phase := beside or main) != begun[-1][1]:
            begun.append((event.time, phase))
    ends = [*(moment for moment, _ in begun[1:]), end]
    return [Span(phase, moment, then) for (moment, phase), then in zip(begun, ends, strict=True)]


def phase_at(events: Sequence[Event], moment: float) -> str:
    """What a process was at."""
    return spans_of([event for event in events if event.time <= moment], 0.0, moment)[-1].phase


def moments(rng: random.Random, unbroken: Sequence[Span], only: Sequence[str] = NAMED) -> Iterator[Moment]:
    """Moments without end: each phase once in random order, then each once more, and so on.

    Every second time they lie in the first tenth of the phase: one that a process goes through faster than the unbroken
    run, as it restores what that one drew, is over before most moments of the whole of it.

    Args:
        unbroken: what a whole run went through.
        only: of these phases; there must be one of them.
    """
    found: dict[str, list[Span]] = {}
    for span in unbroken:
        if span.phase in only:
            found.setdefault(span.phase, []).append(span)
    for share in itertools.cycle((1.0, 0.1)):
        for phase in rng.sample(list(found), len(found)):
            occurrence = rng.randrange(min(len(found[phase]), OCCURRENCES))
            span = found[phase][occurrence]
            yield Moment(phase, occurrence + 1, rng.random() * share * (span.end - span.start))


class Plan:
    """Hands out the moments of one run after another; those of a run lie in the order in which its phases come."""

    def __init__(self, drawn: Iterator[Moment], unbroken: Sequence[Span]) -> None:
        self._drawn = drawn
        self._order = list(dict.fromkeys(span.phase for span in unbroken))

    def take(self, count: int) -> list[Moment]:
        """The next moments, for a run that begins anew."""
        return sorted(itertools.islice(self._drawn, count), key=lambda moment: self._order.index(moment.phase))

    def give_back(self, unused: Sequence[Moment]) -> None:
        """Moments of a run that came to its end before them, for the next run."""
        self._drawn = itertools.chain([moment._replace(occurrence=1) for moment in unused], self._drawn)


def wait_for(moment: Moment, path: Path, start: float, is_running: Callable[[], bool]) -> bool:
    """Waits until a process that notes its phases in `path` is at the moment; False where it ends before.

    A phase that is over sooner than in the unbroken run is left at its end.
    """
    events: list[Event] = []
    size = 0
    while is_running():
        now, before = time.monotonic(), size
        size = path.stat().st_size if path.exists() else 0
        if size != before:  # reading takes time, and the process may have but this processor
            events = read_events(path)
        spans = spans_of(events, start, now)
        places = [place for place, span in enumerate(spans) if span.phase == moment.phase]
        if len(places) >= moment.occurrence:
            place = places[moment.occurrence - 1]
            if now >= spans[place].start + moment.seconds or place + 1 < len(spans):
                return True
        time.sleep(LOOK_SECONDS)
    return False

"""Chooses random moments at which scripts kill or stop a process, within phases such as compilation or a save.

A process writes its phases into a file (`efficient_attention/processes/phase_log.py`). A run without interruption shows
which phases there are and how long each takes. A moment is a time within one phase. `phase_at` returns the phase in
which a process was at a given time.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from efficient_attention.processes import phase_log

START = 'start'  # the phase in which Python starts, up to the first line of the command
# A process logs these phases, and random moments are chosen within them.
NAMED = (
    phase_log.IMPORTS,
    phase_log.PREPARATION,
    phase_log.RESTORING,
    phase_log.COMPILATION,
    phase_log.STEP,
    phase_log.EVALUATION,
    phase_log.SAVE,
    phase_log.SEALING,
    phase_log.END,
    phase_log.READING,
    phase_log.WRITING,
)
OF_A_STEP = (phase_log.INPUT, phase_log.STEP)
BESIDE = (phase_log.SEALING, phase_log.SEALED)  # phases of a thread that runs in parallel with training
LOOK_SECONDS = 0.005
OCCURRENCES = 2  # moments are chosen only in the first occurrences of each phase, up to this many


class PhaseEvent(NamedTuple):
    """One line of a process's phase log: the time at which a phase began, and the training step."""

    time: float  # seconds on the machine's monotonic clock
    phase: str
    step: int


class PhaseSpan(NamedTuple):
    """The time that a process spends in one phase, such as a save.

    A save lasts until its checksums are written, even if training continues in parallel.
    """

    phase: str
    start: float
    end: float


class SignalMoment(NamedTuple):
    """A moment at which a process gets a signal: some seconds after a phase has begun for the n-th time."""

    phase: str
    occurrence: int
    seconds: float


def phase_logging_environment(path: Path) -> dict[str, str]:
    """Returns environment variables with which a process logs its phases into a new file."""
    path.unlink(missing_ok=True)
    return {**os.environ, phase_log.VARIABLE: str(path)}


def read_phase_events(path: Path) -> list[PhaseEvent]:
    """Reads the phase log of a process: the phases that have begun so far."""
    try:
        lines = path.read_text(encoding='utf-8').splitlines()
    except FileNotFoundError:
        return []
    found = (line.split() for line in lines)
    return [PhaseEvent(float(moment), phase, int(step)) for moment, phase, step in found]


def phase_spans(events: Sequence[PhaseEvent], start: float, end: float) -> list[PhaseSpan]:
    """Returns the phases of a process from its start to its end, in order, with their start and end times."""
    begun = [(start, START)]
    main, beside = START, ''
    for event in events:
        if event.phase not in BESIDE:
            main = phase_log.STEP if event.phase in OF_A_STEP else event.phase
        if event.phase in (phase_log.SAVE, *BESIDE):
            beside = '' if event.phase == phase_log.SEALED else event.phase
        if (phase := beside or main) != begun[-1][1]:
            begun.append((event.time, phase))
    ends = [*(moment for moment, _ in begun[1:]), end]
    return [PhaseSpan(phase, moment, then) for (moment, phase), then in zip(begun, ends, strict=True)]


def phase_at(events: Sequence[PhaseEvent], moment: float) -> str:
    """Returns the phase in which a process was at a given time."""
    return phase_spans([event for event in events if event.time <= moment], 0.0, moment)[-1].phase


def random_moments(
    rng: random.Random, unbroken: Sequence[PhaseSpan], only: Sequence[str] = NAMED
) -> Iterator[SignalMoment]:
    """Yields random moments without end: one in each phase, in random order, then again one in each phase, and so on.

    Every second round uses only the first tenth of each phase. A resumed run may pass through a phase faster than the
    unbroken run, so most later moments would come too late.

    Args:
        unbroken: the phases of a whole run without interruption.
        only: phases to use; at least one must occur.
    """
    found: dict[str, list[PhaseSpan]] = {}
    for span in unbroken:
        if span.phase in only:
            found.setdefault(span.phase, []).append(span)
    for share in itertools.cycle((1.0, 0.1)):
        for phase in rng.sample(list(found), len(found)):
            occurrence = rng.randrange(min(len(found[phase]), OCCURRENCES))
            span = found[phase][occurrence]
            yield SignalMoment(phase, occurrence + 1, rng.random() * share * (span.end - span.start))


class MomentQueue:
    """A queue of random moments for several runs; the moments of one run are in the order of its phases."""

    def __init__(self, drawn: Iterator[SignalMoment], unbroken: Sequence[PhaseSpan]) -> None:
        self._drawn = drawn
        self._order = list(dict.fromkeys(span.phase for span in unbroken))

    def take_moments(self, count: int) -> list[SignalMoment]:
        """Removes the next `count` moments from the queue, and returns them for a new run."""
        return sorted(itertools.islice(self._drawn, count), key=lambda moment: self._order.index(moment.phase))

    def return_moments(self, unused: Sequence[SignalMoment]) -> None:
        """Returns unused moments to the front of the queue, because a run ended before it reached them."""
        self._drawn = itertools.chain([moment._replace(occurrence=1) for moment in unused], self._drawn)


def wait_for_moment(moment: SignalMoment, path: Path, start: float, is_running: Callable[[], bool]) -> bool:
    """Waits until a process reaches a given moment; returns False if the process ends before.

    The process logs its phases into the file `path`. If the phase ends sooner than in the unbroken run, the end of the
    phase counts as the moment.
    """
    events: list[PhaseEvent] = []
    size = 0
    while is_running():
        now, before = time.monotonic(), size
        size = path.stat().st_size if path.exists() else 0
        # The log is read only if it has grown, because reading takes processor time from the process.
        if size != before:
            events = read_phase_events(path)
        spans = phase_spans(events, start, now)
        places = [place for place, span in enumerate(spans) if span.phase == moment.phase]
        if len(places) >= moment.occurrence:
            place = places[moment.occurrence - 1]
            if now >= spans[place].start + moment.seconds or place + 1 < len(spans):
                return True
        time.sleep(LOOK_SECONDS)
    return False

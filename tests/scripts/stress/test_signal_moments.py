"""signal_moments.py: what a process was at, and moments that cover each phase and are the same for a seed."""

import itertools
import random
from pathlib import Path

from efficient_attention.processes import phase_log
from scripts.stress.signal_moments import (
    NAMED,
    MomentQueue,
    PhaseEvent,
    PhaseSpan,
    SignalMoment,
    phase_at,
    phase_logging_environment,
    phase_spans,
    random_moments,
    read_phase_events,
    wait_for_moment,
)

NOTED = [
    *[('imports', 0), ('preparation', 0), ('compilation', 1), ('input', 2), ('step', 2), ('save', 2), ('input', 3)],
    *[('step', 3), ('sealing', 0), ('evaluation', 3), ('evaluation', 3), ('sealed', 0), ('input', 4), ('end', 0)],
]
EVENTS = [PhaseEvent(float(place), phase, step) for place, (phase, step) in enumerate(NOTED, 1)]
SPANS = [
    PhaseSpan('start', 0.5, 1.0),
    PhaseSpan('imports', 1.0, 2.0),
    PhaseSpan('preparation', 2.0, 3.0),
    PhaseSpan('compilation', 3.0, 4.0),
    PhaseSpan('step', 4.0, 6.0),
    PhaseSpan('save', 6.0, 9.0),
    PhaseSpan('sealing', 9.0, 12.0),
    PhaseSpan('evaluation', 12.0, 13.0),
    PhaseSpan('step', 13.0, 14.0),
    PhaseSpan('end', 14.0, 20.0),
]


def write(path: Path, *noted: tuple[float, str]) -> None:
    """Notes phases as a process does."""
    path.write_text(''.join(f'{moment:.6f} {phase} 3\n' for moment, phase in noted), encoding='utf-8')


NAMED_HERE = sorted({span.phase for span in SPANS} & set(NAMED))


def test_a_save_lasts_until_its_checksums_are_written():
    assert phase_spans(EVENTS, 0.5, 20.0) == SPANS
    assert [phase_at(EVENTS, moment) for moment in (0.9, 5.5, 8.5, 9.5, 12.5, 30)] == [
        *['start', 'step', 'save', 'sealing', 'evaluation', 'end'],
    ]


def test_what_a_process_notes_is_read_as_it_was_noted(tmp_path):
    assert read_phase_events(tmp_path / 'phases') == []
    write(tmp_path / 'phases', (1.5, 'imports'), (2.25, 'step'))
    assert read_phase_events(tmp_path / 'phases') == [PhaseEvent(1.5, 'imports', 3), PhaseEvent(2.25, 'step', 3)]
    assert phase_logging_environment(tmp_path / 'phases')[phase_log.VARIABLE] == str(tmp_path / 'phases')
    assert read_phase_events(tmp_path / 'phases') == []  # of a process before


def test_every_second_moment_of_a_phase_lies_in_its_first_tenth():
    longest = {phase: max(span.end - span.start for span in SPANS if span.phase == phase) for phase in NAMED_HERE}
    turns = [dict.fromkeys(NAMED_HERE, 0.0) for _ in range(2)]
    for number, moment in enumerate(itertools.islice(random_moments(random.Random(0), SPANS), 40 * len(NAMED_HERE))):
        turn = turns[number // len(NAMED_HERE) % 2]
        turn[moment.phase] = max(turn[moment.phase], moment.seconds)
    assert all(turns[1][phase] <= 0.1 * longest[phase] < turns[0][phase] <= longest[phase] for phase in NAMED_HERE)


def test_moments_lie_in_each_phase_equally_often_and_follow_from_the_seed():
    drawn = list(itertools.islice(random_moments(random.Random(3), SPANS), 32))
    assert drawn == list(itertools.islice(random_moments(random.Random(3), SPANS), 32))
    assert drawn != list(itertools.islice(random_moments(random.Random(4), SPANS), 32))
    named = {span.phase for span in SPANS} - {'start'}
    for first in range(0, 32, 8):
        assert {moment.phase for moment in drawn[first : first + 8]} == named
    assert all(moment.seconds < 3 or moment.phase == 'end' for moment in drawn)
    assert {moment.occurrence for moment in drawn if moment.phase == 'step'} == {1, 2}
    assert {moment.phase for moment in itertools.islice(random_moments(random.Random(0), SPANS, ['save']), 5)} == {
        'save'
    }


def test_the_moments_of_a_run_come_in_the_order_of_its_phases_and_unused_ones_later():
    end, save, imports = [SignalMoment(phase, 2, 0.5) for phase in ('end', 'save', 'imports')]
    plan = MomentQueue(iter([end, save, imports]), SPANS)
    assert plan.take_moments(2) == [save, end]
    plan.return_moments([end])
    assert plan.take_moments(5) == [imports, SignalMoment('end', 1, 0.5)]


def test_a_moment_is_waited_for_until_it_comes_or_the_process_ends(tmp_path):
    noted = tmp_path / 'phases'
    write(noted, (1.0, 'imports'), (2.0, 'step'), (3.0, 'save'))
    assert wait_for_moment(SignalMoment('step', 1, 9e9), noted, 0.0, lambda: True)  # it is over sooner than it was
    assert wait_for_moment(SignalMoment('save', 1, 0.5), noted, 0.0, lambda: True)
    looks = iter([True, True, False])
    assert not wait_for_moment(SignalMoment('save', 1, 9e9), noted, 0.0, lambda: next(looks))
    looks = iter([True, True, False])
    assert not wait_for_moment(SignalMoment('save', 2, 0.0), noted, 0.0, lambda: next(looks))

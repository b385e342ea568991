"""scripts/soak.py: a run that was killed three times ends as one that nobody killed."""

import random

import pytest

from efficient_attention.errors import RunError
from scripts import soak
from scripts.soak import Moment, phase, run, run_to_end


class Given(random.Random):
    """Gives numbers as told: a count of kills, then for each kill whether it goes by time, and when."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.numbers.pop(0)

    def randint(self, low: int, high: int) -> int:
        return min(max(round(self.numbers.pop(0) * high), low), high)


def test_three_kills_leave_no_trace(tmp_path):
    # Before the first step, after some steps and a save, and after as many again.
    rng = Given(0.4, *(0.1, 0.25), *(0.9, 0.4, 0.0), *(0.9, 0.35, 0.0))
    found = soak.soak('memory', tmp_path / 'memory', 3, rng, '--config.train.steps=20')
    assert found['differences'] == [] and found['kills'] == 3 and sum(found['hit'].values()) == 3
    assert {'save', 'steps or evaluation'} & set(found['hit'])  # not all of them before there is something to lose
    assert found['seconds_to_step']['resumed'] > 0


def test_a_command_that_fails_or_hangs_is_an_error(monkeypatch):
    with pytest.raises(RunError, match='ended with exit code 3: no'):
        run_to_end(['bash', '-c', 'echo no >&2; exit 3'])
    monkeypatch.setattr(soak, 'HANGING_SECONDS', 3.0)
    with pytest.raises(RunError, match='did not end in 3 s: still here'):
        run_to_end(['bash', '-c', 'echo still here >&2; exec sleep 60'])


def test_a_process_is_killed_after_a_line_or_a_time():
    ended = run(['bash', '-c', 'echo step 1 >&2; echo two >&2; exec sleep 60'], Moment(2, 0.0))
    assert (ended.code, ended.lines) == (soak.KILLED, ['step 1', 'two']) and ended.seconds_to_step < 30
    assert run(['sleep', '60'], Moment(0, 0.1)).code == soak.KILLED


def test_what_a_kill_hit(tmp_path):
    lines = ['allocator: as it is', '900 parameters on 1 cpu device(s)', 'step 2/4  loss 1.0']
    found = [phase(lines[:count], tmp_path) for count in range(4)]
    assert found == ['imports', 'preparation', 'compilation', 'steps or evaluation']
    (tmp_path / 'seed_0' / 'checkpoints' / '2').mkdir(parents=True)  # without a seal
    assert phase(lines, tmp_path) == 'save'
    (tmp_path / 'seed_0' / 'checkpoints' / '2').rename(tmp_path / 'seed_0/checkpoints/2.orbax-checkpoint-tmp-17')
    assert phase(lines, tmp_path) == 'save'

"""Tests that processes at different steps agree on one step to stop after, in whatever order their messages arrive."""

import functools
import random
import threading
import time
from collections import deque
from collections.abc import Mapping

import pytest

from efficient_attention.errors import PeerError
from efficient_attention.processes import stop_agreement as module
from efficient_attention.processes.message_channel import Message
from efficient_attention.processes.stop_agreement import StopAgreement

LAST = 12  # stop points of a run, at each of which a process may stop


class Network:
    """Imitates processes without threads: messages wait in their channel, in order, until they are delivered.

    Args:
        count: the number of processes.
        rng: chooses the next move.
        wanted: process -> the first stop point at which it asks for a stop.
    """

    def __init__(self, count: int, rng: random.Random, wanted: Mapping[int, int]) -> None:
        self.rng, self.wanted = rng, wanted
        self.channels: dict[tuple[int, int], deque[Message]] = {}
        self.passed = [0] * count
        self.stopped: dict[int, int] = {}  # process -> the stop point at which it stopped
        self.waiting: set[int] = set()  # processes inside a call that waits
        self.all = [self.process(one, [*range(1, count)] if one == 0 else [0]) for one in range(count)]

    def process(self, number: int, others: list[int]) -> StopAgreement:
        def send(target: int, message: Message) -> None:
            self.channels.setdefault((number, target), deque()).append(message)

        point = StopAgreement(number, others, send)
        point._wait_while_paused = functools.partial(self.wait, number, point)
        return point

    def wait(self, number: int, point: StopAgreement) -> None:
        """Makes other moves until the process may continue; fails if no move is left."""
        self.waiting.add(number)
        while point._is_held:
            self.move()
        self.waiting.discard(number)

    def pass_point(self, one: int) -> None:
        is_wanted = one in self.wanted and self.passed[one] + 1 >= self.wanted[one]
        is_here = self.all[one].is_agreed_stop_point(is_wanted=is_wanted)
        self.passed[one] += 1
        if is_here:
            self.stopped[one] = self.passed[one]

    def arrive(self) -> bool:
        """Delivers one message; returns False where there is none."""
        pairs = [pair for pair, messages in self.channels.items() if messages]
        if pairs:
            source, target = self.rng.choice(pairs)
            self.all[target].handle_message(source, self.channels[source, target].popleft())
        return bool(pairs)

    def runnable(self) -> list[int]:
        """Returns the processes that may come to their next stop point."""
        free = [one for one in range(len(self.all)) if one not in self.waiting and one not in self.stopped]
        return [one for one in free if self.passed[one] < LAST and not self.all[one]._is_held]

    def move(self) -> None:
        """Delivers a message, or brings a process to its next stop point."""
        free = self.runnable()
        if free and self.rng.random() < 0.5:
            self.pass_point(self.rng.choice(free))
        elif not self.arrive():
            assert free, 'a process waits for ever'
            self.pass_point(self.rng.choice(free))

    def run(self) -> None:
        """Makes moves until all processes have ended and all messages have arrived."""
        while self.runnable() or any(self.channels.values()):
            self.move()


@pytest.mark.parametrize('count', [2, 3, 5])
def test_all_stop_at_the_same_point_in_whatever_order_things_happen(count: int):
    outcomes = set()
    for seed in range(200):
        rng = random.Random(seed)
        wanted = {one: rng.randrange(1, LAST + 1) for one in rng.sample(range(count), rng.randint(1, count))}
        network = Network(count, rng, wanted)
        network.run()
        assert not network.waiting and not any(point._is_held for point in network.all)
        if network.stopped:
            (point,) = set(network.stopped.values())
            assert len(network.stopped) == count and point >= min(wanted.values())
        else:  # the request came too late: all processes have reached their end
            assert network.passed == [LAST] * count
        outcomes.add(bool(network.stopped))
    assert outcomes == {True, False}


def test_it_needs_no_main_thread_but_that_of_the_process_that_asks():
    """The others wait for the asking process in a collective, one after seven stop points and one before its first."""
    network = Network(3, random.Random(0), {1: 3})
    for one, points in enumerate((7, 3, 0)):
        for _ in range(points):
            network.pass_point(one)
    while network.arrive():
        pass
    assert [point._agreed for point in network.all] == [8, 8, 8]
    network.run()
    assert network.stopped == {0: 8, 1: 8, 2: 8}


def test_a_process_that_is_held_waits_at_its_next_point():
    sent: list[Message] = []
    point = StopAgreement(1, [0], lambda _, message: sent.append(message))
    assert not point.is_agreed_stop_point(is_wanted=True)
    point.handle_message(0, {'stop': 'hold'})
    assert sent == [{'stop': 'wanted'}, {'stop': 'passed', 'points': 1}]
    answers: list[bool] = []
    main = threading.Thread(target=lambda: answers.append(point.is_agreed_stop_point(is_wanted=True)))
    main.start()
    time.sleep(0.05)
    assert main.is_alive() and not answers
    point.handle_message(0, {'stop': 'agreed', 'point': 2})
    main.join(5)
    assert answers == [True] and len(sent) == 2


def test_an_agreement_that_does_not_come_ends_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, 'WAIT_SECONDS', 0.25)
    lost = StopAgreement(1, [0], lambda *_: None)
    lost.handle_message(0, {'stop': 'hold'})
    with pytest.raises(PeerError, match=r'have not agreed where to stop within 0\.25 s'):
        lost.is_agreed_stop_point(is_wanted=False)

"""Whoever dies, hangs or fails is named by all others; processes of threads stand in for real ones, whose end is noted.

Real ones are in test_join_hosts.py.
"""

import os
import queue
import threading
import time
from collections.abc import Iterator

import pytest

from efficient_attention.errors import InputError, RunError
from efficient_attention.processes import peer_monitor
from efficient_attention.processes.coordinator_relay import LOOPBACK, close_connection
from efficient_attention.processes.join_hosts import find_free_port
from efficient_attention.processes.message_channel import MessageChannel
from efficient_attention.processes.peer_monitor import (
    PeerMonitor,
    check_facts_agree_with_peers,
    gather_from_peers,
    process_index_and_count,
    report_error_to_peers,
    start_peer_listeners,
)
from efficient_attention.processes.rendezvous import RendezvousAddress, RendezvousResult, connect_all_processes


class Ended(BaseException):
    """What `os._exit` raises in the thread that calls it."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.Queue]:
    """The exit codes and last lines of the processes that end."""
    found: queue.Queue = queue.Queue()
    lines = threading.local()

    def leave(code: int) -> None:
        found.put((code, getattr(lines, 'last', '')))
        raise Ended

    monkeypatch.setattr(threading, 'excepthook', lambda _: None)
    monkeypatch.setattr(peer_monitor.os, '_exit', leave)
    monkeypatch.setattr(peer_monitor, 'write_stderr_unlocked', lambda line: setattr(lines, 'last', line))
    monkeypatch.setattr(peer_monitor.atexit, 'register', lambda _: None)
    for name, seconds in {'BEAT': 0.05, 'SILENCE': 2.0, 'GRACE': 0.3, 'BROKEN': 0.2, 'UNWIND': 0.3}.items():
        monkeypatch.setattr(peer_monitor, f'{name}_SECONDS', seconds)
    monkeypatch.setattr(peer_monitor, 'FAREWELL_SECONDS', 0.0)
    yield found


made: list[PeerMonitor] = []


def take_part(number: int, one: RendezvousResult) -> PeerMonitor:
    """One of the processes that know of the others; they end with the test."""
    made.append(PeerMonitor(number, one))
    return made[-1]


@pytest.fixture
def met(ends: queue.Queue) -> Iterator[list[RendezvousResult]]:  # noqa: ARG001  whose ends last as long as the threads
    """Three processes that have met."""
    address = f'{LOOPBACK}:{find_free_port(LOOPBACK)}'
    found: list[RendezvousResult] = []

    def come(number: int) -> None:
        found.append(
            connect_all_processes(RendezvousAddress(address, 3, number, 5.0), {}, lambda near, _: near.close())
        )

    threads = [threading.Thread(target=come, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.sort(key=lambda one: (one.server is None, min(one.channels), 0))
    zero = next(one for one in found if one.server)
    by_port = {channel.connection.getpeername(): number for number, channel in zero.channels.items()}
    others = [one for one in found if one is not zero]
    others.sort(key=lambda one: by_port[one.channels[0].connection.getsockname()])
    yield [zero, *others]
    close_connection(zero.server)
    for one in made:
        one._is_over.set()
    for one in found:
        for channel in one.channels.values():
            channel.close()
    for thread in threading.enumerate():
        if thread.name.startswith(('peer', 'beat', 'late')):
            thread.join(5)
    made.clear()


def last_words(ends: queue.Queue, count: int) -> set[tuple[int, str]]:
    """How so many processes ended."""
    return {ends.get(timeout=5) for _ in range(count)}


def test_all_have_the_same_facts_or_end(met: list[RendezvousResult], ends: queue.Queue):
    joined = [take_part(number, one) for number, one in enumerate(met)]

    def compare(*seeds: int) -> set[str]:
        faults: list[str] = []

        def compare_one(one: PeerMonitor, seed: int) -> None:
            try:
                one.check_facts_agree({'seed': seed})
            except InputError as error:
                faults.append(str(error))

        threads = [threading.Thread(target=compare_one, args=pair) for pair in zip(joined, seeds, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(faults) in (0, 3)
        return set(faults)

    assert compare(1, 1, 1) == compare(2, 2, 2) == set()
    (fault,) = compare(3, 3, 4)
    assert fault.startswith('process 2 (host ') and fault.endswith('has seed = 4, process 0 has seed = 3')
    goodbyes = [threading.Thread(target=one.disconnect) for one in joined]
    for thread in goodbyes:
        thread.start()
    for thread in goodbyes:
        thread.join()
    for one in met:
        for channel in one.channels.values():
            channel.close()
    time.sleep(0.3)
    assert ends.empty()  # an end after a goodbye is none that would be told


@pytest.mark.parametrize('victim', [0, 2])
def test_whoever_has_died_is_named_by_all(victim: int, met: list[RendezvousResult], ends: queue.Queue):
    for number, one in enumerate(met):
        if number != victim:
            take_part(number, one)
    for channel in met[victim].channels.values():
        channel.close()
    ((code, line),) = last_words(ends, 2)
    assert code == 4 and line.startswith(f'error: process {victim} (host ')
    assert line.endswith(f'pid {os.getpid()}) has died; {peer_monitor.AGAIN}')


@pytest.mark.parametrize('victim', [0, 1])
def test_whoever_hangs_is_named_by_all_and_hears_it_when_it_goes_on(
    victim: int, met: list[RendezvousResult], ends: queue.Queue
):
    for number, one in enumerate(met):
        if number != victim:
            take_part(number, one)
    ((code, line),) = last_words(ends, 2)
    silence = 'has given no sign of life for 2 s'
    assert code == 4 and f'error: process {victim} (host ' in line and silence in line
    take_part(victim, met[victim])
    assert ends.get(timeout=5) == (4, f'error: this process {silence}, and the others have ended; {peer_monitor.AGAIN}')


def test_all_stop_at_the_point_after_the_farthest(met: list[RendezvousResult]):
    joined = [take_part(number, one) for number, one in enumerate(met)]
    for one, points in zip(joined, (4, 1, 0), strict=True):
        assert not any(one.stop_point.is_agreed_stop_point(is_wanted=False) for _ in range(points))
    joined[1].stop_point.is_agreed_stop_point(is_wanted=True)
    while not all(one.stop_point._agreed for one in joined):
        time.sleep(0.01)
    for one, left in zip(joined, (1, 3, 5), strict=True):
        assert [one.stop_point.is_agreed_stop_point(is_wanted=False) for _ in range(left)] == [False] * (left - 1) + [
            True
        ]


@pytest.mark.parametrize('victim', [0, 1])
def test_what_ends_one_is_told_by_the_others(victim: int, met: list[RendezvousResult], ends: queue.Queue):
    joined = [take_part(number, one) for number, one in enumerate(met)]
    joined[victim].broadcast_failure(InputError('corpus.txt is gone'))
    told = last_words(ends, 3)  # the failed one does not end by itself here, so it is ended as well
    assert {code for code, _ in told} == {2, 4} and (2, 'error: corpus.txt is gone') in told
    told.discard((2, 'error: corpus.txt is gone'))
    ((_, line),) = told
    assert line.startswith(f'error: process {victim} (host ') and line.endswith(' failed: corpus.txt is gone')


def test_who_fails_by_itself_says_its_own_line(met: list[RendezvousResult], ends: queue.Queue):
    for number, one in enumerate(met):
        take_part(number, one).broadcast_failure(InputError(f'mesh {number}'))
    assert last_words(ends, 3) == {(2, f'error: mesh {number}') for number in range(3)}


def test_an_error_that_may_come_from_a_death_waits_for_it(met: list[RendezvousResult], ends: queue.Queue):
    zero = take_part(0, met[0])
    failing = threading.Thread(target=zero.broadcast_failure, args=(RunError('Gloo: connection reset'),))
    failing.start()
    MessageChannel.close(met[1].channels[0])
    code, line = ends.get(timeout=5)
    assert code == 4 and 'process 1 (host' in line and 'has died' in line
    failing.join()


@pytest.mark.parametrize('is_news_first', [True, False])
def test_what_the_end_of_a_failed_process_breaks_is_no_failure_of_its_own(
    is_news_first: bool, met: list[RendezvousResult], ends: queue.Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peer_monitor, 'BROKEN_SECONDS', 2.0)
    one = take_part(1, met[1])
    failing = threading.Thread(target=one.broadcast_failure, args=(RuntimeError('Gloo: connection reset'),))
    if not is_news_first:
        failing.start()
        assert one._is_failing.wait(5)
    met[0].channels[1].send({'failed': 0, 'line': 'the disk is full'})
    while is_news_first and not one._heard:
        time.sleep(0.01)
    if is_news_first:
        failing.start()
    code, line = ends.get(timeout=5)
    assert code == 4 and line.startswith('error: process 0 (host') and line.endswith(' failed: the disk is full')
    failing.join()


def test_what_each_says_all_know(met: list[RendezvousResult], ends: queue.Queue):
    joined = [take_part(number, one) for number, one in enumerate(met)]
    said: dict[int, list[str]] = {}
    texts = ['', 'gone', 'here' * 1000]

    def gather(one: PeerMonitor) -> None:
        said[one.number] = one.gather(texts[one.number])

    threads = [threading.Thread(target=gather, args=(one,)) for one in joined]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {number: texts for number in range(3)} and ends.empty()


def test_alone_there_is_nobody_to_compare_with():
    peer_monitor._known.clear()
    check_facts_agree_with_peers({'seed': 1})
    assert gather_from_peers('x') == ['x'] and process_index_and_count() == (0, 1)
    report_error_to_peers(None, ValueError(), None)


def test_the_process_s_own_peers_are_known(met: list[RendezvousResult], ends: queue.Queue):
    one = start_peer_listeners(1, met[1])
    made.append(one)
    try:
        met[0].channels[1].send({'fault': 'process 1 has seed = 2'})
        with pytest.raises(InputError, match='seed = 2'):
            check_facts_agree_with_peers({'seed': 2})
        met[0].channels[1].send({'said': ['a', 'b', 'c']})
        assert gather_from_peers('b') == ['a', 'b', 'c'] and process_index_and_count() == (1, 3)
        report_error_to_peers(InputError, InputError('bad'), None)
        assert one._has_told.is_set()
        assert last_words(ends, 1) == {(2, 'error: bad')}
    finally:
        peer_monitor._known.clear()

"""Tests that processes start together if all arrive in time with equal facts about the run, and else end with the same
line.
"""

import contextlib
import re
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from efficient_attention.errors import InputError, PeerError
from efficient_attention.processes import rendezvous
from efficient_attention.processes.coordinator_relay import LOOPBACK, close_connection
from efficient_attention.processes.join_hosts import find_free_port
from efficient_attention.processes.message_channel import MessageChannel
from efficient_attention.processes.rendezvous import (
    ProcessIdentity,
    RendezvousAddress,
    RendezvousResult,
    connect_all_processes,
    connect_to_process_0,
    describe_mismatch,
    facts_to_compare,
)

FACTS = {'config.train.seed': 1, 'code': 'aa'}


def gather(numbers: Sequence[int], *, count: int = 0, seconds: float = 5.0, **other: Any) -> list[Any]:
    """Returns the result or the error of each process; `other` replaces the facts FACTS of the last process."""
    address = f'{LOOPBACK}:{find_free_port(LOOPBACK)}'

    def come(place: int, number: int) -> Any:
        facts = other if other and place == len(numbers) - 1 else FACTS
        try:
            return connect_all_processes(
                RendezvousAddress(address, count or len(numbers), number, seconds), facts, lambda near, _: near.close()
            )
        except (InputError, PeerError) as error:
            return error

    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(come, range(len(numbers)), numbers))


def only_line(errors: list[Any], kind: type[Exception]) -> str:
    """Returns the only message of all errors, which must have the same type."""
    assert {type(error) for error in errors} == {kind}, errors
    (line,) = {str(error) for error in errors}
    return re.sub(r'host \S+, pid \d+', 'host h, pid 1', line)


@contextlib.contextmanager
def closing(met: list[RendezvousResult]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in met:
            for channel in one.channels.values():
                channel.close()
            if one.server:
                close_connection(one.server)


def test_all_come_and_know_one_another():
    met = gather([2, 0, 1])
    with closing(met):
        assert [[person.number for person in one.people] for one in met] == [[0, 1, 2]] * 3
        assert len({one.token for one in met}) == 1
        assert [sorted(one.channels) for one in met] == [[0], [1, 2], [0]]
        met[1].channels[2].send({'to': 2})
        assert met[0].channels[0].receive(5) == {'to': 2}


def test_whoever_is_missing_is_named():
    line = only_line(gather([0, 2], count=4, seconds=0.5), PeerError)
    assert re.fullmatch(r'2 of 4 processes came to \S+ within 0.5 s; missing: 1, 3', line)


def test_process_0_is_missing():
    line = only_line(gather([1], count=2, seconds=0.3), PeerError)
    assert re.fullmatch(r'process 0 did not answer at \S+ within 0.3 s', line)


def test_a_number_given_twice_is_named():
    line = only_line(gather([0, 1, 1]), InputError)
    assert line == ('--process_id=1 is given twice: process 1 (host h, pid 1), process 1 (host h, pid 1)')


def test_two_processes_0_are_named():
    line = only_line(gather([0, 0]), InputError)
    assert line == ('--process_id=0 is given twice: process 0 (host h, pid 1), process 0 (host h, pid 1)')


def test_another_program_at_the_address_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, 'HELLO_SECONDS', 0.2)
    with socket.create_server((LOOPBACK, 0)) as server:
        address = f'{LOOPBACK}:{server.getsockname()[1]}'
        with pytest.raises(InputError, match='process 0 cannot listen there .another program listens there.; --bind'):
            connect_all_processes(RendezvousAddress(address, 2, 0, 5.0), FACTS, lambda near, _: near.close())


def test_a_number_out_of_range_is_named():
    line = only_line(gather([0, 2]), InputError)
    assert line == 'process 2 (host h, pid 1): --process_id must be 0 to 1 with --process_count=2'


def test_another_number_of_processes_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, 'LATE_SECONDS', 0.2)
    address = f'{LOOPBACK}:{find_free_port(LOOPBACK)}'
    with ThreadPoolExecutor(2) as pool:
        places = [RendezvousAddress(address, 3, 0, 5.0), RendezvousAddress(address, 2, 1, 5.0)]
        errors = [
            one.exception() for one in [pool.submit(connect_all_processes, place, FACTS, print) for place in places]
        ]
    assert only_line(errors, InputError) == 'process 1 (host h, pid 1) has --process_count=2, process 0 has 3'


def test_different_facts_are_named():
    line = only_line(gather([0, 1, 2], **FACTS | {'config.train.seed': 2}), InputError)
    assert line == 'process 2 (host h, pid 1) has config.train.seed = 2, process 0 has config.train.seed = 1'


def test_a_stranger_is_not_listened_to():
    address = (LOOPBACK, find_free_port(LOOPBACK))
    served = []

    def relay(connection: socket.socket, received: bytes) -> None:
        served.append(received)
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        place = RendezvousAddress(f'{address[0]}:{address[1]}', 2, 0, 10.0)
        zero = pool.submit(connect_all_processes, place, FACTS, relay)
        for said in (b'GET / HTTP/1.1\r\n', b'{"hello": 1}\n', b'{"relay": "guess"}\nwords', b''):
            with connect_to_process_0(address, time.monotonic() + 5).connection as stranger:
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(5)
                assert stranger.recv(100) == b''
        one = connect_all_processes(RendezvousAddress(place.address, 2, 1, 10.0), FACTS, relay)
        with closing([zero.result(), one]):
            with pytest.raises(InputError, match='all 2 processes of the run at this address are there already'):
                connect_all_processes(RendezvousAddress(place.address, 2, 1, 10.0), FACTS, relay)
            friend = MessageChannel(socket.create_connection(address))
            friend.send({'relay': one.token})
            friend.connection.settimeout(5)
            assert friend.connection.recv(100) == b'' and served == [b'']
            friend.close()


def test_what_else_differs_is_listed_and_long_values_are_cut():
    people = [ProcessIdentity(0, 'a', 1), ProcessIdentity(1, 'b', 2)]
    mine, theirs = {'x': 'y' * 100, **{str(number): 0 for number in range(5)}}, {'x': 'z'}
    assert describe_mismatch(people, [mine, mine]) == ''
    assert describe_mismatch(people, [mine, theirs]) == (
        f'process 1 (host b, pid 2) has x = "z", process 0 has x = "{"y" * 76}... (also different: 0, 1, 2, ...)'
    )
    assert 'has x = absent, process 0 has x = "z"' in describe_mismatch(people, [theirs, {}])


def test_what_belongs_to_a_host_may_differ():
    assert facts_to_compare({'config': {'data': {'cache': 'a', 'length': 3}}}) == {'config.data.length': 3}

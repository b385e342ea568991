"""Tests that a relay passes on the bytes of both sides, and keeps the near side open when the far side has closed."""

import socket
from collections.abc import Iterator

import pytest

from efficient_attention.processes.coordinator_relay import LOOPBACK, close_connection, open_relay
from efficient_attention.processes.message_channel import listen


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with listen(LOOPBACK) as server:
        server.settimeout(5)
        yield server


@pytest.fixture
def sides(server: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Returns both ends of a relayed connection."""
    relay = open_relay(lambda: socket.create_connection(server.getsockname()))
    with socket.create_connection(relay.getsockname()) as near, server.accept()[0] as far:
        near.settimeout(5), far.settimeout(5)
        yield near, far
    close_connection(relay)


def test_both_directions(sides: tuple[socket.socket, socket.socket]):
    near, far = sides
    for source, target in ((near, far), (far, near)):
        source.sendall(b'hello')
        assert target.recv(100) == b'hello'


def test_the_far_side_hears_of_an_end(sides: tuple[socket.socket, socket.socket]):
    near, far = sides
    near.close()
    assert far.recv(100) == b''


def test_the_near_side_stays_open_when_the_far_one_has_died(sides: tuple[socket.socket, socket.socket]):
    near, far = sides
    far.close()
    near.settimeout(0.2)
    for _ in range(3):
        near.sendall(b'are you there?')
        with pytest.raises(TimeoutError):
            near.recv(100)

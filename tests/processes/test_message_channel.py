"""Tests that messages arrive complete and in order, and that anything else closes the connection."""

import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from efficient_attention.processes import message_channel
from efficient_attention.processes.message_channel import MessageChannel, listen, split_address


@pytest.fixture
def ends():
    near, far = socket.socketpair()
    with near, far:
        yield MessageChannel(near), far


def test_messages_arrive_whole_and_in_order():
    near, far = map(MessageChannel, socket.socketpair())
    sent = [{'number': number, 'text': 'é' * number} for number in (0, 1, 70_000)]
    for message in sent[:2]:
        near.send(message)
    assert [far.receive(5), far.receive(5)] == sent[:2]
    far.connection.sendall(b'{"a": 1}\nrest')
    assert near.receive(5) == {'a': 1} and near.take_unread_bytes() == b'rest' and near.take_unread_bytes() == b''
    near.close(), far.close()


@pytest.mark.parametrize(
    'said', [b'GET / HTTP/1.1\n', b'[1, 2]\n', b'[' * 100_000 + b'\n', b'\xff\n', b'"text"\n'], ids=range(5)
)
def test_what_is_no_message_ends_the_connection(said: bytes, ends):
    ends[1].sendall(said)
    with pytest.raises(ConnectionError, match='no message'):
        ends[0].receive(5)


def test_an_endless_line_is_cut_off(ends, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(message_channel, 'MOST_BYTES', 1000)
    ends[1].sendall(b'x' * 3000)
    with pytest.raises(ConnectionError, match='no message'):
        ends[0].receive(5)


def test_silence_and_an_end_are_told_apart(ends):
    with pytest.raises(TimeoutError):
        ends[0].receive(0.01)
    ends[1].close()
    with pytest.raises(ConnectionError, match='was closed'):
        ends[0].receive(5)
    ends[0].send({'to': 'nobody'})  # no error
    ends[0].close()
    with pytest.raises(OSError, match='Bad file descriptor'):
        ends[0].receive(5)


def test_an_end_that_is_closed_by_another_thread_wakes_who_waits(ends):
    closing = threading.Timer(0.2, ends[0].close)
    closing.start()
    began = time.monotonic()
    with pytest.raises(OSError):
        ends[0].receive(30)
    assert time.monotonic() - began < 20
    closing.join()


# Waits two seconds for a message that is sent after 0.6 seconds, during which this process is running.
PAUSED = """
import socket, threading, time
from efficient_attention.processes.message_channel import MessageChannel

near, far = map(MessageChannel, socket.socketpair())

def speak():
    for _ in range(12):
        time.sleep(0.05)
    far.send({'after': 'a pause'})

threading.Thread(target=speak).start()
print('waiting', flush=True)
print(near.receive(2.0))
"""


def test_a_pause_of_the_machine_is_no_silence():
    with subprocess.Popen([sys.executable, '-c', PAUSED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == 'waiting\n'
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == "{'after': 'a pause'}\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    'text, expected', [('host:1234', ('host', 1234)), ('10.0.0.1:80', ('10.0.0.1', 80)), ('[::1]:7', ('::1', 7))]
)
def test_addresses(text: str, expected: tuple[str, int]):
    assert split_address(text) == expected


@pytest.mark.parametrize('text', ['', 'host', ':1', 'host:', 'host:x', 'host:0', 'host:65536', 'host:-1'])
def test_what_is_no_address(text: str):
    with pytest.raises(ValueError):
        split_address(text)


def test_a_free_port_is_listened_to_on_one_interface():
    with listen('localhost') as server, socket.create_connection(server.getsockname()[:2]) as connection:
        assert connection.getpeername()[0] in ('127.0.0.1', '::1')

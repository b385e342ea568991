"""Sends and receives messages between the processes of a run: one JSON object per line, over TCP."""

import contextlib
import json
import select
import socket
import threading
from typing import Any

Message = dict[str, Any]
MOST_BYTES = 1 << 20  # maximum bytes of a message, so that an unknown sender cannot fill the memory
SLICE_SECONDS = 0.25  # if the whole machine pauses, the pause counts as at most this many seconds of waiting


class MessageChannel:
    """One end of a TCP connection for JSON messages; any thread may send, but only one at a time may receive."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sending = threading.Lock()
        self._received = b''

    def send(self, message: Message) -> None:
        """Sends a message; does nothing if the connection is closed, because `receive` reports that."""
        line = json.dumps(message).encode() + b'\n'
        with self._sending:
            try:
                self.connection.sendall(line)
            except OSError:
                return

    def receive(self, seconds: float | None = None) -> Message:
        """Returns the next message of the connection, a JSON object; waits until it arrives.

        Raises:
            TimeoutError: nothing came for this many seconds in which this process ran. Time in which the machine stood
                still (a migrating virtual machine, a sleeping laptop) does not count, as the other end may have stopped
                too.
            OSError: the other end is gone, or sent something that is not a message.
        """
        self.connection.settimeout(seconds)
        while b'\n' not in self._received:
            self._wait_until_readable(seconds)
            more = self.connection.recv(65536)
            self._received += more
            if not more or len(self._received) > MOST_BYTES:
                raise ConnectionError('no message' if more else 'the connection was closed')
        line, _, self._received = self._received.partition(b'\n')
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ConnectionError('no message') from None
        if not isinstance(message, dict):
            raise ConnectionError('no message')
        return message

    def _wait_until_readable(self, seconds: float | None) -> None:
        """Waits until the connection has data to read; raises TimeoutError after the given seconds."""
        ready = select.poll()
        with contextlib.suppress(ValueError):  # if the connection is already closed, the next read reports that
            ready.register(self.connection, select.POLLIN)
            left = seconds
            while left is not None and not ready.poll(1000 * min(left, SLICE_SECONDS)):
                left -= SLICE_SECONDS
                if left <= 0:
                    raise TimeoutError

    def take_unread_bytes(self) -> bytes:
        """Returns the bytes received after the last message, for code that continues with raw bytes."""
        rest, self._received = self._received, b''
        return rest

    def close(self) -> None:
        """Closes the connection, even while another thread waits for a message from it."""
        with contextlib.suppress(OSError):  # the other process may have closed the connection already
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def split_address(address: str) -> tuple[str, int]:
    """Splits an address such as 'host:port' or '[::1]:port' into host and port; raises ValueError for another text."""
    host, colon, port = address.rpartition(':')
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError('it must be host:port')
    return host.strip('[]'), int(port)


def listen(host: str, port: int = 0) -> socket.socket:
    """Returns a socket that listens at an address of this machine; port 0 means any free port.

    Raises:
        OSError: the address cannot be used.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)

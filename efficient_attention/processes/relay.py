"""Relays connections to JAX's coordination service, which itself listens only on the loopback interface of process 0.

That service has no authentication, and its clients end with a stack dump as soon as a connection breaks. Therefore
processes reach it through the port at which a run's processes connect, and only with the run's token. If the far
connection of a relay breaks, the relay keeps the near one open, so that the dead process can still be named
(`peers.py`).
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from efficient_attention.processes.channel import listen

LOOPBACK = '127.0.0.1'


def open_relay(connect: Callable[[], socket.socket]) -> socket.socket:
    """Returns a loopback socket; each connection to it is joined with a new connection from `connect`."""
    server = listen(LOOPBACK)
    in_background(accept_all, server, lambda near: forward_both_ways(near, connect()))
    return server


def accept_all(server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Calls `serve` for every connection in a new thread, until the socket is closed."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        in_background(serve, connection)


def forward_both_ways(near: socket.socket, far: socket.socket, received: bytes = b'') -> None:
    """Forwards data between two connections; first sends `received`, which already came from the near one."""
    near.settimeout(None)
    far.settimeout(None)
    with contextlib.suppress(OSError):
        far.sendall(received)
    in_background(forward_bytes, far, near)
    forward_bytes(near, far)  # until the near side ends; if the far side ends first, the near one stays open
    close_connection(far)
    close_connection(near)


def forward_bytes(source: socket.socket, target: socket.socket) -> None:
    """Forwards data until the source has ended; drops data for a target that is gone."""
    is_lost = False
    while received := received_from(source):
        try:
            if not is_lost:
                target.sendall(received)
        except OSError:
            is_lost = True


def received_from(source: socket.socket) -> bytes:
    """Returns the next bytes; empty if the connection has ended."""
    try:
        return source.recv(65536)
    except OSError:
        return b''


def close_connection(connection: socket.socket) -> None:
    """Closes a connection, also for a thread that is receiving from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def in_background(run: Callable[..., None], *arguments: object) -> None:
    """Runs a function in a daemon thread."""
    threading.Thread(target=run, args=arguments, daemon=True).start()

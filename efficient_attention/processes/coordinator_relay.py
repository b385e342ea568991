"""Forwards connections to JAX's coordination service, which listens only on the loopback interface of process 0.

That service has no authentication, and its clients end with a stack dump as soon as a connection breaks. Therefore
processes reach the service through the port at which a run's processes connect, and only with the run's token. Each
relay joins a near connection, which it has accepted, with a far connection, which it has opened. If the far connection
breaks, the relay keeps the near one open, so that the dead process can still be named (`peer_monitor.py`).
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from efficient_attention.processes.message_channel import listen

LOOPBACK = '127.0.0.1'


def open_relay(connect: Callable[[], socket.socket]) -> socket.socket:
    """Returns a loopback socket; each connection to this socket is forwarded to a new connection made by `connect`."""
    server = listen(LOOPBACK)
    run_in_background(accept_connections, server, lambda near: forward_both_ways(near, connect()))
    return server


def accept_connections(server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Accepts connections until the socket is closed, and calls `serve` for each connection in a new thread."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        run_in_background(serve, connection)


def forward_both_ways(near: socket.socket, far: socket.socket, received: bytes = b'') -> None:
    """Forwards data between two connections in both directions, until the connection `near` ends.

    Args:
        near: the connection whose end also ends the forwarding.
        far: the other connection; if it ends first, `near` stays open.
        received: bytes already received from `near`, which are sent first.
    """
    near.settimeout(None)
    far.settimeout(None)
    with contextlib.suppress(OSError):
        far.sendall(received)
    run_in_background(forward_bytes, far, near)
    forward_bytes(near, far)
    close_connection(far)
    close_connection(near)


def forward_bytes(source: socket.socket, target: socket.socket) -> None:
    """Forwards bytes from one connection to another until the source ends; drops bytes once the target has closed."""
    is_lost = False
    while received := receive_bytes(source):
        try:
            if not is_lost:
                target.sendall(received)
        except OSError:
            is_lost = True


def receive_bytes(source: socket.socket) -> bytes:
    """Returns the next bytes that a connection receives; returns b'' once the connection has ended."""
    try:
        return source.recv(65536)
    except OSError:
        return b''


def close_connection(connection: socket.socket) -> None:
    """Closes a connection, even while another thread receives from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def run_in_background(run: Callable[..., None], *arguments: object) -> None:
    """Starts a daemon thread that runs a function."""
    threading.Thread(target=run, args=arguments, daemon=True).start()

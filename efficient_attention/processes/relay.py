"""Ways to JAX's coordination service, which itself listens on the loopback interface of process 0 alone.

That service asks nobody who they are, and its clients end with a stack dump as soon as a connection to it breaks. So
it is reached through the port at which the processes of a run meet, by those that know the run's token; and an end of
a relay that loses the other keeps the near connection open, so that whoever has died can still be named (`peers.py`).
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from efficient_attention.processes.channel import listen

LOOPBACK = '127.0.0.1'


def open_relay(connect: Callable[[], socket.socket]) -> socket.socket:
    """A socket of the loopback interface, each connection to which is joined with a new one from `connect`."""
    server = listen(LOOPBACK)
    in_background(accept_all, server, lambda near: join(near, connect()))
    return server


def accept_all(server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Serves every connection in a thread of its own, until the socket is closed."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        in_background(serve, connection)


def join(near: socket.socket, far: socket.socket, received: bytes = b'') -> None:
    """Hands on what comes from either side to the other, beginning with what was `received` from the near one."""
    near.settimeout(None)
    far.settimeout(None)
    with contextlib.suppress(OSError):
        far.sendall(received)
    in_background(hand_on, far, near)
    hand_on(near, far)  # until the near side has ended by itself; where the far one has, the near one stays open
    end(far)
    end(near)


def hand_on(source: socket.socket, target: socket.socket) -> None:
    """Sends what comes from one to the other until the source has ended; what a lost target would get is dropped."""
    is_lost = False
    while received := received_from(source):
        try:
            if not is_lost:
                target.sendall(received)
        except OSError:
            is_lost = True


def received_from(source: socket.socket) -> bytes:
    """What comes next; nothing where the connection has ended."""
    try:
        return source.recv(65536)
    except OSError:
        return b''


def end(connection: socket.socket) -> None:
    """Closes a connection, also for a thread that waits for what comes from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def in_background(run: Callable[..., None], *arguments: object) -> None:
    """Runs something in a thread that nobody waits for."""
    threading.Thread(target=run, args=arguments, daemon=True).start()

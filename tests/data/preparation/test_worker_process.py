"""Tests that a worker process ends with its parent and leaves Ctrl-C to it."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from efficient_attention.data.preparation.worker_processes import exit_with_parent


def work(connection: Connection) -> None:
    exit_with_parent()
    connection.send(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
    time.sleep(60)


def start_and_die(connection: Connection) -> None:
    multiprocessing.get_context('spawn').Process(target=work, args=(connection,)).start()
    time.sleep(60)


def test_a_worker_follows_its_parent_and_leaves_ctrl_c_to_it():
    context = multiprocessing.get_context('spawn')
    receiver, sender = context.Pipe(duplex=False)
    parent = context.Process(target=start_and_die, args=(sender,))
    parent.start()
    sender.close()
    assert receiver.poll(60) and receiver.recv() is True
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    assert receiver.poll(5)  # The pipe closes when the worker ends, which holds its last other end.
    receiver.close()

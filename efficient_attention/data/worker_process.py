"""Worker processes end with the process that started them, however that ends."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading


def follow_parent() -> None:
    """Ends this worker as soon as its parent is gone; a killed parent would leave it running for ever.

    A thread waits for the parent's end. Linux's signal at a parent's death would come too early: it is tied to the
    thread that started the process, and Grain starts its workers from threads of its own. Ctrl-C, which a terminal
    sends to workers, too, is the parent's to answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)

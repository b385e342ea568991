"""Worker processes: they return results in the order of the tasks, and end with the process that started them."""

import collections
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from efficient_attention.errors import InputError

Task = TypeVar('Task')
Result = TypeVar('Result')
WAITING = 4  # tasks of each process that are handed out before the reader takes a result, so that no more are in memory


def usable_cores() -> int:
    """The processor cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def in_processes(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int, *, fault: str
) -> Iterator[Result]:
    """Yields function(task) of each task, in order; the processes end with the reader.

    Args:
        function: of a module, or a `functools.partial` of one.
        tasks: read a few ahead of the results.
        processes: how many compute.
        fault: the line to say where one of them dies.

    Raises:
        InputError: one of them died.
    """
    context = multiprocessing.get_context('spawn')  # a fork would copy JAX's threads in whatever state they are
    waiting: collections.deque[Future[Result]] = collections.deque()
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker)
    try:
        for task in tasks:
            waiting.append(pool.submit(function, task))
            if len(waiting) >= WAITING * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise InputError(fault) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # the processes are the parallelism
    follow_parent()


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

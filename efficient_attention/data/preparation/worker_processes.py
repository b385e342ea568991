"""Runs a function in worker processes; returns results in the order of the tasks, and ends the workers with their
parent process."""

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
WAITING = 4  # maximum number of tasks per process that are submitted before their results are read; this limits memory


def usable_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def map_in_processes(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int, *, fault: str
) -> Iterator[Result]:
    """Yields function(task) for each task, in order, computed by worker processes; the processes end with the
    generator.

    Args:
        function: a module-level function, or a `functools.partial` of one.
        tasks: read a few tasks ahead of the results.
        processes: number of worker processes.
        fault: the error message if a process dies.

    Raises:
        InputError: a process died.
    """
    context = multiprocessing.get_context('spawn')  # A fork would copy the threads of JAX in an undefined state.
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
    # The worker processes already use all cores, so the tokenizers library must not start threads in them.
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    exit_with_parent()


def exit_with_parent() -> None:
    """Makes this worker process end as soon as its parent process has ended, so that a killed parent leaves no workers
    behind.

    A thread waits for the parent's end. Linux's parent-death signal would come too early: it follows the thread that
    started the process, and Grain starts workers from its own threads. The worker ignores Ctrl-C, which a terminal
    also sends to workers, because the parent handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)

"""A function of many tasks, computed in several processes, its results in the order of the tasks."""

import collections
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from efficient_attention.data.worker_process import follow_parent
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

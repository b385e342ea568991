"""Caches a result per epoch, such as the order of its rows, for the last two epochs, because prefetched batches may be
from two epochs."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar('T')


class TwoEpochCache(Generic[T]):
    """A cache for the last two results of a function of the epoch, such as the order of its rows. Two suffice, because
    prefetched batches are from at most two epochs.

    Threads wait for each other, so nothing is computed twice. A pickled cache is empty.
    """

    def __init__(self) -> None:
        self._kept: dict[int, T] = {}
        self._lock = threading.Lock()

    def get(self, epoch: int, make: Callable[[int], T]) -> T:
        """Returns the result for an epoch; computes it with `make` if it is not one of the last two results."""
        with self._lock:
            if epoch not in self._kept:
                newest = [*self._kept.items()][-1:]
                self._kept = dict([*newest, (epoch, make(epoch))])
            return self._kept[epoch]

    def __reduce__(self) -> tuple:
        return TwoEpochCache, ()

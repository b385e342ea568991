"""Keeps what was made for the last two epochs, as prefetching reads from two at once."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar('T')


class LastTwoEpochs(Generic[T]):
    """Keeps the last two results of a function of an epoch: batches are prefetched across the border of two epochs.

    Threads wait for one another, so nothing is made twice. Pickles empty.
    """

    def __init__(self) -> None:
        self._kept: dict[int, T] = {}
        self._lock = threading.Lock()

    def get(self, epoch: int, make: Callable[[int], T]) -> T:
        """The result for `epoch`, made now if it is not one of the last two."""
        with self._lock:
            if epoch not in self._kept:
                newest = [*self._kept.items()][-1:]
                self._kept = dict([*newest, (epoch, make(epoch))])
            return self._kept[epoch]

    def __reduce__(self) -> tuple:
        return LastTwoEpochs, ()

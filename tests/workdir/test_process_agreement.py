"""Tests that process 0 chooses for all and that a failure in one process fails in all; threads imitate the
processes.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir import checkpoint_reader, process_agreement
from efficient_attention.workdir.process_agreement import broadcast_from_process_0, require_in_all_processes


class Processes:
    """Threads that imitate the processes of a run."""

    def __init__(self, count: int) -> None:
        self.count, self._here, self._said = count, threading.local(), [''] * count
        self._all_there = threading.Barrier(count, timeout=60)

    def place(self) -> tuple[int, int]:
        """Replaces `process_index_and_count`; a thread that imitates no process gets (0, 1)."""
        number = getattr(self._here, 'number', None)
        return (0, 1) if number is None else (number, self.count)

    def gather(self, text: str) -> list[str]:
        """Replaces `gather_from_peers`: returns the texts of all processes."""
        if self.place()[1] == 1:
            return [text]
        self._said[self.place()[0]] = text
        self._all_there.wait()
        said = list(self._said)
        self._all_there.wait()
        return said

    def do(self, work: Callable[[int], Any]) -> list[Any]:
        """Calls `work` in each process with the process's number; returns the results, or the line of an InputError."""
        found: list[Any] = [None] * self.count

        def one(number: int) -> None:
            self._here.number = number
            try:
                found[number] = work(number)
            except InputError as error:
                found[number] = str(error)
            except BaseException:
                self._all_there.abort()
                raise

        threads = [threading.Thread(target=one, args=(number,)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Returns three imitated processes."""
    three = Processes(3)
    for module in (process_agreement, checkpoint_reader):
        monkeypatch.setattr(module, 'process_index_and_count', three.place)
        monkeypatch.setattr(module, 'gather_from_peers', three.gather)
    yield three


def refused(line: str) -> Any:
    raise InputError(line)


def test_what_process_0_finds_all_have_found(processes: Processes):
    assert processes.do(lambda number: broadcast_from_process_0(lambda: {'step': 5 + number})) == [{'step': 5}] * 3
    assert processes.do(lambda number: broadcast_from_process_0(lambda: None if number == 0 else number)) == [None] * 3


def test_what_process_0_cannot_find_ends_all(processes: Processes):
    assert (
        processes.do(lambda number: broadcast_from_process_0(lambda: refused(f'none in {number}'))) == ['none in 0'] * 3
    )


def test_what_one_cannot_find_ends_all_with_the_line_of_the_first(processes: Processes):
    def look(number: int) -> int:
        return refused(f'gone in {number}') if number else number

    assert processes.do(lambda number: require_in_all_processes(lambda: look(number))) == ['gone in 1'] * 3
    assert processes.do(lambda number: require_in_all_processes(lambda: number)) == [0, 1, 2]


def test_a_process_alone_asks_nobody():
    assert broadcast_from_process_0(lambda: 5) == require_in_all_processes(lambda: 5) == 5
    with pytest.raises(InputError, match='^none$'):
        broadcast_from_process_0(lambda: refused('none'))
    with pytest.raises(InputError, match='^none$'):
        require_in_all_processes(lambda: refused('none'))

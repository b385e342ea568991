"""Tests of a pool of processes: results in the order of the tasks, and a one-line error if a process dies."""

import multiprocessing
import os

import pytest

from efficient_attention.data.preparation.worker_processes import map_in_processes
from efficient_attention.errors import InputError


def test_results_come_in_order_and_only_a_few_tasks_are_read_ahead():
    read: list[int] = []

    def tasks():
        for number in range(40):
            read.append(number)
            yield number

    results = map_in_processes(abs, tasks(), 2, fault='died')
    assert next(results) == 0 and len(read) < 40
    assert list(results) == list(range(1, 40))
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_one_line():
    with pytest.raises(InputError, match='died'):
        list(map_in_processes(os._exit, [3], 1, fault='a process died'))

"""Tests that several processes generate the same rows of a data set in the same order as a single process."""

import pytest

from efficient_attention.data.arena import parallel_generation as module
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.parallel_generation import generate_rows_in_parallel
from efficient_attention.errors import InputError


def plain(rows) -> list:
    return [([text.tolist() for text in row.texts], row.label) for row in rows]


def test_rows_are_the_same_in_any_number_of_processes():
    found = open_arena_dataset('listops:rows=50:length=8-20', 'x')
    alone = plain(found.rows('train'))
    assert plain(generate_rows_in_parallel(found, 'train', processes=2, patience=0.0)) == alone
    assert plain(generate_rows_in_parallel(found, 'train', processes=1)) == alone


def test_few_rows_and_what_is_read_start_no_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, 'map_in_processes', None)
    for text in ('listops:rows=5:length=8-20', 'passages:rows=3:length=16:source=stdlib'):
        found = open_arena_dataset(text, 'x')
        assert plain(generate_rows_in_parallel(found, 'dev', processes=2)) == plain(found.rows('dev'))


def test_where_a_process_dies_the_rest_is_made_in_this_one(monkeypatch: pytest.MonkeyPatch, caplog):
    found = open_arena_dataset('listops:rows=50:length=8-20', 'x')

    def dying(function, tasks, _processes, *, fault):
        yield function(tasks[0])
        raise InputError(fault)

    monkeypatch.setattr(module, 'map_in_processes', dying)
    assert plain(generate_rows_in_parallel(found, 'train', processes=2, patience=0.0)) == plain(found.rows('train'))
    assert 'a process that generates rows died; the main process generates the rows from 16 on' in caplog.text

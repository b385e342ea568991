"""Tests generated rows of key-value pairs: in each row the mapping is a function, and no two splits share a row."""

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.sources.recall_rows import (
    KEYS,
    NEW_KEYS,
    SYMBOLS,
    RecallRows,
    parse_recall_rows,
    recall_documents,
    recall_row,
)
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.data.text.prepare import prepare_text
from efficient_attention.errors import InputError

WANTED = RecallRows(rows=200, pairs=32, fewest=3, most=9, seed=5)


def rows(keys: range = KEYS) -> list[np.ndarray]:
    return [recall_row(WANTED, number, keys) for number in range(WANTED.rows)]


@pytest.mark.parametrize('keys', [KEYS, NEW_KEYS])
def test_each_key_of_a_row_has_one_value_which_is_no_key_of_the_row(keys):
    for row in rows(keys):
        pairs = set(zip(row[::2].tolist(), row[1::2].tolist(), strict=True))
        assert len(row) == 64 and len(pairs) == len(set(row[::2])) <= 9
        assert set(row[::2]) <= set(keys) and not set(row[::2]) & set(row[1::2])


def test_the_mapping_is_new_in_each_row_and_every_symbol_is_a_value():
    pairs = np.concatenate(rows()).reshape(-1, 2)
    values = [set(pairs[pairs[:, 0] == key, 1]) for key in KEYS]
    assert min(map(len, values)) > 10
    assert set(pairs[:, 1]) == set(range(SYMBOLS)) and set(pairs[:, 0]) == set(KEYS)


def test_a_row_depends_only_on_seed_and_number():
    source = open_source('recall:200:32:3-9:5')
    texts = list(source.documents())
    assert texts == list(source.documents()) and len(set(texts)) == 200
    assert texts[7].split() == [f's{symbol}' for symbol in recall_row(WANTED, 7).tolist()]
    assert not set(texts) & set(recall_documents(WANTED._replace(seed=6)))
    assert source.digest() == open_source('recall:200:32:3-9:5').digest() != open_source('recall:200:32:3-9:6').digest()


def test_the_splits_of_a_language_model_share_no_row(tmp_path):
    data = DataConfig(source='recall:50:4:2-3', units='characters', held_out=0.2, cache=str(tmp_path))
    text = prepare_text(data, show_progress=False)
    lines = {split: text.units.decode(ids).split('\n\n') for split, ids in text.splits.items()}
    assert len(lines['train']) + len(lines['held_out']) == 50 and len(lines['held_out']) > 1
    assert not set(lines['train']) & set(lines['held_out'])
    assert sorted(lines['train'] + lines['held_out']) == sorted(recall_documents(RecallRows(50, 4, 2, 3)))


def test_the_seed_is_0_by_default():
    assert parse_recall_rows('10:4:1-2') == RecallRows(10, 4, 1, 2, 0)


@pytest.mark.parametrize(
    'text, fault',
    [
        ('recall:10:4', 'the form is recall:<rows>:<pairs>:<fewest keys>-<most keys>[:<seed>]'),
        ('recall:10:4:2-x', 'the form is'),
        ('recall:10:4:3-2', 'rows and pairs must be at least 1, and 1 <= fewest <= most <= 32'),
        ('recall:10:4:2-33', 'rows and pairs must'),
        ('recall:0:4:1-2', 'rows and pairs must'),
        ('recall:3:0:1-2', 'rows and pairs must'),
    ],
)
def test_a_wrong_text_is_refused_in_one_line(text, fault):
    with pytest.raises(InputError) as caught:
        open_source(text)
    assert str(caught.value).startswith(f'data.source {text!r}: {fault}') and '\n' not in str(caught.value)

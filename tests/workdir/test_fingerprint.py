"""Tests fingerprints of runs: equal ones, allowed differences, and the line that names any other difference."""

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.fingerprint import compare_fingerprints

SAVED = {'config': {'data': {'length': 128, 'source': 'stdlib'}, 'train': {'steps': 10}}, 'tokenizer': 'aa'}


def changed(**data) -> dict:
    return {**SAVED, 'config': {**SAVED['config'], 'data': {**SAVED['config']['data'], **data}}}


def test_tuples_equal_the_lists_that_json_makes_of_them():
    compare_fingerprints({'no_decay': ['bias']}, {'no_decay': ('bias',)}, where='runs/x')


def test_a_difference_names_field_values_and_advice():
    with pytest.raises(InputError) as caught:
        compare_fingerprints(SAVED, changed(length=512), where='runs/x', advice='name a new --workdir')
    assert str(caught.value) == 'runs/x was made with config.data.length = 128, now it is 512; name a new --workdir'


def test_further_differences_are_listed():
    current = {**changed(length=512, source='text:x'), 'tokenizer': 'bb'}
    with pytest.raises(InputError, match=r'now it is 512 \(also different: config.data.source, tokenizer\);'):
        compare_fingerprints(SAVED, current, where='runs/x')


def test_a_field_on_one_side_only_differs_even_from_null():
    with pytest.raises(InputError, match=r'pairs = absent, now it is null'):
        compare_fingerprints({}, {'pairs': None}, where='runs/x')
    with pytest.raises(InputError, match=r'pairs = "sop", now it is absent'):
        compare_fingerprints({'pairs': 'sop'}, {}, where='runs/x')


def test_changeable_fields_may_differ():
    current = {**SAVED, 'config': {**SAVED['config'], 'train': {'steps': 99}}}
    compare_fingerprints(SAVED, current, where='runs/x', changeable=('config.train.*',))
    with pytest.raises(InputError, match=r'config\.train\.steps'):
        compare_fingerprints(SAVED, current, where='runs/x', changeable=('train.*',))

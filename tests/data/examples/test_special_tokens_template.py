"""Tests that rows made from a template of special tokens equal the rows of the tokenizer itself."""

from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.examples.special_tokens_template import pad_and_stack_choices, special_tokens_template_of
from efficient_attention.data.examples.text_encoder import encoding_to_arrays, text_encoder
from tests.tasks.letters import letters, spaced_letters


@pytest.mark.parametrize('make', [letters, spaced_letters])
@pytest.mark.parametrize('texts', [['a bc'], ['abc', 'd e f'], ['a', 'b'], ['', 'ab']])
def test_a_row_is_the_tokenizers_own(texts, make):
    encoder = make()
    encodings = encoder.encode(texts)
    template = special_tokens_template_of(encoder, is_pair=len(texts) == 2)
    row, expected = template.row(*(one.ids for one in encodings)), encoding_to_arrays(encoder.row(*encodings))
    assert row.keys() == expected.keys()
    for name in row:
        np.testing.assert_array_equal(row[name], expected[name])
        assert row[name].dtype == np.int32
    assert template.special_token_count == encoder.special_token_count(is_pair=len(texts) == 2)
    np.testing.assert_array_equal(row['tokens'][template.first_text_start :][: len(encodings[0])], encodings[0].ids)


def test_joined_rows_are_padded_to_the_longest():
    template = special_tokens_template_of(letters(), is_pair=False)
    joined = pad_and_stack_choices([template.row([9]), template.row([7, 8, 9])], pad=5)
    assert joined['tokens'].tolist() == [[2, 9, 3, 5, 5], [2, 7, 8, 9, 3]] and joined['lengths'].tolist() == [3, 5]
    assert not joined['token_types'].any() and {array.dtype.name for array in joined.values()} == {'int32'}


def test_ids_with_nothing_around_them_are_not_copied():
    ids = np.arange(7, dtype=np.uint16)
    row = special_tokens_template_of(text_encoder(Path('fixed:bytes')), is_pair=False).row(ids)
    assert row['tokens'] is ids and row['token_types'].shape == (7,) and not row['token_types'].any()
    joined = pad_and_stack_choices([row, row], pad=0)
    assert joined['tokens'].dtype == np.uint16 and joined['token_types'].dtype == np.int32
    assert special_tokens_template_of(letters(), is_pair=False).row(ids)['tokens'].dtype == np.int32


def test_types_that_are_all_0_take_no_memory():
    types = special_tokens_template_of(letters(), is_pair=False).row(np.arange(1000))['token_types']
    assert types.shape == (1002,) and types.strides == (0,)
    joined = pad_and_stack_choices([{'tokens': types, 'token_types': types}], pad=5)
    assert joined['token_types'].shape == (1, 1002) and joined['token_types'].strides == (0, 0)

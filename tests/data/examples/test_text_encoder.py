"""Tests of rows of one or two texts with the special tokens of the tokenizer's template."""

from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.examples.text_encoder import (
    TextEncoder,
    encode_in_batches,
    encoding_to_arrays,
    ids_of,
    text_encoder,
)
from tests.tasks.letters import letters

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '[', ']', 'sep', 'a', 'dog', '##s', 'run']


@pytest.fixture
def encoder(tmp_path: Path) -> TextEncoder:
    (tmp_path / 'vocab.txt').write_text('\n'.join(PIECES) + '\n', encoding='utf-8')
    return text_encoder(tmp_path / 'vocab.txt')


def test_special_tokens_and_types(encoder: TextEncoder):
    first, second = encoder.encode(['A dogs', 'run'])
    pair = encoder.row(first, second)
    assert pair.tokens == ['[CLS]', 'a', 'dog', '##s', '[SEP]', 'run', '[SEP]']
    assert pair.type_ids == [0, 0, 0, 0, 0, 1, 1]
    assert encoder.row(first).tokens == ['[CLS]', 'a', 'dog', '##s', '[SEP]']
    assert first.tokens == ['a', 'dog', '##s']  # The encoder does not change its input.
    assert (encoder.special_token_count(is_pair=False), encoder.special_token_count(is_pair=True)) == (2, 3)
    assert (encoder.pad, encoder.cls, encoder.sep, encoder.mask, encoder.size) == (0, 2, 3, 4, len(PIECES))


def test_offsets_stay_those_of_the_own_text(encoder: TextEncoder):
    first, second = encoder.encode(['a', ' dogs run'])
    assert encoder.row(first, second).offsets == [(0, 0), (0, 1), (0, 0), (1, 4), (4, 5), (6, 9), (0, 0)]


def test_a_special_token_in_a_text_is_text(encoder: TextEncoder):
    [encoding] = encoder.encode(['a [SEP] dog'])
    assert encoding.tokens == ['a', '[', 'sep', ']', 'dog']


def test_arrays(encoder: TextEncoder):
    arrays = encoding_to_arrays(encoder.row(*encoder.encode(['a dog', 'run'])))
    np.testing.assert_array_equal(arrays['tokens'], [2, 8, 9, 3, 11, 3])
    np.testing.assert_array_equal(arrays['token_types'], [0, 0, 0, 0, 1, 1])
    assert {array.dtype for array in arrays.values()} == {np.dtype('int32')}


def test_ids_of_many_texts():
    encoder = letters()
    texts = ['ab', 'c', 'ab', '', 'd e', 'f']
    found = ids_of(encoder, texts)
    assert [one.tolist() for one in found] == [one.ids for one in encoder.encode(texts)]
    assert found[0] is found[2] and {one.dtype for one in found} == {np.dtype(np.int32)}
    assert [one.ids for one in encode_in_batches(encoder, texts, at_once=2)] == [
        one.ids for one in encoder.encode(texts)
    ]

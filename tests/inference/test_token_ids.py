"""Tests that ids outside the vocabulary are found on the host, in every array of ids of a batch."""

import numpy as np
import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate import ID_ARRAYS, check_ids


def of_size(vocab_size: int, **fields: int) -> ModelConfig:
    return ModelConfig(vocab_size=vocab_size, shared_table=False, **fields)


@pytest.mark.parametrize('name', ID_ARRAYS)
@pytest.mark.parametrize('id', [-1, 8, 2**31 - 1])
def test_an_id_beyond_the_vocabulary_is_named_with_its_row(name: str, id: int):
    batch = {other: np.arange(8, dtype=np.int32).reshape(4, 2) for other in ID_ARRAYS}
    check_ids(batch, of_size(8))
    batch[name][2, 1] = id
    with pytest.raises(
        InputError, match=rf"^row 2 of a batch has the token id {id} in '{name}'; ids must be from 0 to 7 "
    ):
        check_ids(batch, of_size(8))


def test_targets_may_have_a_table_of_another_size():
    batch = {name: np.full((2, 3), 8, np.int32) for name in ('source', 'tokens', 'targets')}
    check_ids(batch, of_size(9, target_vocab_size=10))
    with pytest.raises(InputError, match=r"id 8 in 'tokens'; ids must be from 0 to 7 \(model.target_vocab_size\)$"):
        check_ids(batch, of_size(9, target_vocab_size=8))
    with pytest.raises(InputError, match=r"id 8 in 'source'; ids must be from 0 to 7 \(model.vocab_size\)$"):
        check_ids(batch, of_size(8, target_vocab_size=9))


def test_rows_of_choices_are_counted_as_rows():
    tokens = np.zeros((3, 4, 5), np.int32)
    tokens[1, 3, 2] = 9
    with pytest.raises(InputError, match='^row 1 of a batch has the token id 9'):
        check_ids({'tokens': tokens}, of_size(9))


def test_a_batch_without_ids_and_other_numbers_pass():
    check_ids({'weights': np.full(2, 99.0), 'tokens': np.zeros((0, 4), np.int32), 'label': np.array([-5])}, of_size(4))

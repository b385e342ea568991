"""Tests of masked rows of long-range tasks: one whole text a row, and the same rows after a restart."""

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.masked_texts import MaskedTexts
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.tokenizers.fixed_vocabulary import FIRST_WORD
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError

ENCODER = text_encoder('fixed:listops')
VOCABULARY = vocabulary_of(ENCODER.tokenizer, 'fixed:listops')
TEXTS = [np.arange(length, dtype=np.int32) % 14 + FIRST_WORD for length in (12, 20, 7)]


def rows_of(**fields) -> MaskedTexts:
    return MaskedTexts(TEXTS, VOCABULARY, DataConfig(length=16, mask_rate=0.25, max_masked=4, **fields), seed=3)


def test_a_row_is_one_text_under_masks():
    rows = rows_of()
    for index, text in enumerate(TEXTS):
        row, used = rows.row(0, index), min(len(text), 16)
        assert row['segments'].tolist() == [1] * used + [0] * (16 - used)
        assert row['positions'][:used].tolist() == list(range(used))
        count = int(row['masked_weights'].sum())
        assert count == round(used * 0.25)
        restored = row['tokens'].copy()
        restored[row['masked_positions'][:count]] = row['masked_tokens'][:count]
        assert restored[:used].tolist() == text[:16].tolist() and (restored[used:] == VOCABULARY.pad).all()
        assert rows.token_ids(index).tolist() == text[:16].tolist()


def test_every_epoch_holds_every_row_once_under_other_masks():
    rows = rows_of()
    lengths = [[int(rows.training_row(3 * epoch + turn)['segments'].sum()) for turn in range(3)] for epoch in range(4)]
    assert all(sorted(found) == [7, 12, 16] for found in lengths) and len(set(map(tuple, lengths))) > 1
    assert (rows.row(0, 1)['masked_positions'] != rows.row(1, 1)['masked_positions']).any()
    again = rows_of().training_row(7)
    assert all((again[name] == array).all() for name, array in rows.training_row(7).items())
    fixed = rows_of(static_copies=1)
    assert (fixed.row(0, 1)['tokens'] == fixed.row(5, 1)['tokens']).all()


def test_padding_counts_for_nothing():
    padding = rows_of().padding_row()
    assert padding['masked_weights'].sum() == padding['segments'].sum() == 0
    with pytest.raises(InputError, match='^the seed is -1'):
        MaskedTexts(TEXTS, VOCABULARY, DataConfig(), -1)

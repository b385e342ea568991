"""Tests of the encoder of pairs: end symbols, prefixes, truncation, and the special ids of tokenizers."""

import dataclasses

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.data.pairs.pair_encoder import (
    OverlongPairs,
    PairEncoder,
    SourceOrTargetEncoder,
    special_ids_of_tokenizer,
)
from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds
from efficient_attention.errors import InputError

PIECES = {'<pad>': 0, '</s>': 1, '<unk>': 2, 'a': 3, 'b': 4, 'c': 5}


def tokenizer_of(pieces: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token='<unk>'))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def encoder(overlong: str = 'truncate') -> PairEncoder:
    return PairEncoder(side(PIECES, 4), side(PIECES, 3), overlong)


def side(pieces: dict[str, int], length: int) -> SourceOrTargetEncoder:
    return SourceOrTargetEncoder(tokenizer_of(pieces), special_ids_of_tokenizer(tokenizer_of(pieces)), length)


PAIRS = [TextPair('a b', 'c', 'line 1'), TextPair('a b c', 'c b a', 'line 2'), TextPair('b', 'a b', 'line 3')]


def test_texts_end_and_have_the_prefix_of_their_set():
    [pair] = encoder().encode(PAIRS[:1], 'c ', OverlongPairs())
    assert pair.source.tolist() == [5, 3, 4, 1] and pair.target.tolist() == [5, 1] and pair.where == 'line 1'


def test_each_side_has_the_ids_of_its_own_tokenizer():
    apart = PairEncoder(side(PIECES, 4), side({'</s>': 0, '<pad>': 1, 'c': 2, 'a': 3, '<unk>': 4}, 3))
    assert apart.special_ids == (SequenceSpecialIds(pad=0, end=1, start=0), SequenceSpecialIds(pad=1, end=0, start=1))
    [pair] = apart.encode([TextPair('a b c c', 'c a c', 'line 1')], '', OverlongPairs())
    assert pair.source.tolist() == [3, 4, 5, 1] and pair.target.tolist() == [2, 3, 0]


def test_pairs_that_are_too_long_are_cut_or_left_out_and_counted():
    overlong = OverlongPairs()
    pairs = list(encoder().encode(PAIRS, '', overlong))
    assert [pair.target.tolist() for pair in pairs] == [[5, 1], [5, 4, 1], [3, 4, 1]]
    assert overlong == OverlongPairs(1, 'line 2')
    assert [pair.where for pair in encoder('skip').encode(PAIRS, '', OverlongPairs())] == ['line 1', 'line 3']
    with pytest.raises(InputError, match=r'^line 2: 4 and 4 tokens, above data.length 4 and pairs.target_length 3'):
        list(encoder('error').encode(PAIRS, '', overlong))


def test_sources_are_reversed_between_their_ends_after_they_are_cut():
    begun = dataclasses.replace(
        side(PIECES, 5), symbols=SequenceSpecialIds(pad=0, end=1, start=0, begin=2), is_reversed=True
    )
    reversing = dataclasses.replace(side(PIECES, 4), is_reversed=True)
    [pair] = PairEncoder(reversing, side(PIECES, 4)).encode([TextPair('a b c c', 'a b', 'line 1')], '', OverlongPairs())
    assert pair.source.tolist() == [5, 4, 3, 1] and pair.target.tolist() == [3, 4, 1]
    [ids] = begun.ids(['a b c'])
    read = begun.truncate_ids(ids)
    assert read.tolist() == [2, 5, 4, 3, 1] and (read[begun.reversed_positions(len(read))] == ids).all()
    assert reversing.truncate_ids(reversing.ids([''])[0]).tolist() == [1]


def test_symbols_by_the_names_in_use():
    assert special_ids_of_tokenizer(tokenizer_of(PIECES)) == SequenceSpecialIds(
        pad=0, end=1, start=0
    )  # T5's decoder inputs begin with the padding id.
    bart = {'<s>': 0, '<pad>': 1, '</s>': 2, '<unk>': 3}
    assert special_ids_of_tokenizer(tokenizer_of(bart)) == SequenceSpecialIds(pad=1, end=2, start=0)
    assert special_ids_of_tokenizer(tokenizer_of(bart), '</s>') == SequenceSpecialIds(pad=1, end=2, start=2)


def test_symbols_that_are_missing_are_named():
    with pytest.raises(InputError, match=r'^tokenizer data.tokenizer: no .*</s> in its vocabulary'):
        special_ids_of_tokenizer(tokenizer_of({'<pad>': 0, '<unk>': 1}))
    with pytest.raises(InputError, match=r"^pairs.start is '<go>', which the tokenizer lacks$"):
        special_ids_of_tokenizer(tokenizer_of(PIECES), '<go>')

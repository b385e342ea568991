"""Tests of the report on unknown tokens in sources: their number, their words, and silence if there are none."""

import functools

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from efficient_attention.inference.translator import UnknownTokenCounter


def tokenizer_of(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def parts_of(tokenizer: Tokenizer, text: str) -> list[tuple[str, str]]:
    encoding = tokenizer.encode(text)
    return [(piece, text[slice(*place)]) for piece, place in zip(encoding.tokens, encoding.offsets, strict=True)]


def line_of(tokenizer: Tokenizer, *texts: str) -> str:
    unknown = UnknownTokenCounter(functools.partial(parts_of, tokenizer), tokenizer)
    encoded = tokenizer.encode_batch(list(texts))
    unknown.count_unknown_tokens(texts, [np.array(one.ids, np.int32) for one in encoded])
    line = unknown.summarize_and_reset()
    assert unknown.summarize_and_reset() == ''
    return line


def test_unknown_words_are_counted_and_named():
    words = tokenizer_of(models.WordLevel({'<unk>': 0, 'a': 1, 'dog': 2, '.': 3}, unk_token='<unk>'))
    assert line_of(words, 'a dog.', 'a') == ''
    said = ' tokens of the sources are unknown to the tokenizer: '
    assert line_of(words, 'a dog.', 'a cat. A cat') == f"3 of 8{said}'cat', 'A'"
    assert line_of(words, 'a b c d e f g') == f"6 of 7{said}such as 'b', 'c', 'd', 'e', 'f'"


def test_characters_that_no_piece_has_are_named():
    pieces = [('<unk>', 0.0), ('a', -1.0), ('b', -1.0)]
    assert line_of(tokenizer_of(models.Unigram(pieces, unk_id=0)), 'ab \u00e4b').endswith(": '\u00e4'")


def test_a_tokenizer_that_knows_every_text_says_nothing():
    known = tokenizer_of(models.BPE({'a': 0, 'b': 1}, []))
    assert line_of(known, 'ab', 'b') == ''


def test_pieces_whose_ids_stand_in_a_vocabulary_apart():
    reader = tokenizer_of(models.Unigram([('<unk>', 0.0), ('a', -1.0), ('b', -1.0)], unk_id=0))
    vocabulary = Tokenizer(models.WordLevel({'a': 0, '<unk>': 1}, unk_token='<unk>'))
    unknown = UnknownTokenCounter(functools.partial(parts_of, reader), vocabulary)
    unknown.count_unknown_tokens(['a b'], [np.array([0, 1], np.int32)])
    assert unknown.summarize_and_reset() == "1 of 2 tokens of the sources are unknown to the tokenizer: 'b'"

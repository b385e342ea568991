"""Tests of WordPiece against a second implementation of BERT's rules."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.data.tokenizers.wordpiece import wordpiece_tokenizer

PIECES = [
    '[PAD]',
    '[UNK]',
    '[CLS]',
    '[SEP]',
    '[MASK]',
    *'abcdefgh!.é北京',
    *(f'##{c}' for c in 'abcdefé'),
    'abc',
    '##bcd',
]
PIECES += ['A', 'bad', '##']
VOCABULARY = {piece: id for id, piece in enumerate(PIECES)}
IDEOGRAPHS = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def words_of(tokenizer, text):
    normalised = tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalised)]


# ---- A second implementation of BERT's rules ----


def separated(character):
    """Returns the replacement of a character before the text is split at spaces."""
    category = unicodedata.category(character)
    if character in '\t\n\r' or category == 'Zs':
        return ' '
    if character == '\ufffd' or category in ('Cc', 'Cf'):
        return ''
    is_ideograph = any(low <= ord(character) <= high for low, high in IDEOGRAPHS)
    return f' {character} ' if is_ideograph else character


def is_punctuation(character):
    is_ascii_sign = character.isascii() and character.isprintable() and not character.isalnum() and character != ' '
    return is_ascii_sign or unicodedata.category(character).startswith('P')


def expected_words(text, lowercase):
    words = []
    for word in ''.join(map(separated, text)).split():
        if lowercase:
            plain = unicodedata.normalize('NFD', word.lower())
            word = ''.join(character for character in plain if unicodedata.category(character) != 'Mn')
        spaced = ''.join(f' {character} ' if is_punctuation(character) else character for character in word)
        words += spaced.split()
    return words


def expected_pieces(word):
    if len(word) > 100:
        return ['[UNK]']
    pieces, start = [], 0
    while start < len(word):
        prefix = '##' if start else ''
        ends = [end for end in range(len(word), start, -1) if prefix + word[start:end] in VOCABULARY]
        if not ends:
            return ['[UNK]']
        pieces.append(prefix + word[start : ends[0]])
        start = ends[0]
    return pieces


def test_the_second_implementation_knows_the_examples():
    assert expected_words('  Héllo,\tWORLD\u00a0北京x\x00\u200b ', True) == ['hello', ',', 'world', '北', '京', 'x']
    assert expected_words("don't $5", False) == ['don', "'", 't', '$', '5']
    assert expected_pieces('abcbcdx') == ['[UNK]']
    assert expected_pieces('abcbcda') == ['abc', '##bcd', '##a']


@pytest.mark.parametrize('lowercase', [True, False])
def test_every_old_character_is_treated_as_in_bert(lowercase):
    """Characters whose category has not changed since Unicode 3.2 are treated as in BERT.

    The library's Unicode tables are newer than 3.2 and older than today's. Of the letters without case, nearly all
    ideographs and Hangul, only each fiftieth and the ends of ranges are tested.
    """
    tokenizer = wordpiece_tokenizer(VOCABULARY, lowercase=lowercase)
    old = unicodedata.ucd_3_2_0
    kinds = ((chr(point), unicodedata.category(chr(point))) for point in range(0x110000))
    characters = [c for c, kind in kinds if kind == old.category(c) and kind not in ('Cn', 'Co', 'Cs')]
    assert len(characters) > 90_000
    caseless = [c for c in characters if unicodedata.category(c) == 'Lo']
    known = set(caseless)
    caseless = [c for n, c in enumerate(caseless) if n % 50 == 0 or not {chr(ord(c) - 1), chr(ord(c) + 1)} <= known]
    characters = [c for c in characters if unicodedata.category(c) != 'Lo'] + caseless
    for start in range(0, len(characters), 100):
        group = characters[start : start + 100]
        text = ' '.join(f'a{character}B {character}' for character in group)
        if words_of(tokenizer, text) != expected_words(text, lowercase):
            wrong = [c for c in group if words_of(tokenizer, f'a{c}B {c}') != expected_words(f'a{c}B {c}', lowercase)]
            pytest.fail(f'differ: {[hex(ord(c)) for c in wrong]}')


@given(st.text(st.sampled_from('abcdefghxABÉé!. \t北京\u0301\x00\u200b\u00a0')), st.booleans())
def test_pieces_are_the_longest_from_the_left(text, lowercase):
    tokenizer = wordpiece_tokenizer(VOCABULARY, lowercase=lowercase)
    expected = [piece for word in expected_words(text, lowercase) for piece in expected_pieces(word)]
    assert tokenizer.encode(text, add_special_tokens=False).tokens == expected


@pytest.mark.parametrize('length, tokens', [(100, ['a', *['##a'] * 99]), (101, ['[UNK]']), (5000, ['[UNK]'])])
def test_a_word_of_more_than_100_characters_is_unknown(length, tokens):
    tokenizer = wordpiece_tokenizer(VOCABULARY, lowercase=True)
    assert tokenizer.encode('a' * length, add_special_tokens=False).tokens == tokens

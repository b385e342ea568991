"""Loaded tokenizers: BERT's rules against a second implementation of them, and files that are not as they should be."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers

from efficient_attention.data.tokenizers.loading import load_tokenizer, word_piece
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError

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
REAL_UNCASED = Path('data/tokenizers/bert-base-uncased-vocab.txt')
REAL_CASED = Path('data/tokenizers/bert-base-cased-vocab.txt')


def save(path, pieces):
    path.write_text('\n'.join(pieces) + '\n', encoding='utf-8')
    return path


def words_of(tokenizer, text):
    normalised = tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalised)]


# ---- BERT's rules, written a second time ----


def separated(character):
    """What a character becomes before the text is split at spaces."""
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
    """Characters of Unicode 3.2 whose kind has not changed since; the library's tables end between then and now."""
    tokenizer = word_piece(VOCABULARY, lowercase=lowercase)
    old = unicodedata.ucd_3_2_0
    kinds = ((chr(point), unicodedata.category(chr(point))) for point in range(0x110000))
    characters = [c for c, kind in kinds if kind == old.category(c) and kind not in ('Cn', 'Co', 'Cs')]
    assert len(characters) > 90_000
    for start in range(0, len(characters), 100):
        group = characters[start : start + 100]
        text = ' '.join(f'a{character}B {character}' for character in group)
        if words_of(tokenizer, text) != expected_words(text, lowercase):
            wrong = [c for c in group if words_of(tokenizer, f'a{c}B {c}') != expected_words(f'a{c}B {c}', lowercase)]
            pytest.fail(f'differ: {[hex(ord(c)) for c in wrong]}')


@given(st.text(st.sampled_from('abcdefghxABÉé!. \t北京\u0301\x00\u200b\u00a0')), st.booleans())
def test_pieces_are_the_longest_from_the_left(text, lowercase):
    tokenizer = word_piece(VOCABULARY, lowercase=lowercase)
    expected = [piece for word in expected_words(text, lowercase) for piece in expected_pieces(word)]
    assert tokenizer.encode(text, add_special_tokens=False).tokens == expected


@pytest.mark.parametrize('length, tokens', [(100, ['a', *['##a'] * 99]), (101, ['[UNK]']), (5000, ['[UNK]'])])
def test_a_word_of_more_than_100_characters_is_unknown(length, tokens):
    tokenizer = word_piece(VOCABULARY, lowercase=True)
    assert tokenizer.encode('a' * length, add_special_tokens=False).tokens == tokens


def test_vocab_txt(tmp_path):
    tokenizer = load_tokenizer(save(tmp_path / 'vocab.txt', PIECES), lowercase=True)
    assert tokenizer.encode('ABC bad [MASK]!').tokens == ['[CLS]', 'abc', 'bad', '[MASK]', '!', '[SEP]']
    assert tokenizer.decode(tokenizer.encode('abcd e!').ids) == 'abcd e!'
    cased = load_tokenizer(tmp_path / 'vocab.txt', lowercase=False)
    assert cased.encode('A é', add_special_tokens=False).tokens == ['A', 'é']


def test_tokenizer_json_round_trip(tmp_path):
    original = word_piece(VOCABULARY, lowercase=True)
    original.save(str(tmp_path / 'tokenizer.json'))
    loaded = load_tokenizer(tmp_path / 'tokenizer.json', lowercase=False)  # its own normalisation counts
    text = 'Abc [MASK] BÉ!'
    assert loaded.encode(text).ids == original.encode(text).ids


@pytest.mark.parametrize(
    'name, content, fault',
    [
        ('vocab.txt', None, 'cannot be read'),
        ('vocab.bin', b'', 'known files: vocab.txt, tokenizer.json'),
        ('vocab.txt', b'[PAD]\n[UNK]\n\xff\n', 'byte 0xff at offset 12 is not UTF-8'),
        ('vocab.txt', b'[PAD]\n[UNK]\na\n[UNK]\n', "line 4 repeats '[UNK]'"),
        ('vocab.txt', b'a\nb\n', 'no [UNK]'),
        ('tokenizer.json', b'{', 'not a tokenizer.json'),
        ('tokenizer.json', b'[]', 'not a tokenizer.json'),
        ('tokenizer.json', b'{"model": {}}', 'not a tokenizer.json'),
        ('tokenizer.json', b'[' * 100_000, 'not a tokenizer.json'),
        ('spiece.model', b'not a model', 'not a SentencePiece model'),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named(tmp_path, name, content, fault):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_tokenizer(path, lowercase=True)
    message = str(caught.value)
    assert str(path) in message and fault in message and '\n' not in message


def test_a_strange_regular_expression_is_refused(tmp_path):
    tokenizer = word_piece(VOCABULARY, lowercase=True)
    for pattern, is_safe in [(' {2,}', True), (r'\s+', True), ('(a+)+b', False)]:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(pattern), ' ')])
        tokenizer.save(str(tmp_path / 'tokenizer.json'))
        if is_safe:
            load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True)
        else:
            with pytest.raises(InputError, match=r'tokenizer\.json: its normalizer has the regular expression'):
                load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True)


# ---- the published vocabularies ----

KNOWN_UNCASED = {
    'Hello, my dog is cute': [7592, 1010, 2026, 3899, 2003, 10140],
    'who was jim henson ? [SEP] jim henson was a puppeteer': [
        *(2040, 2001, 3958, 27227, 1029, 102, 3958, 27227, 2001, 1037, 13997, 11510)
    ],
}
KNOWN_PIECES = {
    'unaffable embeddings': ['una', '##ffa', '##ble', 'em', '##bed', '##ding', '##s'],
    'NAÏVE Café Zürich': ['naive', 'cafe', 'zurich'],
    'a\x00b\u200b\tc\ufffdd': ['ab', 'cd'],
    '中国 means China': ['中', '国', 'means', 'china'],
    "don't stop...": ['don', "'", 't', 'stop', '.', '.', '.'],
    'x' * 101: ['[UNK]'],
}


@pytest.mark.real
@pytest.mark.skipif(not REAL_UNCASED.exists(), reason='needs data/tokenizers')
def test_bert_base_uncased():
    tokenizer = load_tokenizer(REAL_UNCASED, lowercase=True)
    vocabulary = vocabulary_of(tokenizer, str(REAL_UNCASED))
    assert (vocabulary.size, vocabulary.pad, vocabulary.unknown) == (30522, 0, 100)
    assert (vocabulary.cls, vocabulary.sep, vocabulary.mask) == (101, 102, 103)
    assert vocabulary.special == (0, 100, 101, 102, 103)
    for text, ids in KNOWN_UNCASED.items():
        assert tokenizer.encode(text).ids == [101, *ids, 102]
    for text, pieces in KNOWN_PIECES.items():
        assert tokenizer.encode(text, add_special_tokens=False).tokens == pieces


@pytest.mark.real
@pytest.mark.skipif(not REAL_CASED.exists(), reason='needs data/tokenizers')
def test_bert_base_cased():
    tokenizer = load_tokenizer(REAL_CASED, lowercase=False)
    assert vocabulary_of(tokenizer, str(REAL_CASED)).size == 28996
    assert tokenizer.encode('Paris is nice', add_special_tokens=False).tokens == ['Paris', 'is', 'nice']

"""Tests of tokenizers loaded from files: saved ones, published ones, and damaged ones."""

from pathlib import Path

import pytest
from tokenizers import Regex, normalizers

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.data.tokenizers.wordpiece import wordpiece_tokenizer
from efficient_attention.errors import InputError
from tests.data.tokenizers.test_wordpiece import PIECES, VOCABULARY

REAL_UNCASED = Path('data/tokenizers/bert-base-uncased-vocab.txt')
REAL_CASED = Path('data/tokenizers/bert-base-cased-vocab.txt')


def save(path, pieces):
    path.write_text('\n'.join(pieces) + '\n', encoding='utf-8')
    return path


def test_vocab_txt(tmp_path):
    tokenizer = load_tokenizer(save(tmp_path / 'vocab.txt', PIECES), lowercase=True)
    assert tokenizer.encode('ABC bad [MASK]!').tokens == ['[CLS]', 'abc', 'bad', '[MASK]', '!', '[SEP]']
    assert tokenizer.decode(tokenizer.encode('abcd e!').ids) == 'abcd e!'
    cased = load_tokenizer(tmp_path / 'vocab.txt', lowercase=False)
    assert cased.encode('A é', add_special_tokens=False).tokens == ['A', 'é']


def test_tokenizer_json_round_trip(tmp_path):
    original = wordpiece_tokenizer(VOCABULARY, lowercase=True)
    original.save(str(tmp_path / 'tokenizer.json'))
    # The file's own normalisation overrides `lowercase`.
    loaded = load_tokenizer(tmp_path / 'tokenizer.json', lowercase=False)
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
    tokenizer = wordpiece_tokenizer(VOCABULARY, lowercase=True)
    for pattern, is_safe in [(' {2,}', True), (r'\s+', True), ('(a+)+b', False)]:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(pattern), ' ')])
        tokenizer.save(str(tmp_path / 'tokenizer.json'))
        if is_safe:
            load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True)
        else:
            with pytest.raises(
                InputError, match=r'tokenizer\.json: its normalizer has .* run for ever .* Llama 3, Qwen$'
            ):
                load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True)


# ---- Tests of published vocabularies ----

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


def test_a_relative_path_says_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    said = f'^tokenizer runs/vocab.txt: cannot be read .No such file or directory; the path is relative to {tmp_path}.$'
    with pytest.raises(InputError, match=said):
        load_tokenizer('runs/vocab.txt', lowercase=True)

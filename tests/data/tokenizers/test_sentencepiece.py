"""Tests that SentencePiece models give the same pieces as the SentencePiece library."""

import io
import random
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.sentencepiece import read_sentencepiece
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError

TEXTS = [
    'The quick brown fox jumps over the lazy dog.',
    'Pack my box with five dozen liquor jugs, said the fox.',
    'How vexingly quick daft zebras jump over 12 boxes!',
    'Sphinx of black quartz, judge my vow; jump (over it)?',
] * 5
PROBES = [
    *TEXTS[:4],
    '',
    ' ',
    '  two   spaces  ',
    'tab\tand\nnewline',
    'unknown: жук 北京 ☃☃☃ x☃y',
    'ﬁne ½ Å ｆｕｌｌ ™ é e\u0301',
    'zero\u200bwidth',
    'THE QUICK',
    "quote's `` ''",
]
REAL = {name: Path(f'data/tokenizers/{name}.sentencepiece.model') for name in ('t5-base', 'pegasus')}


def train(**options):
    buffer = io.BytesIO()
    defaults = {'vocab_size': 80, 'model_type': 'unigram', 'minloglevel': 2, 'hard_vocab_limit': False}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=buffer, **(defaults | options))
    return buffer.getvalue()


ALBERT = {
    'pad_id': 0,
    'unk_id': 1,
    'bos_id': -1,
    'eos_id': -1,
    'control_symbols': ['[CLS]', '[SEP]'],
    'user_defined_symbols': ['[MASK]'],
}
LLAMA = {
    'model_type': 'bpe',
    'byte_fallback': True,
    'vocab_size': 360,
    'normalization_rule_name': 'identity',
    'remove_extra_whitespaces': False,
    'allow_whitespace_only_pieces': True,
    'split_digits': True,
}
MODELS = {
    'like T5': {'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1},
    'like ALBERT': ALBERT,
    'no normalisation': ALBERT | {'normalization_rule_name': 'identity'},
    'no dummy prefix': ALBERT | {'add_dummy_prefix': False},
    'spaces kept': ALBERT | {'remove_extra_whitespaces': False},
    'byte fallback': ALBERT | {'byte_fallback': True, 'vocab_size': 350},
    'pieces of several spaces': ALBERT | {'allow_whitespace_only_pieces': True, 'remove_extra_whitespaces': False},
    'bpe': {'model_type': 'bpe', 'pad_id': 3},
    'bpe without a prefix': {'model_type': 'bpe', 'add_dummy_prefix': False},
    'like Llama': LLAMA,
    'case folding': ALBERT | {'normalization_rule_name': 'nmt_nfkc_cf'},
}


@pytest.mark.parametrize('name', MODELS)
def test_same_ids_as_the_library(name):
    data = train(**MODELS[name])
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = read_sentencepiece(data, name, lowercase=False)
    for text in PROBES:
        assert ours.encode(text, add_special_tokens=False).ids == library.encode(text), text
    assert ours.decode(library.encode(TEXTS[1])).lower() == TEXTS[1].lower()


@pytest.mark.parametrize('name', ['like ALBERT', 'bpe', 'like Llama', 'pieces of several spaces'])
def test_random_texts_of_known_and_unknown_characters(name):
    data = train(**MODELS[name])
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = read_sentencepiece(data, 'test', lowercase=False)
    choose = random.Random(0)
    for _ in range(500):
        text = ''.join(choose.choices('abcdefghij thequickbrown THEQ .,!?☃é12', k=choose.randrange(60)))
        assert ours.encode(text, add_special_tokens=False).ids == library.encode(text), text


@pytest.mark.parametrize('name', ['byte fallback', 'like Llama'])
def test_bytes_of_unknown_characters_become_text_again(name):
    ours = read_sentencepiece(train(**MODELS[name]), name, lowercase=False)
    text = 'the fox: жук 北京 ☃ 🙂'
    assert ours.decode(ours.encode(text).ids) == text


def test_lowercase_is_albert_clean_up_before_the_model():
    data = train(**ALBERT)
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    ours = read_sentencepiece(data, 'test', lowercase=True)
    assert ours.encode("The QUICK ``fóx''", add_special_tokens=False).ids == library.encode('the quick "fox"')


def test_special_tokens_of_the_model_are_used_and_missing_ones_added_at_the_end():
    albert = vocabulary_of(read_sentencepiece(train(**ALBERT), 'a', lowercase=True), 'a')
    size = sentencepiece.SentencePieceProcessor(model_proto=train(**ALBERT)).vocab_size()
    assert (albert.size, albert.pad, albert.unknown, albert.cls, albert.sep, albert.mask) == (size, 0, 1, 2, 3, 4)
    assert albert.special == (0, 1, 2, 3, 4)
    data = train(**MODELS['like T5'])
    size = sentencepiece.SentencePieceProcessor(model_proto=data).vocab_size()
    tokenizer = read_sentencepiece(data, 't5', lowercase=True)
    t5 = vocabulary_of(tokenizer, 't5')
    assert (t5.size, t5.pad, t5.unknown, t5.sep) == (size + 2, 0, 2, 1)  # T5 uses </s> as its separator.
    assert (t5.cls, t5.mask) == (size, size + 1)
    assert tokenizer.encode('the [MASK] fox').ids[0] == t5.cls and t5.mask in tokenizer.encode('the [MASK] fox').ids


def test_pieces_that_continue_a_word():
    data = train(**ALBERT)
    library = sentencepiece.SentencePieceProcessor(model_proto=data)
    vocabulary = vocabulary_of(read_sentencepiece(data, 'test', lowercase=True), 'test')
    for id in range(library.vocab_size()):
        piece = library.id_to_piece(id)
        is_part = not piece.startswith('▁') and any(character.isalnum() for character in piece)
        assert vocabulary.is_continuation[id] == (is_part and id not in vocabulary.special), piece


@pytest.mark.parametrize('kind', ['word', 'char'])
def test_other_model_types_are_refused_by_name(tmp_path, kind):
    (tmp_path / 'other.model').write_bytes(train(model_type=kind))
    with pytest.raises(InputError, match=rf'other\.model: a SentencePiece model of type {kind}; known: unigram, bpe'):
        load_tokenizer(tmp_path / 'other.model', lowercase=True)


def test_space_as_suffix_is_refused():
    with pytest.raises(InputError, match='does not mark word starts'):
        read_sentencepiece(train(treat_whitespace_as_suffix=True), 'test', lowercase=True)


def test_damaged_models_are_refused():
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(train(**ALBERT))
    model.pieces[1].type = 1
    for data in [b'', b'\x00' * 50, train()[:500], model.SerializeToString()]:
        with pytest.raises(InputError, match='spiece.model: .*SentencePiece model'):
            read_sentencepiece(data, 'spiece.model', lowercase=True)


@pytest.mark.real
@pytest.mark.parametrize('name', REAL)
def test_published_models_on_real_text(name):
    book = Path('data/books/novels_100_english/corpus/Barclay_Rosary_1909.txt')
    if not (REAL[name].exists() and book.exists()):
        pytest.skip('needs data/tokenizers and data/books')
    library = sentencepiece.SentencePieceProcessor(model_file=str(REAL[name]))
    ours = load_tokenizer(REAL[name], lowercase=False)
    texts = [*PROBES, *book.read_text(encoding='utf-8').split('\n\n')[:2000]]
    for text in texts:
        assert ours.encode(text, add_special_tokens=False).ids == library.encode(text), text

"""Tests of the vocabulary read from a tokenizer, and of tokenizers with missing tokens or bad ids."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.vocabulary import readable_token, vocabulary_of
from efficient_attention.data.tokenizers.wordpiece import wordpiece_tokenizer
from efficient_attention.errors import InputError
from tests.data.tokenizers.test_loading import PIECES, VOCABULARY, save


def test_vocabulary(tmp_path):
    path = save(tmp_path / 'vocab.txt', PIECES)
    vocabulary = vocabulary_of(load_tokenizer(path, lowercase=True), str(path))
    assert vocabulary.size == len(PIECES)
    roles = (vocabulary.pad, vocabulary.unknown, vocabulary.cls, vocabulary.sep, vocabulary.mask)
    assert roles == vocabulary.special == (0, 1, 2, 3, 4)
    continuing = {PIECES[id] for id in vocabulary.is_continuation.nonzero()[0]}
    assert continuing == {piece for piece in PIECES if piece.startswith('##') and piece != '##'}


def test_continuations_where_spaces_are_marked():
    pieces = [('<pad>', 0), ('<unk>', 0), ('<s>', 0), ('</s>', 0), ('<mask>', 0), ('▁', -1), ('▁the', -1), ('n', -1)]
    pieces += [('.', -1), ('?!', -1), ("'s", -1), ('7', -1), ('北', -1)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
    vocabulary = vocabulary_of(tokenizer, 'test')
    continuing = {pieces[id][0] for id in vocabulary.is_continuation.nonzero()[0]}
    assert continuing == {'n', "'s", '7', '北'}  # Punctuation is a separate word.
    for tokenizer.decoder in (decoders.Metaspace(), decoders.Fuse()):
        assert [readable_token(tokenizer, vocabulary, id) for id in (5, 6, 7, 8)] == ["' '", 'the', '##n', '.']
    assert vocabulary.special == (0, 1, 2, 3, 4)


@pytest.mark.parametrize('role', PIECES[:1] + PIECES[2:5])
def test_a_vocabulary_without_a_special_token_is_named(tmp_path, role):
    path = save(tmp_path / 'vocab.txt', [piece for piece in PIECES if piece != role])
    tokenizer = load_tokenizer(path, lowercase=True)
    with pytest.raises(InputError) as caught:
        vocabulary_of(tokenizer, str(path))
    message = str(caught.value)
    assert str(path) in message and f'no {role}' in message and '\n' not in message


def test_what_is_not_needed_may_be_lacking(tmp_path):
    path = save(tmp_path / 'vocab.txt', [piece for piece in PIECES if piece not in ('[CLS]', '[MASK]')])
    vocabulary = vocabulary_of(load_tokenizer(path, lowercase=True), str(path), needed=('pad', 'sep'))
    assert (vocabulary.pad, vocabulary.unknown, vocabulary.cls, vocabulary.sep, vocabulary.mask) == (0, 1, -1, 2, -1)
    assert vocabulary.special == (0, 1, 2)


@pytest.mark.parametrize('id, fault', [(7, 'two pieces have id 7'), (99, 'no piece has id 9'), (2**32 - 1, 'no piece')])
def test_ids_that_repeat_or_leave_gaps_are_refused(tmp_path, id, fault):
    wordpiece_tokenizer(VOCABULARY, lowercase=True).save(str(tmp_path / 'tokenizer.json'))
    content = json.loads((tmp_path / 'tokenizer.json').read_text())
    content['model']['vocab'][PIECES[9]] = id
    (tmp_path / 'tokenizer.json').write_text(json.dumps(content))
    with pytest.raises(InputError, match=fault):
        vocabulary_of(load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True), 'tokenizer.json')


def test_a_byte_level_file_without_mask_is_refused(tmp_path):
    tokenizer = Tokenizer(models.BPE({'a': 0, 'b': 1, '<pad>': 2, '<unk>': 3, '<s>': 4, '</s>': 5}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.save(str(tmp_path / 'tokenizer.json'))
    with pytest.raises(InputError, match=r'no \[MASK\] in its vocabulary'):
        vocabulary_of(load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True), 'tokenizer.json')

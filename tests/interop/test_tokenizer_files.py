"""Tests of a folder's tokenizer: which file is read, and that all its files are copied to an export."""

import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer

from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.wordpiece import wordpiece_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.interop.tokenizer_files import (
    copy_tokenizer,
    is_lowercase,
    padding_id,
    special_names,
    tokenizer_file,
)
from tests.data.tokenizers.test_added_tokens import beside
from tests.data.tokenizers.test_byte_level import BYTES, roberta
from tests.data.tokenizers.test_sentencepiece import ALBERT, train
from tests.interop.folders import copied

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b']


def lone(path: Path) -> Path:
    """Writes a tokenizer.json without other files of a tokenizer; returns its path."""
    wordpiece_tokenizer({piece: number for number, piece in enumerate(PIECES)}, lowercase=True).save(str(path))
    return path


@pytest.mark.parametrize(
    ('files', 'expected'),
    [
        ((), None),
        (('source.spm', 'target.spm', 'vocab.json'), 'source.spm'),
        (('source.spm', 'vocab.json'), None),
        (('vocab.txt',), 'vocab.txt'),
        (('vocab.txt', 'tokenizer.json'), 'tokenizer.json'),
        (('spiece.model',), 'spiece.model'),
        (('vocab.json',), None),
        (('vocab.json', 'merges.txt'), 'vocab.json'),
    ],
)
def test_which_file_it_is(tmp_path: Path, files: tuple[str, ...], expected: str | None):
    for name in files:
        (tmp_path / name).touch()
    assert tokenizer_file(tmp_path) == (tmp_path / expected if expected else None)


def test_case_is_as_the_settings_say(tmp_path: Path):
    assert is_lowercase(tmp_path)
    (tmp_path / 'tokenizer_config.json').write_text('{"do_lower_case": false}')
    assert not is_lowercase(tmp_path)
    for content, message in (('{', 'not JSON'), ('3', 'no JSON object')):
        (tmp_path / 'tokenizer_config.json').write_text(content)
        with pytest.raises(InputError, match=f'tokenizer_config.json: {message}'):
            is_lowercase(tmp_path)


def test_bigbirds_pieces_are_cased_unless_the_settings_say_otherwise(tmp_path: Path):
    (tmp_path / 'spiece.model').write_bytes(train(**ALBERT))
    assert is_lowercase(tmp_path, 'albert') and not is_lowercase(tmp_path, 'big_bird')
    copied('big_bird_1', tmp_path)
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / 'spiece.model'))
    text = 'The QUICK fóx'
    for is_lower, expected in ((False, text), (True, 'the quick fox')):
        pretrained = open_pretrained(tmp_path)
        encoder = text_encoder(pretrained.tokenizer, lowercase=pretrained.lowercase)
        assert pretrained.lowercase is is_lower
        assert encoder.encode([text])[0].ids == library.encode(expected)
        (tmp_path / 'tokenizer_config.json').write_text('{"do_lower_case": true}')
    (tmp_path / 'tokenizer_config.json').unlink()
    (tmp_path / 'vocab.txt').touch()  # A vocab.txt means BERT's tokenizer, here for a BigBird model.
    assert is_lowercase(tmp_path, 'big_bird')


def test_robertas_files_travel_with_a_tokenizer_json(tmp_path: Path):
    source, target = tmp_path / 'from', tmp_path / 'to'
    source.mkdir()
    target.mkdir()
    copy_tokenizer(tokenizer_file(roberta(source)), target, 16)
    assert {path.name for path in target.iterdir()} >= {'vocab.json', 'merges.txt', 'tokenizer.json'}
    encoder = text_encoder(tokenizer_file(target))
    assert (encoder.cls, encoder.pad, encoder.sep, encoder.size) == (0, 1, 2, len(BYTES))
    assert padding_id(source / 'vocab.json') == padding_id(target / 'tokenizer.json') == 1


def test_tokens_that_an_author_added_travel(tmp_path: Path):
    source, target = tmp_path / 'from', tmp_path / 'to'
    source.mkdir()
    target.mkdir()
    beside(roberta(source), added_tokens={'[PAD]': len(BYTES), '<hl>': len(BYTES) + 1})
    copy_tokenizer(tokenizer_file(source), target, 16)
    for path in (target / 'tokenizer.json', target / 'vocab.json'):
        assert load_tokenizer(path, lowercase=False).encode('a<hl>').tokens == ['<s>', 'a', '<hl>', '</s>']
        assert padding_id(path) == 1  # RoBERTa's own padding id stays, despite the added [PAD].
    assert Tokenizer.from_file(str(target / 'tokenizer.json')).encode('a<hl>').ids == [0, 4, len(BYTES) + 1, 2]
    (target / 'added_tokens.json').unlink()
    assert special_names(target / 'tokenizer.json')['pad_token'] == '<pad>'


def test_all_files_travel_and_the_longest_row_is_noted(tmp_path: Path):
    source, target = tmp_path / 'from', tmp_path / 'to'
    source.mkdir()
    target.mkdir()
    names = ['spiece.model', 'special_tokens_map.json', 'vocab.txt', 'readme.txt']
    for name in names:
        (source / name).write_text(name)
    (source / 'tokenizer_config.json').write_text('{"do_lower_case": false, "model_max_length": 8}')
    copy_tokenizer(source / 'vocab.txt', target, 16)
    assert {path.name for path in target.iterdir()} == {*names[:3], 'tokenizer_config.json'}
    settings = json.loads((target / 'tokenizer_config.json').read_text())
    assert settings == {'do_lower_case': False, 'model_max_length': 16}


def test_a_lone_tokenizer_gets_what_transformers_needs_to_know(tmp_path: Path):
    target = tmp_path / 'to'
    target.mkdir()
    copy_tokenizer(lone(tmp_path / 'mine.json'), target, 16)
    settings = json.loads((target / 'tokenizer_config.json').read_text())
    assert settings['tokenizer_class'] == 'PreTrainedTokenizerFast' and settings['model_max_length'] == 16
    assert settings['cls_token'] == '[CLS]' and settings['pad_token'] == '[PAD]'
    assert Tokenizer.from_file(str(target / 'tokenizer.json')).encode('a b').tokens == ['[CLS]', 'a', 'b', '[SEP]']
    assert special_names(target / 'tokenizer.json')['mask_token'] == '[MASK]'


def test_no_tokenizer_is_nothing_to_carry(tmp_path: Path):
    copy_tokenizer(None, tmp_path, 16)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('has_types', [True, False])
def test_transformers_is_told_which_inputs_a_lone_tokenizer_gives(tmp_path: Path, has_types: bool):
    """Exports list their inputs, or transformers drops token types and reads a pair's second text like its first."""
    (tmp_path / 'to').mkdir()
    copy_tokenizer(lone(tmp_path / 'tokenizer.json'), tmp_path / 'to', 16, has_types=has_types)
    settings = json.loads((tmp_path / 'to' / 'tokenizer_config.json').read_text())
    assert ('token_type_ids' in settings['model_input_names']) is has_types
    assert {'input_ids', 'attention_mask'} <= set(settings['model_input_names'])


@pytest.mark.parametrize('name', ['tokenizer.json', 'mine.json', 'tokenizer_config.json'])
def test_a_damaged_file_is_named_where_it_lies(name: str, tmp_path: Path):
    (tmp_path / 'to').mkdir()
    source = lone(tmp_path / ('mine.json' if name == 'mine.json' else 'tokenizer.json'))
    (tmp_path / name).write_text('{"version": "1.')
    with pytest.raises(InputError, match=f'^tokenizer {tmp_path / name}: not JSON '):
        copy_tokenizer(source, tmp_path / 'to', 16)
    (tmp_path / name).write_text('{"version": "1.0", "model": 3}' if source.name == name else '{}')
    if source.name == name:
        with pytest.raises(InputError, match=f'^tokenizer {tmp_path / name}: not a tokenizer.json '):
            copy_tokenizer(source, tmp_path / 'to', 16)

"""Tests that tokens added by an author in older file formats stay whole and keep the ids that transformers gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from efficient_attention.data.tokenizers.added_tokens import added_tokens
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.data.tokenizers.text_to_text_special_ids import find_text_to_text_special_ids
from efficient_attention.errors import InputError
from tests.data.tokenizers.test_byte_level import BYTES, roberta
from tests.data.tokenizers.test_sentencepiece import ALBERT, MODELS, train

PIECES = [
    '[PAD]',
    '[UNK]',
    '[CLS]',
    '[SEP]',
    '[MASK]',
    'a',
    'b',
    '##b',
    '<',
    '>',
    'h',
    '##l',
    '[',
    ']',
    'e',
    '[unused0]',
]
SIZE = len(PIECES)


def bert(folder: Path, **files: Any) -> Path:
    """Writes vocab.txt with JSON files next to it, given by their names without suffix; returns its path."""
    (folder / 'vocab.txt').write_text('\n'.join(PIECES) + '\n', encoding='utf-8')
    return beside(folder, **files) / 'vocab.txt'


def beside(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f'{name}.json').write_text(json.dumps(content), encoding='utf-8')
    return folder


LAYOUTS = {
    'added_tokens': {'added_tokens': {'<hl>': SIZE + 1, 'foobarbaz': SIZE, '[E]': SIZE + 2}},
    'decoder': {
        'tokenizer_config': {
            'added_tokens_decoder': {
                '0': {'content': '[PAD]', 'special': True, 'normalized': False},
                f'{SIZE + 2}': {'content': '[E]', 'special': True, 'normalized': False},
                f'{SIZE + 1}': {'content': '<hl>', 'special': False, 'normalized': True},
                f'{SIZE}': {'content': 'foobarbaz', 'special': False},
            }
        }
    },
    'lists': {
        'tokenizer_config': {'additional_special_tokens': ['foobarbaz', {'content': '<hl>'}]},
        'special_tokens_map': {'extra_special_tokens': {'entity_token': '[E]'}},
    },
}


@pytest.mark.parametrize('layout', LAYOUTS)
def test_tokens_beside_a_vocabulary_are_whole(tmp_path: Path, layout: str):
    tokenizer = load_tokenizer(bert(tmp_path, **LAYOUTS[layout]), lowercase=True)
    ids = make_plain_text_tokenizer(tokenizer).encode('a foobarbaz <hl> [E] b').ids
    assert ids == [2, 5, SIZE, SIZE + 1, SIZE + 2, 6, 3]
    assert [tokenizer.token_to_id(name) for name in ('foobarbaz', '<hl>', '[E]')] == [SIZE, SIZE + 1, SIZE + 2]


def test_a_name_among_the_pieces_keeps_its_id_and_words_match_in_any_case(tmp_path: Path):
    special = {'additional_special_tokens': ['[unused0]']}
    path = bert(tmp_path, special_tokens_map=special, added_tokens={'FooBar': SIZE})
    tokenizer = load_tokenizer(path, lowercase=True)
    assert tokenizer.encode('a[unused0] fooBAR', add_special_tokens=False).ids == [5, SIZE - 1, SIZE]
    assert tokenizer.get_vocab_size() == SIZE + 1


def test_robertas_pair_of_files_has_them_too(tmp_path: Path):
    beside(roberta(tmp_path), added_tokens={'[SEP]': len(BYTES), '<hl>': len(BYTES) + 1})
    tokenizer = load_tokenizer(tmp_path / 'vocab.json', lowercase=False)
    assert make_plain_text_tokenizer(tokenizer).encode('a<hl>b [SEP]').tokens == [
        '<s>',
        'a',
        '<hl>',
        'b',
        'Ġ',
        '[SEP]',
        '</s>',
    ]
    assert find_text_to_text_special_ids(tokenizer, 'roberta').end == 2  # </s>, not the [SEP] that the author added


def test_t5s_stand_behind_its_sentinels(tmp_path: Path):
    (tmp_path / 'spiece.model').write_bytes(train(**MODELS['like T5']))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / 'spiece.model')).get_piece_size()
    beside(tmp_path, added_tokens={'<sep>': pieces + 100, '<hl>': pieces + 101})
    tokenizer = load_tokenizer(tmp_path / 'spiece.model', lowercase=False, is_text_to_text=True)
    ids = find_text_to_text_special_ids(tokenizer, 't5')
    assert (ids.size, ids.end, ids.sentinels[0]) == (pieces + 102, 1, pieces + 99)
    found = make_plain_text_tokenizer(tokenizer).encode('fox <hl> fox <sep> fox </s>', add_special_tokens=False).ids
    names = [tokenizer.id_to_token(id) for id in found]
    assert names[:5] == ['▁fox', '<hl>', '▁fox', '<sep>', '▁fox']  # The space before an added token gives no piece.
    assert ids.end not in found


def test_named_sentinels_are_all_that_there_are(tmp_path: Path):
    (tmp_path / 'spiece.model').write_bytes(train(**MODELS['like T5']))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / 'spiece.model')).get_piece_size()
    named = {str(pieces + 1 - number): {'content': f'<extra_id_{number}>', 'special': True} for number in (0, 1)}
    beside(tmp_path, tokenizer_config={'added_tokens_decoder': named})
    tokenizer = load_tokenizer(tmp_path / 'spiece.model', lowercase=False, is_text_to_text=True)
    assert find_text_to_text_special_ids(tokenizer, 't5').sentinels == (pieces + 1, pieces)


def test_roles_that_a_model_lacks_stand_behind_them(tmp_path: Path):
    (tmp_path / 'spiece.model').write_bytes(train(**ALBERT | {'user_defined_symbols': []}))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / 'spiece.model')).get_piece_size()
    beside(tmp_path, added_tokens={'<hl>': pieces})
    tokenizer = load_tokenizer(tmp_path / 'spiece.model', lowercase=True)
    assert [tokenizer.token_to_id(name) for name in ('<hl>', '[MASK]')] == [pieces, pieces + 1]
    assert tokenizer.encode('the').tokens[0] == '[CLS]'


def test_a_tokenizer_json_is_completed_and_read_again_as_it_was(tmp_path: Path):
    tokenizer = load_tokenizer(bert(tmp_path, **LAYOUTS['decoder']), lowercase=True)
    tokenizer.save(str(tmp_path / 'tokenizer.json'))
    again = load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True)
    assert json.loads(again.to_str()) == json.loads(tokenizer.to_str())
    alone = tmp_path / 'alone'
    alone.mkdir()
    shutil.copy(tmp_path / 'tokenizer.json', alone)
    assert load_tokenizer(alone / 'tokenizer.json', lowercase=True).to_str() == again.to_str()
    beside(tmp_path, special_tokens_map={'additional_special_tokens': ['<new>']})
    assert load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True).token_to_id('<new>') == SIZE + 3


@pytest.mark.parametrize(
    ('files', 'message'),
    [
        ({'added_tokens': {'<hl>': SIZE + 5}}, rf"'<hl>' has the id {SIZE + 5}; the next free id .* is {SIZE}$"),
        ({'added_tokens': {'a': 1}}, r"added_tokens\.json: 'a' has the id 1, and 5 in the vocabulary$"),
        ({'added_tokens': {'<hl>': '7'}}, r"added_tokens\.json: '<hl>' has the id '7', which is no whole number"),
        ({'added_tokens': ['<hl>']}, r'added_tokens\.json: no JSON object$'),
        ({'added_tokens': {'': SIZE}}, r'added_tokens\.json: an added token without text$'),
        ({'tokenizer_config': {'added_tokens_decoder': [1]}}, 'added_tokens_decoder is no object of ids and tokens$'),
        ({'tokenizer_config': {'added_tokens_decoder': {'x': {'content': 'y'}}}}, "'y' has the id 'x', which is no"),
        (
            {'special_tokens_map': {'additional_special_tokens': 'ab'}},
            'additional_special_tokens is no list of tokens$',
        ),
        (
            LAYOUTS['decoder'] | {'added_tokens': {'<hl>': 3}},
            rf"tokenizer_config\.json: '<hl>' has the id {SIZE + 1}, and 3 in .*added_tokens\.json$",
        ),
    ],
)
def test_files_that_do_not_fit_are_one_line(tmp_path: Path, files: dict[str, Any], message: str):
    path = bert(tmp_path, **files)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(path, lowercase=True)
    assert '\n' not in str(caught.value)


def test_nothing_beside_is_nothing_added(tmp_path: Path):
    assert added_tokens(tmp_path) == []

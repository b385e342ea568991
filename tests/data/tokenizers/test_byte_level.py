"""Tests of RoBERTa's tokenizer, loaded from its two files or from the vocab.json that a config names."""

import json
from pathlib import Path

import pytest

from efficient_attention.data.tokenizers.byte_level import load_byte_level_bpe
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.errors import InputError

BYTES = ['<s>', '<pad>', '</s>', '<unk>', *'abĠ', 'Ġa', '<mask>']


def roberta(folder: Path) -> Path:
    """Writes only vocab.json and merges.txt of a RoBERTa tokenizer; returns their folder."""
    (folder / 'vocab.json').write_text(json.dumps({piece: number for number, piece in enumerate(BYTES)}))
    (folder / 'merges.txt').write_text('#version: 0.2\nĠ a\n', encoding='utf-8')
    return folder


def test_robertas_files_make_its_tokenizer(tmp_path: Path):
    tokenizer = load_byte_level_bpe(roberta(tmp_path))
    assert tokenizer.encode('a ab').tokens == ['<s>', 'a', 'Ġa', 'b', '</s>']
    assert tokenizer.encode('a', 'b').tokens == ['<s>', 'a', '</s>', '</s>', 'b', '</s>']
    expected = [tokenizer.token_to_id(piece) for piece in ('<s>', 'a', '<mask>', '</s>')]
    assert tokenizer.encode('a <mask>').ids == expected  # The mask token includes the space before it.
    assert tokenizer.decode(tokenizer.encode('ab a').ids) == 'ab a'
    (tmp_path / 'merges.txt').write_text('#version: 0.2\nx y\n')
    with pytest.raises(InputError, match='vocab.json and merges.txt are no tokenizer'):
        load_byte_level_bpe(tmp_path)


def test_a_vocabulary_of_pairs_is_loaded_by_its_name(tmp_path: Path):
    text = 'ab a b'
    assert (
        load_tokenizer(roberta(tmp_path) / 'vocab.json', lowercase=False).encode(text).ids
        == load_byte_level_bpe(tmp_path).encode(text).ids
    )

"""Tests of fixed vocabularies: the id of each word, special tokens around a text, and saved files."""

from pathlib import Path

import pytest

from efficient_attention.data.examples.special_tokens_template import special_tokens_template_of
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.tokenizers.fixed_vocabulary import (
    FIRST_WORD,
    WORDS,
    byte_character,
    fixed_tokenizer,
    fixed_vocabulary_size,
    is_fixed_vocabulary,
)
from efficient_attention.errors import InputError


def test_bytes_are_ids_in_their_order():
    text = 'aé \n\tz\x00 語'
    tokenizer = fixed_tokenizer('fixed:bytes')
    ids = tokenizer.encode(text).ids
    assert ids == [FIRST_WORD + byte for byte in text.encode()] and tokenizer.decode(ids) == text
    assert len({byte_character(byte) for byte in range(256)}) == 256


@pytest.mark.parametrize('name', WORDS)
def test_words_are_ids_in_their_order(name: str):
    ids = fixed_tokenizer(f'fixed:{name}').encode(' '.join(WORDS[name])).ids
    assert ids == [FIRST_WORD + number for number in range(len(WORDS[name]))]
    assert fixed_vocabulary_size(name) == FIRST_WORD + len(WORDS[name]) == text_encoder(Path(f'fixed:{name}')).size


def test_published_listops_with_parentheses_reads_the_same():
    tokenizer = fixed_tokenizer('fixed:listops')
    assert tokenizer.encode('( ( ( [MAX 1 ) 2 ) ] )').ids == tokenizer.encode('[MAX 1 2 ]').ids
    assert tokenizer.encode('[MAX ten ]').tokens == ['[MAX', '[UNK]', ']']


def test_what_stands_around_texts():
    plain, with_cls = (text_encoder(Path(name)) for name in ('fixed:bytes', 'fixed:bytes:cls'))
    assert special_tokens_template_of(plain, is_pair=False).fixed == ((), ())
    assert special_tokens_template_of(plain, is_pair=True).fixed == ((), (plain.sep,), ())
    assert special_tokens_template_of(with_cls, is_pair=False).fixed == ((plain.cls,), ())


def test_a_file_holds_a_fixed_vocabulary(tmp_path: Path):
    encoder = text_encoder(Path('fixed:listops'))
    (tmp_path / 'tokenizer.json').write_text(encoder.tokenizer.to_str())
    again = text_encoder(tmp_path / 'tokenizer.json')
    assert again.tokenizer.get_vocab() == encoder.tokenizer.get_vocab() and again.pad == encoder.pad == 0


def test_names():
    assert (
        is_fixed_vocabulary('fixed:bytes')
        and is_fixed_vocabulary(Path('fixed:bytes'))
        and not is_fixed_vocabulary('data/fixed.json')
    )
    for name in ('fixed:letters', 'fixed:bytes:sep'):
        with pytest.raises(
            InputError, match=f'^tokenizer {name}: known fixed vocabularies: fixed:bytes, fixed:listops'
        ):
            fixed_tokenizer(name)

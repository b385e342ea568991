"""Tests that text streamed from ids joins to the whole text, in complete characters and final words only."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from efficient_attention.data.text.text_units import ByteUnits, CharacterUnits, TextUnits, TokenizerUnits
from efficient_attention.inference.streaming_detokenizer import HELD_BACK, make_detokenizer

TEXT = "Größe: 3 €. I don't know, he isn't 家 here!"


def word_pieces() -> TokenizerUnits:
    """Returns a tokenizer whose decoder may change the spaces before a piece when the next piece comes."""
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'i', 'don', "'", 't', 'know', ',', 'say', '##ing', '!']
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token='[UNK]'))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return TokenizerUnits(tokenizer, 'test')


def parts_of(units: TextUnits, ids: np.ndarray, size: int) -> list[str]:
    stream = make_detokenizer(units)
    return [*(stream.feed_ids(ids[start : start + size]) for start in range(0, len(ids), size)), stream.flush_text()]


@pytest.mark.parametrize('size', [1, 2, 5, 100])
@pytest.mark.parametrize('kind', ['bytes', 'characters', 'pieces'])
def test_the_parts_joined_are_the_text(kind: str, size: int):
    units = {'bytes': ByteUnits, 'characters': lambda: CharacterUnits(TEXT), 'pieces': word_pieces}[kind]()
    ids = units.encode("i don't know, saying! " * 3 if kind == 'pieces' else TEXT)
    assert ''.join(parts_of(units, ids, size)) == units.decode(ids)


def test_a_character_is_returned_once_its_bytes_are_complete():
    assert parts_of(ByteUnits(), np.frombuffer('a€b'.encode(), np.uint8), 1) == ['a', '', '', '€', 'b', '']
    assert parts_of(ByteUnits(), np.frombuffer('a€'.encode()[:-1], np.uint8), 1) == [
        'a',
        '',
        '',
        '\N{REPLACEMENT CHARACTER}',
    ]
    assert ''.join(parts_of(ByteUnits(), np.array([97, 255, 98]), 1)) == 'a\N{REPLACEMENT CHARACTER}b'


def test_characters_are_returned_at_once():
    units = CharacterUnits('abc')
    assert parts_of(units, units.encode('cab'), 1) == ['c', 'a', 'b', '']


def test_pieces_are_returned_before_the_end_but_for_the_last_characters():
    units = word_pieces()
    ids = units.encode("i don't know, saying! " * 9)
    stream = make_detokenizer(units)
    text = ''.join(stream.feed_ids(ids[start : start + 1]) for start in range(len(ids)))
    assert text == units.decode(ids)[:-HELD_BACK]


def test_documents_are_parted_by_a_blank_line():
    units = word_pieces()
    ids = np.concatenate([units.encode('i know'), units.separator, units.encode('i say')])
    assert ''.join(parts_of(units, ids, 2)) == 'i know\n\ni say'

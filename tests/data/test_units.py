"""Bytes, characters and pieces: text to ids and back, what is unknown, and what lies in a folder."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from efficient_attention.data import units as units_file
from efficient_attention.data.tokenizer_training import train_tokenizer
from efficient_attention.data.units import Bytes, Characters, Pieces, code_points, load_units

TEXT = 'Café № 5\n\na 漢 and a 😀.'


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
    texts = ['the small dog sleeps near the old tree. ' * 5, 'a red house waits under the tree. ' * 5]
    return train_tokenizer('bpe', lambda: iter(texts), vocab_size=300, lowercase=False)


def test_bytes_are_those_of_utf_8():
    ids = Bytes().encode(TEXT)
    assert ids.tobytes() == TEXT.encode() and Bytes().size == 256
    np.testing.assert_array_equal(ids, Bytes().encode(TEXT.encode()))
    assert Bytes().decode(ids) == TEXT


def test_half_a_character_is_bytes_too():
    half = 'é'.encode()[:1]
    assert Bytes().encode(half).tolist() == [0xC3] and Bytes().decode(np.array([0xC3])) == '\ufffd'


def test_characters_have_ids_in_their_own_order_and_0_is_unknown():
    units = Characters('banana')
    assert (units.characters, units.size, units.unknown) == ('abn', 4, 0)
    assert units.encode('bananas').tolist() == [2, 1, 3, 1, 3, 1, 0]
    assert units.decode(np.array([2, 0, 3])) == 'b\ufffdn'


def test_characters_of_all_planes_come_back():
    units = Characters(TEXT)
    assert units.decode(units.encode(TEXT)) == TEXT
    assert units.encode(TEXT).min() > 0 and units.encode('\U0010ffff\x00').tolist() == [0, 0]


def test_without_any_character_all_are_unknown():
    assert Characters('').encode('ab').tolist() == [0, 0]


def test_separators_are_a_blank_line():
    assert Bytes().decode(Bytes().separator) == '\n\n'
    units = Characters(TEXT)
    assert units.decode(units.separator) == '\n\n'


def test_pieces_are_the_tokenizers(tokenizer):
    units = Pieces(tokenizer, 'trained')
    text = 'the old dog sleeps'
    assert units.encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert units.decode(units.encode(text)).strip() == text and units.size == tokenizer.get_vocab_size()
    assert units.separator.tolist() == [tokenizer.token_to_id('[SEP]')]


def test_special_tokens_in_a_text_are_text(tokenizer):
    units = Pieces(tokenizer, 'trained')
    ids = units.encode('the [SEP] dog [MASK]')
    assert tokenizer.token_to_id('[SEP]') not in ids and tokenizer.token_to_id('[MASK]') not in ids


def test_a_text_in_parts_has_the_same_ids(monkeypatch, tokenizer):
    monkeypatch.setattr(units_file, 'PART', 5)
    for units in (Bytes(), Characters(TEXT), Pieces(tokenizer, 'trained')):
        parts = list(units.cut(TEXT))
        assert ''.join(parts) == TEXT
        np.testing.assert_array_equal(np.concatenate([units.encode(part) for part in parts]), units.encode(TEXT))
    assert len(list(Bytes().cut(TEXT))) == -(-len(TEXT) // 5)


def test_units_come_back_from_their_folder(tmp_path, tokenizer):
    for kind, units in {'bytes': Bytes(), 'characters': Characters(TEXT), 'tokenizer': Pieces(tokenizer, 'x')}.items():
        units.save(tmp_path)
        loaded = load_units(kind, tmp_path)
        assert loaded.size == units.size
        np.testing.assert_array_equal(loaded.encode(TEXT), units.encode(TEXT))
    with pytest.raises(KeyError):
        load_units('words', tmp_path)


def test_code_points():
    assert code_points('a😀').tolist() == [ord('a'), ord('😀')]

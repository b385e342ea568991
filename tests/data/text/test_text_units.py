"""Tests of bytes, characters, words, pieces and pixels as units: text to ids and back, unknown units, saved files."""

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from efficient_attention.data.text import text_units as units_file
from efficient_attention.data.text.text_units import (
    ByteUnits,
    CharacterUnits,
    PixelUnits,
    TokenizerUnits,
    WordUnits,
    code_points,
    cut_lines,
    load_units,
    split_words,
)
from efficient_attention.data.tokenizers.loading import FAMILIES
from efficient_attention.data.tokenizers.training import train_tokenizer
from efficient_attention.errors import InputError

TEXT = 'Café № 5\n\na 漢 and a 😀.'


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
    texts = ['the small dog sleeps near the old tree. ' * 5, 'a red house waits under the tree. ' * 5]
    return train_tokenizer('bpe', lambda: iter(texts), vocab_size=300, lowercase=False)


def test_bytes_are_those_of_utf_8():
    ids = ByteUnits().encode(TEXT)
    assert ids.tobytes() == TEXT.encode() and ByteUnits().size == 256
    np.testing.assert_array_equal(ids, ByteUnits().encode(TEXT.encode()))
    assert ByteUnits().decode(ids) == TEXT


def test_half_a_character_is_bytes_too():
    half = 'é'.encode()[:1]
    assert ByteUnits().encode(half).tolist() == [0xC3] and ByteUnits().decode(np.array([0xC3])) == '\ufffd'


def test_characters_have_ids_in_their_own_order_and_0_is_unknown():
    units = CharacterUnits('banana')
    assert (units.characters, units.size, units.unknown) == ('abn', 4, 0)
    assert units.encode('bananas').tolist() == [2, 1, 3, 1, 3, 1, 0]
    assert units.decode(np.array([2, 0, 3])) == 'b\ufffdn'


def test_characters_of_all_planes_come_back():
    units = CharacterUnits(TEXT)
    assert units.decode(units.encode(TEXT)) == TEXT
    assert units.encode(TEXT).min() > 0 and units.encode('\U0010ffff\x00').tolist() == [0, 0]


def test_without_any_character_all_are_unknown():
    assert CharacterUnits('').encode('ab').tolist() == [0, 0]


def test_separators_are_a_blank_line():
    assert ByteUnits().decode(ByteUnits().separator) == '\n\n'
    units = CharacterUnits(TEXT)
    assert units.decode(units.separator) == '\n\n'


COUNTS = {'dog': 5, 'a': 5, 'the': 9, '<eos>': 4, 'rare': 1, 'odd': 1, '<unk>': 2}


def test_words_have_ids_by_frequency_after_the_end_of_a_line():
    assert WordUnits.from_counts(COUNTS, min_count=1, lowercase=False).words == (
        ('<eos>', 'the', 'a', 'dog', '<unk>', 'odd', 'rare')
    )
    units = WordUnits.from_counts(COUNTS, min_count=2, lowercase=False)
    # <unk> counts 2, plus 1 for each of two rare words.
    assert units.words == ('<eos>', 'the', 'a', 'dog', '<unk>') and units.unknown == 4
    without = {word: count for word, count in COUNTS.items() if word != '<unk>'}
    assert WordUnits.from_counts(without, min_count=1, lowercase=False).words[-1] == '<unk>'
    assert WordUnits.from_counts({}, min_count=1, lowercase=False).words == ('<eos>', '<unk>')


def test_each_line_of_words_ends_and_an_empty_one_too():
    units = WordUnits.from_counts(COUNTS, min_count=1, lowercase=False)
    ids = units.encode(' the  dog \n\n\ta cat <unk>\n')
    assert [units.words[id] for id in ids] == ['the', 'dog', '<eos>', '<eos>', 'a', '<unk>', '<unk>', '<eos>']
    assert units.decode(ids) == 'the dog\n\na <unk> <unk>\n'
    assert units.decode(units.encode('the dog')) == 'the dog' and units.decode(units.encode('\n')) == '\n'


def test_the_last_line_of_a_document_of_words_ends():
    units = WordUnits.from_counts(COUNTS, min_count=1, lowercase=False)
    for text in ('the dog\na dog', 'the dog\na dog\n'):
        assert ''.join(units.split_into_sections(text)) == 'the dog\na dog\n'
    assert units.separator.tolist() == []


def test_words_are_lower_cased_where_asked():
    cased, lowered = (WordUnits(('<eos>', 'The', 'the', '<unk>'), lowercase=lowercase) for lowercase in (False, True))
    assert cased.encode('The the THE').tolist() == [1, 2, 3] and lowered.encode('The the THE').tolist() == [2, 2, 2]
    assert split_words('A\nB', lowercase=True) == ['a', '<eos>', 'b']


def test_lines_are_cut_in_parts_but_never_within():
    text = 'one two\n\nthree\nfour'
    for size in (1, 3, 8, 9, 100):
        parts = list(cut_lines(text, size))
        assert ''.join(parts) == text + '\n' and all(part.endswith('\n') for part in parts)
        assert len(parts) == {1: 4, 3: 3, 8: 2, 9: 2, 100: 1}[size]


def test_pixels_are_bytes_and_their_start_is_none_of_them():
    units = PixelUnits()
    assert units.encode(bytes(range(256))).tolist() == list(range(256))
    assert (units.size, units.text_vocabulary_size, units.start) == (
        257,
        256,
        256,
    ) and ByteUnits().text_vocabulary_size == 256
    assert units.decode(np.array([0, 255])) == '00ff'


def test_pieces_are_the_tokenizers(tokenizer):
    units = TokenizerUnits(tokenizer, 'trained')
    text = 'the old dog sleeps'
    assert units.encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(units.encode(text).tolist()) == f' {text}' and units.decode(units.encode(text)) == text
    assert units.size == tokenizer.get_vocab_size()
    assert units.separator.tolist() == [tokenizer.token_to_id('[SEP]')]


def test_special_tokens_in_a_text_are_text(tokenizer):
    units = TokenizerUnits(tokenizer, 'trained')
    ids = units.encode('the [SEP] dog [MASK]')
    assert tokenizer.token_to_id('[SEP]') not in ids and tokenizer.token_to_id('[MASK]') not in ids


def test_a_language_models_tokenizer_needs_an_end_of_text_and_nothing_else():
    llama = Tokenizer(models.BPE({byte: id for id, byte in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    llama.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(FAMILIES['GPT-4'][0]), 'isolated'),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    llama.decoder = decoders.ByteLevel()
    llama.add_special_tokens(['<|begin_of_text|>', '<|end_of_text|>', '<|eot_id|>'])
    units = TokenizerUnits(llama, 'llama')
    assert (units.size, units.unknown, units.separator.tolist(), units.unwritten) == (
        259,
        -1,
        [257],
        (256,),
    )
    text = 'né <|eot_id|>\n<|end_of_text|> 12345'
    ids = units.encode(text)
    assert 258 in ids and 257 not in ids and units.decode(np.append(ids, units.separator)) == text
    with pytest.raises(InputError, match=r'^tokenizer words: no \[SEP\] or <sep> or </s> in its vocabulary$'):
        TokenizerUnits(Tokenizer(models.WordLevel({'a': 0}, 'a')), 'words')


def test_a_text_in_parts_has_the_same_ids(monkeypatch, tokenizer):
    monkeypatch.setattr(units_file, 'SECTION', 5)
    for units in (ByteUnits(), CharacterUnits(TEXT), TokenizerUnits(tokenizer, 'trained')):
        parts = list(units.split_into_sections(TEXT))
        assert ''.join(parts) == TEXT
        np.testing.assert_array_equal(np.concatenate([units.encode(part) for part in parts]), units.encode(TEXT))
    assert len(list(ByteUnits().split_into_sections(TEXT))) == -(-len(TEXT) // 5)


def test_units_come_back_from_their_folder(tmp_path, tokenizer):
    for kind, units in {
        'bytes': ByteUnits(),
        'characters': CharacterUnits(TEXT),
        'words': WordUnits(['<eos>', '№', '<unk>', 'and'], lowercase=True),
        'tokenizer': TokenizerUnits(tokenizer, 'x'),
    }.items():
        units.save(tmp_path)
        loaded = load_units(kind, tmp_path)
        assert loaded.size == units.size
        np.testing.assert_array_equal(loaded.encode(TEXT), units.encode(TEXT))
    with pytest.raises(KeyError):
        load_units('sentences', tmp_path)
    assert load_units('pixels', tmp_path).size == 257


def test_code_points():
    assert code_points('a😀').tolist() == [ord('a'), ord('😀')]

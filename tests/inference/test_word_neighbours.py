"""Tests of word vectors from a file and from a model's token table."""

from pathlib import Path

import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.word_neighbours import TokenTableVectors, UnitWordVectors, open_vectors, read_vectors
from efficient_attention.inference.word_replacement import WordReplacer
from tests.inference.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a classifier."""
    return write_checkpoint(tmp_path_factory.mktemp('teacher'), 'classification')


def test_pieces_of_a_word_count_as_their_mean(folder: Path):
    table = open_vectors(folder)
    assert isinstance(table, TokenTableVectors)
    ids = [table.tokenizer.token_to_id(word) for word in ('king', 'tree')]
    vector_E = table.vector_of_word('king tree')
    np.testing.assert_allclose(vector_E, table.table_VE[ids].mean(axis=0), rtol=1e-6)
    cosines = table.words.unit_VE @ vector_E
    near = table.neighbours(vector_E, 3, 'kingtree')
    assert list(near) == [table.words.words[place] for place in np.argsort(-cosines)[:3]]
    assert table.vector_of_word('monarch') is None  # The vocabulary has no piece of this word.


def test_neighbours_come_from_the_table_of_another_model(folder: Path, tmp_path: Path):
    filler = MaskFiller(write_checkpoint(tmp_path, 'fill_mask'))
    table = open_vectors(folder)
    assert isinstance(table, TokenTableVectors)
    table.table_VE = table.table_VE.copy()
    table.table_VE[table.tokenizer.token_to_id('house')] = table.table_VE[table.tokenizer.token_to_id('king')]
    own, other = WordReplacer(filler, candidates=1), WordReplacer(filler, table, candidates=1)
    assert other.nearest_words('kinghouse') == () == own.nearest_words('kinghouse')  # the vocabulary has no word pieces
    assert other.nearest_words('house house') == ('king',) != own.nearest_words('house house')


def test_a_folder_without_a_model_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=str(tmp_path)):
        open_vectors(tmp_path)


def test_a_vectors_file_is_read_with_or_without_counts(tmp_path: Path):
    lines = 'ada 3 4\nbee 0 2\n'
    for name, text in (('glove.txt', lines), ('word2vec.txt', f'2 2\n{lines}')):
        (tmp_path / name).write_text(text)
        vectors: UnitWordVectors = read_vectors(tmp_path / name)
        assert vectors.words == ('ada', 'bee')
        np.testing.assert_allclose(vectors.unit_VE, [[0.6, 0.8], [0, 1]], rtol=1e-6)


def test_words_may_have_spaces(tmp_path: Path):
    (tmp_path / 'glove.txt').write_text('ada 3 4\n. . . 0 2\nat a.b@c.d 1 1\n')
    assert read_vectors(tmp_path / 'glove.txt').words == ('ada', '. . .', 'at a.b@c.d')


@pytest.mark.parametrize(
    'text, message',
    [
        ('ada 1 2\nbee 1\n', 'line 2: 1 numbers; line 1 has 2'),
        ('ada 1 2\nbee 1 2 3\n', 'line 2: 3 numbers; line 1 has 2'),
        ('ada 1 x\n', 'line 1: not a word and'),
        ('', 'no vector'),
    ],
)
def test_a_bad_vectors_file_is_named(tmp_path: Path, text: str, message: str):
    (tmp_path / 'bad.txt').write_text(text)
    with pytest.raises(InputError, match=message):
        read_vectors(tmp_path / 'bad.txt')

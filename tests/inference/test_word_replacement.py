"""Tests of replacement words proposed for a text, and of the new texts made with them."""

import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.word_neighbours import unit_vectors
from efficient_attention.inference.word_replacement import (
    ReplaceableWord,
    WordReplacer,
    augmented_texts,
    replace_words,
)
from tests.inference.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope='module')
def replacer(tmp_path_factory: pytest.TempPathFactory) -> WordReplacer:
    filler = MaskFiller(write_checkpoint(tmp_path_factory.mktemp('filler'), 'fill_mask'))
    return WordReplacer(filler, candidates=3)


def test_a_word_of_one_piece_gets_what_the_model_finds_most_probable_beside_the_whole_text(replacer: WordReplacer):
    [words] = replacer.propose_replacements(['the king sleeps near'])
    assert [place for place, _ in words] == [1, 2, 3]  # The function word 'the' is kept.
    filler = replacer.filler
    ids = [filler.tokenizer.token_to_id(word) for word in 'the [MASK] sleeps near [SEP] the king sleeps near'.split()]
    [logits_PV] = filler.mask_logits([([filler.vocabulary.cls, *ids, filler.vocabulary.sep], [2])])
    best = [filler.readable_token(int(id)) for id in np.argsort(-logits_PV[0], kind='stable')]
    expected = [word for word in best if word.isalpha() and word != 'king'][:3]
    assert list(words[0].candidates) == expected


def test_as_many_words_are_proposed_as_there_are(replacer: WordReplacer):
    [word, *_] = WordReplacer(replacer.filler, candidates=500).propose_replacements(['the king sleeps'])[0]
    assert len(set(word.candidates)) == len(word.candidates) == replacer.is_word.sum() - 1
    with pytest.raises(InputError, match='candidates is 0'):
        WordReplacer(replacer.filler, candidates=0)


def test_numbers_signs_and_function_words_stay(replacer: WordReplacer):
    assert replacer.propose_replacements(['the 3 , . a', '']) == [[], []]


def test_markers_stay(replacer: WordReplacer):
    assert replacer.propose_replacements(['[king] <king> [/king]']) == [[]]
    assert [word.place for word in replacer.propose_replacements(['[king] king [ king ]'])[0]] == [1, 2]


def test_a_text_that_fits_once_alone_is_read_alone_and_a_longer_one_is_left(replacer: WordReplacer):
    once, never = ' '.join(['king'] * 15), ' '.join(['king'] * 30)  # of 24 places
    assert [len(words) for words in replacer.propose_replacements([once, never])] == [15, 0]


def test_a_word_that_has_no_piece_of_its_own_gets_neighbours_from_a_file(replacer: WordReplacer):
    vectors = unit_vectors(['monarch', 'king', 'queen', 'tree'], np.array([[1, 0], [0.9, 0.1], [1, 0.3], [0, 1]]))
    with_file = WordReplacer(replacer.filler, vectors, candidates=2)
    [words] = with_file.propose_replacements(['the Monarch castle'])
    assert words == [ReplaceableWord(1, ('king', 'queen'))]  # 'castle' has no vector in the file.
    assert replacer.propose_replacements(['monarch']) == [[]]  # An unknown word has no vector in the model's table.


WORDS = [ReplaceableWord(0, ('cat', 'dog')), ReplaceableWord(2, ('ran',))]


def test_replaced_words_keep_capitals_and_what_stands_between():
    rng = np.random.default_rng(0)
    assert replace_words('Ada, "the" bee!', WORDS, 1.0, rng) in ('Cat, "the" ran!', 'Dog, "the" ran!')
    assert replace_words('Ada, "the" bee!', WORDS, 0.0, rng) == 'Ada, "the" bee!'


def test_contractions_stay_and_quoted_words_do_not(replacer: WordReplacer):
    assert replacer.propose_replacements(["they ca n't , don't , don’t , it 's", "we 've won't"]) == [[], []]
    [words] = replacer.propose_replacements(["the 'king' sleeps"])
    assert [place for place, _ in words] == [1, 2]


def made(seed: int = 0, row: int = 0, copies: int = 20) -> list[tuple[str, ...]]:
    return list(augmented_texts(['ada the bee'], [WORDS], copies=copies, share=0.4, seed=seed, row=row))


def test_new_texts_come_from_seed_and_row_alone_and_none_comes_twice():
    texts = made()
    assert texts == made() and 1 < len(texts) <= 5  # Six texts are possible; one is the row itself.
    assert len(set(texts)) == len(texts) and ('ada the bee',) not in texts
    assert made(copies=1) in ([], texts[:1])
    assert len({tuple(made(seed, row, copies=2)) for seed in range(3) for row in range(3)}) > 1


def test_a_share_of_the_words_is_replaced():
    rng = np.random.default_rng(0)
    words = [ReplaceableWord(place, ('new',)) for place in range(1000)]
    text = replace_words(' '.join(['old'] * 1000), words, 0.4, rng)
    assert abs(text.split().count('new') - 400) < 3 * (1000 * 0.4 * 0.6) ** 0.5


def test_both_texts_of_a_pair_are_replaced_apart():
    pairs = list(augmented_texts(['ada', 'bee'], [[WORDS[0]], []], copies=20, share=0.5, seed=0, row=0))
    assert {second for _, second in pairs} == {'bee'} and {first for first, _ in pairs} == {'cat', 'dog'}

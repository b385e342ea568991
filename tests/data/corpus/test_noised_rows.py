"""Tests that noised rows depend only on (seed, epoch, index), and that they hold every token for any number of rows."""

import pickle
from typing import Any

import numpy as np
import pytest

from efficient_attention.config.noise import NoiseConfig
from efficient_attention.data.corpus.bart_noise import BartNoise
from efficient_attention.data.corpus.noise_interface import Noise
from efficient_attention.data.corpus.noised_rows import NoisedRows
from efficient_attention.data.corpus.span_corruption import SpanCorruption, noised_lengths
from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds
from efficient_attention.errors import InputError
from tests.data.corpus.memory_corpus import CLS, PAD, SEP, MemoryCorpus, memory_corpus

ENDS = SequenceSpecialIds(PAD, SEP, CLS)
MOST = 40
SPANS = SpanCorruption(0.15, 3.0, np.array([9001, 9000], np.int32), MOST, noised_lengths(MOST, 0.15, 3.0))
NOTHING = NoiseConfig('bart', permutation=0.0, infilling=0.0)


def bart(config: NoiseConfig) -> Noise:
    return BartNoise(config, 8999, np.zeros(9000, bool), MOST, (MOST, MOST))


NOISES = {'span_corruption': SPANS, 'bart': bart(NoiseConfig('bart'))}


def make_rows(
    noise: Noise, corpus: MemoryCorpus | None = None, ends: SequenceSpecialIds = ENDS, **options: Any
) -> NoisedRows:
    corpus = memory_corpus() if corpus is None else corpus
    options = {'seed': 0, 'is_training': True} | options
    return NoisedRows(corpus, noise, ends, options.pop('seed'), **options)


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize('noise', NOISES)
def test_a_row_is_a_function_of_seed_epoch_and_index(noise: str):
    one, other = make_rows(NOISES[noise]), pickle.loads(pickle.dumps(make_rows(NOISES[noise])))
    for position in range(3 * one.count):
        one.training_row(position)
    assert all(equal(one.training_row(n), other.training_row(n)) for n in reversed(range(2 * one.count)))
    assert not equal(one.row(0, 3), one.row(1, 3))
    assert not equal(one.row(0, 3), make_rows(NOISES[noise], seed=1).row(0, 3))
    assert sorted(int(one.training_row(n)['index']) for n in range(one.count)) == list(range(one.count))
    assert [one.training_row(n)['index'] for n in range(one.count)] != [
        one.training_row(n)['index'] for n in range(one.count, 9)
    ]


@pytest.mark.parametrize('noise', NOISES)
def test_a_row_has_its_ends_and_padding(noise: str):
    for begin in (-1, 7):
        rows = make_rows(NOISES[noise], ends=SequenceSpecialIds(PAD, SEP, CLS, begin))
        for index in range(20):
            row = rows.row(0, index)
            assert (len(row['source']), len(row['targets'])) == rows.lengths
            used = {'source': row['source_segments'].sum(), 'targets': row['segments'].sum()}
            for name, count in used.items():
                assert row[name][count - 1] == SEP and (row[name][count:] == PAD).all()
                assert (row[name][0] == begin) == (begin >= 0)
            assert row['tokens'].tolist() == [CLS, *row['targets'][:-1].tolist()]
            assert np.array_equal(row['weights'], row['segments']) and row['weights'].dtype == np.float32


def test_texts_of_span_corruption_go_on_through_all_documents():
    """In training every text has full length. All texts cover the split, except for a rest shorter than two texts."""
    corpus = memory_corpus()
    rows = make_rows(SPANS, corpus)
    for epoch in (0, 1):
        found = [texts_of(rows.row(epoch, index)) for index in range(rows.count)]
        joined = np.concatenate(found)
        assert all(len(text) == MOST for text in found) and (np.diff(joined) == 1).all()
        assert len(corpus.tokens) - len(joined) < 2 * MOST
    first = [texts_of(rows.row(epoch, 0))[0] for epoch in range(8)]
    assert len(set(first)) > 4  # Each epoch begins at another token.


def texts_of(row: dict) -> np.ndarray:
    """Returns the sorted tokens of a row of span corruption, which are token numbers of a memory corpus."""
    source, target = row['source'][row['source_segments'] > 0], row['targets'][row['segments'] > 0]
    both = np.concatenate([source, target])
    return np.sort(both[(both >= 5) & (both < 9000)])


def test_an_evaluation_reads_every_token_once():
    corpus = memory_corpus(split='held_out')
    rows = make_rows(SPANS, corpus, is_training=False)
    assert np.array_equal(np.concatenate([texts_of(rows.row(0, n)) for n in range(rows.count)]), corpus.tokens)
    alone = make_rows(SPANS, MemoryCorpus([MOST, 1], [0, 2]), is_training=False)
    assert alone.count == 1  # A rest of one token is too short for a text.


def test_texts_of_bart_are_whole_sentences_of_a_document():
    corpus = memory_corpus()
    rows = make_rows(bart(NOTHING), corpus)
    bounds = np.concatenate([[0], np.cumsum(corpus.sentence_lengths)]) + 5
    seen = []
    for index in range(rows.count):
        text = rows.row(0, index)['targets'][:-1]
        text = text[: np.flatnonzero(text == SEP)[0]] if (text == SEP).any() else text
        assert text[0] in bounds and text[-1] + 1 in bounds and len(set(corpus.document_of(text).tolist())) == 1
        seen.append(text)
    assert np.array_equal(np.concatenate(seen), corpus.tokens)


@pytest.mark.parametrize('start, stop', [(0, 40), (17, 57), (3, 5)])
def test_sentences_of_a_text_are_known_by_their_first_tokens(start: int, stop: int):
    corpus = memory_corpus()
    text = make_rows(SPANS, corpus).tokens_and_sentence_starts(start, stop)
    bounds = np.concatenate([[0], np.cumsum(corpus.sentence_lengths)])
    inside = [place - start for place in bounds.tolist() if start < place < stop]
    assert text.tokens.tolist() == corpus.tokens[start:stop].tolist()
    assert text.sentence_starts.tolist() == [0, *inside]


def test_padding_counts_for_nothing():
    for noise in NOISES.values():
        row = make_rows(noise).padding_row()
        assert not row['weights'].any() and not row['source_segments'].any() and row['index'] == -1


def test_too_little_text_and_bad_seeds_are_named():
    small = MemoryCorpus([30], [0, 1])
    with pytest.raises(
        InputError, match='^the train split of the corpus has 30 tokens, and noise.name needs 40; add do'
    ):
        make_rows(SPANS, small)
    assert make_rows(SPANS, small, is_training=False).count == 1
    empty = MemoryCorpus([], [0], split='held_out')
    for noise in NOISES.values():
        with pytest.raises(InputError, match='^the held_out split of the corpus has 0 tokens.*raise data.held_out$'):
            make_rows(noise, empty, is_training=False)
    with pytest.raises(InputError, match='^the seed is -1'):
        make_rows(SPANS, seed=-1)


def test_a_corpus_that_cannot_be_read_is_named_with_the_place():
    rows = make_rows(SPANS)

    def damaged(*_place: int) -> list:
        raise InputError('shard-0: damaged')

    rows._corpus.sentences = damaged
    with pytest.raises(InputError, match=r'^train tokens \d+ to \d+, epoch 0, row 2: shard-0: damaged$'):
        rows.row(0, 2)

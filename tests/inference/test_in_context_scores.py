"""Tests the scores of in-context learning: how often a key was seen, who predicts its value, and which head looks it
up."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.data.sources.recall_rows import KEYS, NEW_KEYS, SYMBOLS, RecallRows
from efficient_attention.data.text.text_units import WordUnits
from efficient_attention.errors import InputError
from efficient_attention.inference.in_context_scores import (
    head_scores,
    predicted_values,
    recall_accuracy,
    recall_test,
    sights_and_gaps,
)
from efficient_attention.inference.language_models import LanguageModel
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.layer_readings import self_attention_weights
from tests.models.drawn import drawn

UNITS = WordUnits.from_counts({f's{symbol}': 1 for symbol in range(SYMBOLS)}, min_count=1, lowercase=True)
CONFIG = ModelConfig(
    width=16, heads=2, layers=2, vocab_size=UNITS.size + len(NEW_KEYS), token_types=0, attention='causal',
    positions='none', rotary=True, norm='pre',
)  # fmt: skip
ROWS = RecallRows(rows=70, pairs=12, fewest=3, most=5, seed=1)


@pytest.fixture(scope='module')
def model() -> LanguageModel:
    return LanguageModel(CONFIG, UNITS, *drawn(lambda: Decoder(CONFIG, rngs=nnx.Rngs(0))))


def test_sights_and_gaps_are_those_of_a_plain_count():
    keys = np.random.default_rng(0).integers(0, 4, (5, 11))
    sights, gaps = sights_and_gaps(keys)
    for row, found, distance in zip(keys.tolist(), sights.tolist(), gaps.tolist(), strict=True):
        for place, key in enumerate(row):
            earlier = [number for number in range(place) if row[number] == key]
            assert found[place] == len(earlier)
            assert distance[place] == (place - earlier[-1] if earlier else 0)


def test_a_predictor_that_remembers_the_row_is_right_after_one_sight(model):
    test = recall_test(model, ROWS)
    predicted = np.full(test.sights_BP.shape, -1)
    for row, tokens in enumerate(test.tokens_BL.tolist()):
        memory = {}
        for place, (key, value) in enumerate(zip(tokens[::2], tokens[1::2], strict=True)):
            predicted[row, place] = memory.get(key, -1)
            memory[key] = value
    assert recall_accuracy(test, predicted) == {'sights': [0, 1, 1, 1], 'pairs_since': [1, 1, 1, 1, None]}


def test_a_predictor_that_remembers_two_pairs_is_right_only_near(model):
    test = recall_test(model, ROWS)
    is_near = (test.gaps_BP > 0) & (test.gaps_BP < 2)
    found = recall_accuracy(test, np.where(is_near, test.tokens_BL[:, 1::2], -1))
    assert found['pairs_since'] == [1, 0, 0, 0, None] and 0 < found['sights'][1] < 1


def test_an_untrained_model_guesses(model):
    found = recall_accuracy(test := recall_test(model, ROWS), predicted_values(model, test.tokens_BL))
    assert max(found['sights']) < 0.1


def test_predictions_follow_the_keys(model):
    tokens_BL = recall_test(model, ROWS).tokens_BL[:3]
    logits_BLV = nnx.merge(model.graph, model.params)(jnp.asarray(tokens_BL), jnp.ones_like(tokens_BL))
    np.testing.assert_array_equal(predicted_values(model, tokens_BL), np.asarray(logits_BLV)[:, ::2].argmax(-1))


def test_new_and_untrained_keys_are_no_keys_of_training(model):
    tests = {kind: recall_test(model, ROWS, kind) for kind in ('trained', 'new', 'untrained')}
    words = {
        kind: UNITS.decode(test.tokens_BL[:, ::2].ravel()).split()
        for kind, test in tests.items()
        if kind != 'untrained'
    }
    assert set(words['trained']) <= {f's{symbol}' for symbol in KEYS}
    assert set(words['new']) <= {f's{symbol}' for symbol in NEW_KEYS}
    new, untrained = tests['new'].tokens_BL, tests['untrained'].tokens_BL
    assert untrained[:, ::2].min() >= UNITS.size and untrained.max() < CONFIG.vocab_size
    np.testing.assert_array_equal(new[:, 1::2], untrained[:, 1::2])
    np.testing.assert_array_equal(tests['new'].sights_BP, sights_and_gaps(untrained[:, ::2])[0])


def test_without_enough_ids_there_are_no_untrained_keys(model):
    small = model._replace(config=dataclasses.replace(CONFIG, vocab_size=UNITS.size + 1))
    assert recall_test(small, ROWS, 'untrained') is None


def test_a_model_of_other_words_is_refused(model):
    units = WordUnits.from_counts({'s1': 3}, min_count=1, lowercase=True)
    with pytest.raises(InputError, match='^the model does not know the words of generated rows; it needs data.source'):
        recall_test(model._replace(units=units), ROWS)


def test_head_scores_are_means_over_tokens_and_over_second_occurrences(model):
    test = recall_test(model, ROWS._replace(rows=4))
    decoder = nnx.merge(model.graph, model.params)
    tokens_BL = jnp.asarray(test.tokens_BL)
    weights = np.asarray(jax.jit(self_attention_weights)(decoder, tokens_BL, jnp.ones_like(tokens_BL)))
    previous, two_back, induction, after = [], [], [], []
    for row, tokens in enumerate(test.tokens_BL.tolist()):
        previous += [weights[:, row, :, place, place - 1] for place in range(1, len(tokens))]
        two_back += [weights[:, row, :, place, place - 2] for place in range(2, len(tokens))]
        keys = tokens[::2]
        for place, key in enumerate(keys):
            if keys[:place].count(key) == 1:
                induction.append(weights[:, row, :, 2 * place, 2 * keys.index(key) + 1])
                after.append(weights[:, row, :, 2 * place, 2 * keys.index(key) + 2])
    found = head_scores(model, test)
    expected = {'previous_token': previous, 'two_back': two_back, 'induction': induction, 'after_value': after}
    assert list(found) == list(expected)
    for name, each in expected.items():
        np.testing.assert_allclose(found[name], np.mean(each, 0), rtol=1e-5)


def test_heads_need_a_second_occurrence(model):
    with pytest.raises(InputError, match='^no row has a key twice; use more pairs or fewer keys'):
        head_scores(model, recall_test(model, RecallRows(1, 1, 1, 1)))

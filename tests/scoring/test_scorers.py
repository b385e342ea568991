"""Tests that every score equals one full pass over its pair alone, whatever the batches, order and devices."""

import functools
import math
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.lm.common import language_modelling_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.text.text_units import ByteUnits, WordUnits
from efficient_attention.errors import InputError
from efficient_attention.inference.language_models import LanguageModel
from efficient_attention.inference.ngram_language_model import count_ngrams, next_token_probabilities, token_bits
from efficient_attention.models.decoder import Decoder
from efficient_attention.scoring.decoder_scorer import SHORTEST_SHARED, DecoderScorer, encode_with_units
from efficient_attention.scoring.ngram_scorer import NgramScorer
from efficient_attention.scoring.pairs import Pair, PairTokens, windows_of_text
from tests.one_device import EIGHT

BYTES = ByteUnits()
PROMPT = 'This question has more than sixty-four bytes, so its cache is kept: A'
PAIRS = [
    *(Pair(PROMPT, option) for option in (' cat', ' dog is', ' cow', ' hare i')),
    Pair('', 'A sentence of as many bytes as a question with its answer, after two lines.'),
    Pair('The last words of this sentence are the continuation, whose length is ', 'known.'),
    Pair(PROMPT, ' cow'),
]
MECHANISMS = {
    'full': {},
    'window': {'attention': 'causal & window(5)'},
    'lsh': {'attention': 'lsh(8, 2, causal=True)', 'shared_qk': True},
    'favor': {'attention': 'favor(16, causal=True)'},
    'transformer_xl': {'relative': 'transformer_xl', 'rotary': False, 'memory_length': 80},
    'gru': {'cell': 'gru', 'rotary': False},
    'sru': {'cell': 'sru2', 'rotary': False},
    'reversible': {'stack': 'reversible'},
}


def config_of(data_length: int = 96, **fields) -> ModelConfig:
    config = language_modelling_config()
    config.data.length = data_length
    config.data.batches = 'streams' if fields.get('memory_length') else 'windows'
    config.model.update(
        {'vocab_size': 256, 'width': 16, 'layers': 2, 'rotary': True, 'positions': 'none', 'init_std': 0.5}
    )
    if 'cell' not in fields:
        config.model.update({'heads': 2, 'dropout_rate': 0.0, 'attention_dropout_rate': 0.0})
    config.model.update(fields)
    return from_dict(config.to_dict(), RunConfig).model


def language_model(length: int | None = 96, **fields) -> LanguageModel:
    config = config_of(**fields)
    graph, params = nnx.split(Decoder(config, rngs=nnx.Rngs(1)))
    return LanguageModel(config, BYTES, graph, nnx.to_pure_dict(params), length)


@functools.partial(jax.jit, static_argnames='graph')
def log_probs_of(graph: nnx.GraphDef, params: Any, ids_BL: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(nnx.merge(graph, params)(ids_BL, jnp.ones_like(ids_BL)))


def full_pass(opened: LanguageModel, row: PairTokens) -> tuple[float, bool]:
    """Scores one pair alone by the model's log-probabilities of all its tokens."""
    ids = np.array([*row.context, *row.continuation])
    log_probs_LV = np.asarray(log_probs_of(opened.graph, opened.params, ids[None, :-1])[0], np.float64)
    log_probs_LV = log_probs_LV[len(row.context) - 1 :]
    chosen = log_probs_LV[np.arange(len(row.continuation)), row.continuation]
    return chosen.sum(), bool((log_probs_LV.argmax(axis=1) == row.continuation).all())


@pytest.mark.parametrize('name', MECHANISMS)
def test_score_equals_full_pass_of_each_pair_alone(name):
    opened = language_model(**MECHANISMS[name])
    expected = [full_pass(opened, encode_with_units(BYTES, pair)) for pair in PAIRS]
    scorer = DecoderScorer(opened, batch_size=4)
    with mock.patch.object(scorer, 'score_shared', wraps=scorer.score_shared) as shared:
        found = scorer.score(PAIRS)
    np.testing.assert_allclose([one.log_prob for one in found], [log_prob for log_prob, _ in expected], atol=1e-4)
    assert [one.is_greedy for one in found] == [is_greedy for _, is_greedy in expected]
    # The four different pairs with the long prompt are one batch; LSH has no cache.
    assert shared.call_count == (0 if name == 'lsh' else 1)


def test_contexts_are_shared_exactly_where_a_cache_gives_the_full_pass():
    shared = {name: DecoderScorer(language_model(**fields)).longest_shared for name, fields in MECHANISMS.items()}
    assert shared['lsh'] == 0 and shared['transformer_xl'] == 80
    assert all(shared[name] > 10**6 for name in ('full', 'window', 'favor', 'gru', 'sru', 'reversible'))


def test_order_and_company_do_not_change_a_score():
    opened = language_model()
    scorer = DecoderScorer(opened, batch_size=1, shares_contexts=False)
    assert scorer.batch_size == 1
    alone = [scorer.score([pair])[0] for pair in PAIRS]
    turned = DecoderScorer(opened, batch_size=8).score(PAIRS[::-1])[::-1]
    np.testing.assert_allclose([one.log_prob for one in alone], [one.log_prob for one in turned], atol=1e-4)
    assert [one[1:] for one in alone] == [one[1:] for one in turned]


@pytest.mark.parametrize('devices', [2, 8])
def test_the_number_of_devices_does_not_change_a_score(devices, monkeypatch):
    opened = language_model()
    one = DecoderScorer(opened, batch_size=2).score(PAIRS)
    monkeypatch.setattr(jax, 'local_devices', lambda: EIGHT[:devices])
    scorer = DecoderScorer(opened, batch_size=2)
    assert scorer.mesh.size == devices and scorer.batch_size == devices
    several = scorer.score(PAIRS)
    np.testing.assert_allclose([x.log_prob for x in several], [x.log_prob for x in one], atol=1e-4)


def test_scores_are_right_up_to_the_last_position_of_a_table():
    opened = language_model(positions='learned', rotary=False, max_length=50, data_length=50)
    text = Pair('a' * 40, 'b' * 11)  # 50 tokens are read, and the last is only predicted
    [score] = DecoderScorer(opened).score([text])
    assert score.log_prob == pytest.approx(full_pass(opened, encode_with_units(BYTES, text))[0], abs=1e-4)
    with pytest.raises(InputError, match='pair 1 is too long: 51 tokens; the model reads 50 at most'):
        DecoderScorer(opened).score([Pair('a' * 41, 'b' * 11)])


def test_a_text_or_a_pair_in_place_of_a_list_is_named():
    scorer = DecoderScorer(language_model())
    with pytest.raises(InputError, match="^'It rains.' is one text; give a list of texts$"):
        scorer.score_texts('It rains.')
    for given in (('abc', ' d'), ['abc']):
        with pytest.raises(InputError, match=r"^pair 1 is 'abc'; give a list of pairs \(context, continuation\)$"):
            scorer.score(given)


def test_a_word_that_the_vocabulary_lacks_is_never_greedy():
    units = WordUnits.from_counts({'the': 5, 'dog': 5}, min_count=1, lowercase=False)
    orders = count_ngrams(np.full(50, units.unknown), units.size, 2)  # the unknown word is the most probable one
    scorer = NgramScorer(orders, units)
    assert [one.is_greedy for one in scorer.score([Pair('the', ' zebra')])] == [False]
    assert scorer.score_tokens([scorer.encode(Pair('the', ' zebra'))])[0][1]
    [text] = scorer.score_texts(['the zebra dog'])
    assert text.unknown_tokens == 1 and text.tokens == 3


@pytest.mark.parametrize('prompt', [b'The cat', PROMPT.encode()], ids=['short', 'shared'])
def test_greedy_continuation_is_recognised(prompt: bytes):
    opened = language_model()
    scorer, ids = DecoderScorer(opened), [*prompt]
    model = nnx.merge(opened.graph, opened.params)
    for _ in range(3):
        ids.append(int(model(jnp.asarray([ids]), jnp.ones((1, len(ids)), int))[0, -1].argmax()))
    greedy = PairTokens(tuple(ids[:-3]), tuple(ids[-3:]))
    other = greedy._replace(continuation=(*ids[-3:-1], (ids[-1] + 1) % 256))
    with mock.patch.object(scorer, 'score_shared', wraps=scorer.score_shared) as shared:
        assert [is_greedy for _, is_greedy in scorer.score_tokens([greedy, other])] == [True, False]
    assert shared.call_count == (len(prompt) >= SHORTEST_SHARED)


def test_uniform_model_scores_minus_tokens_times_log_of_vocabulary():
    opened = language_model()
    opened = opened._replace(params=jax.tree.map(jnp.zeros_like, opened.params))
    for pair, score in zip(PAIRS, DecoderScorer(opened).score(PAIRS), strict=True):
        assert score.log_prob == pytest.approx(-score.tokens * math.log(256), abs=1e-3)
        assert score.tokens == score.bytes + (1 if pair.context.endswith(' ') else 0)


@pytest.mark.parametrize(
    ('pair', 'expected'),
    [
        (Pair('ab', ' c'), (b'ab', b' c')),
        (Pair('ab ', 'c'), (b'ab', b' c')),
        (Pair('ab\n ', 'c'), (b'ab', b'\n c')),
        (Pair('', 'c'), (b'\n\n', b'c')),
        (Pair(' ', 'c'), (b'\n\n', b' c')),
    ],
)
def test_spaces_at_the_seam_belong_to_the_continuation(pair, expected):
    assert encode_with_units(BYTES, pair) == PairTokens(*map(tuple, expected))


@pytest.mark.parametrize(
    ('pair', 'words'),
    [
        (Pair('a', ''), 'pair 2: the continuation is empty'),
        (Pair('a' * 97, 'b'), 'pair 2 is too long: 97 tokens; the model reads 96 at most'),
    ],
)
def test_bad_pair_is_refused_by_its_number(pair, words):
    with pytest.raises(InputError, match=words):
        DecoderScorer(language_model()).score([Pair('a', 'b'), pair])


def test_longest_row_is_the_training_row_with_its_memory_or_the_positions():
    assert DecoderScorer(language_model()).longest == 96
    assert DecoderScorer(language_model(**MECHANISMS['transformer_xl'])).longest == 176
    assert DecoderScorer(language_model(**MECHANISMS['gru'])).longest is None
    learned = language_model(positions='learned', rotary=False, max_length=50, data_length=50)
    assert DecoderScorer(learned).longest == 50
    with pytest.raises(InputError, match='length is 51; it must be from 0 to 50, the positions of the model'):
        DecoderScorer(learned, longest=51)


@pytest.mark.parametrize(('window', 'stride'), [(10, 10), (10, 3), (7, 7)])
def test_windows_predict_each_token_once_from_as_much_as_the_window_holds(window, stride):
    ids = tuple(range(100, 123))
    parts = list(windows_of_text(PairTokens((1, 2), ids), window, stride))
    assert sum((part.continuation for part in parts), ()) == ids
    assert all(part.positions <= window for part in parts) and parts[-1].positions == window
    assert all(len(part.continuation) <= stride for part in parts)


def test_text_scores_add_up_over_windows_and_equal_one_pass_where_the_text_fits():
    opened = language_model()
    scorer = DecoderScorer(opened, batch_size=2)
    text = 'Every token of this text is predicted once.'
    row = encode_with_units(BYTES, Pair('', text))
    [score] = scorer.score_texts([text])
    assert score.log_prob == pytest.approx(full_pass(opened, row)[0], abs=1e-4)
    assert score[1:] == (43, 43, 43, 0)
    windows = [full_pass(opened, part)[0] for part in windows_of_text(row, 12, 5)]
    [moved] = scorer.score_texts([text], context=12, stride=5)
    assert moved.log_prob == pytest.approx(sum(windows), abs=1e-4)
    for bad, words in (({'context': 97}, 'context is 97'), ({'context': 9, 'stride': 10}, 'stride is 10')):
        with pytest.raises(InputError, match=words):
            scorer.score_texts([text], **bad)


def test_ngram_scores_equal_the_bits_of_the_whole_text():
    train, text = np.random.default_rng(0).integers(0, 5, 400), np.random.default_rng(1).integers(0, 6, 40)
    orders = count_ngrams(train, 6, 3)
    bits = token_bits(orders, text, 6)
    for place in range(1, 40):
        probabilities_V = next_token_probabilities(orders, text[:place].tolist(), 6)
        assert probabilities_V.sum() == pytest.approx(1)
        assert -np.log2(probabilities_V[text[place]]) == pytest.approx(bits[place - 1])
    orders = count_ngrams(np.frombuffer(b'abcabcabd' * 20, np.uint8), 256, 3)
    scores = NgramScorer(orders, BYTES).score([Pair('ab', 'c'), Pair('ab', 'd')])
    assert [one.is_greedy for one in scores] == [True, False] and scores[0].log_prob > scores[1].log_prob
    [whole] = NgramScorer(orders, BYTES).score_texts(['abcabd'])
    [pair] = NgramScorer(orders, BYTES).score([Pair('', 'abcabd')])
    assert whole.log_prob == pytest.approx(pair.log_prob)

"""Tests adaptive embedding and softmax: probabilities sum to one and equal the formula; shapes and parameters."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.adaptive_softmax import cluster_bounds, cluster_widths
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.models.decoder import Decoder
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=30, layers=1, token_types=0, positions='none', attention='causal', norm='pre',
    init_std=0.5, attention_dropout_rate=0.0, embedding_norm=False, adaptive_cutoffs=(5, 12), output_bias=True,
)  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    'one table': {},
    'narrow tails': {'adaptive_divisor': 2},
    'untied': {'adaptive_divisor': 2, 'tied_output': False},
    'factorised': {'adaptive_divisor': 2, 'embedding_width': 8},
    'factorised table': {'embedding_width': 8, 'output_bias': False},
}
TOKENS, ONES = jax.device_put((np.int32([[0, 4, 5, 11, 12, 29, 3]]), np.ones((1, 7), np.int32)))


@functools.cache
def decoder_of(**fields: Any) -> Decoder:
    config = dataclasses.replace(CONFIG, **fields)
    return nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)), std=0.5))


# One compiled program runs all calls with the same model.
call = nnx.jit(Decoder.__call__)


def shapes(module: nnx.Module) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree.leaves_with_path(nnx.to_pure_dict(nnx.state(module)))
    return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape for path, leaf in leaves}


def test_clusters_and_their_widths():
    config = dataclasses.replace(CONFIG, adaptive_divisor=3)
    assert cluster_bounds(config) == ((0, 5), (5, 12), (12, 30))
    assert cluster_widths(config) == (16, 5, 1)
    assert cluster_widths(CONFIG) == (16, 16, 16)


@pytest.mark.parametrize('name', KINDS)
def test_probabilities_add_up_to_one(name: str):
    logits = np.asarray(call(decoder_of(**KINDS[name]), TOKENS, ONES))
    assert logits.shape == (1, 7, 30) and logits.dtype == np.float32
    assert_close(np.exp(logits).sum(axis=-1), np.ones((1, 7)))
    assert np.abs(logits[0, 0] - logits[0, 1]).max() > 1e-2


@pytest.mark.parametrize('name', ['one table', 'narrow tails'])
def test_log_probabilities_are_the_papers_formula(name: str):
    """The formula is log p(cluster) + log p(word | cluster), with the input's tables, and its projections except the
    first.
    """
    model = decoder_of(**KINDS[name])
    x_LD = np.random.default_rng(2).normal(size=(7, 16)).astype(np.float32)
    parameters = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(model)))
    head, token = parameters['head'], parameters['embeddings']['token']
    if name == 'one table':
        scores = [np.asarray(x_LD, np.float64)] * 3
        tables = np.split(token['embedding'], (5, 12))
    else:
        projections = [head['first']['kernel'], *(token['projections'][i]['kernel'].T for i in (1, 2))]
        scores = [np.asarray(x_LD, np.float64) @ projection for projection in projections]
        tables = [token['tables'][i]['embedding'] for i in range(3)]
    biases = np.split(head['bias'], (5, 12))
    words = [log_softmax(x @ table.T + bias) for x, table, bias in zip(scores, tables, biases, strict=True)]
    first = np.concatenate(
        [scores[0] @ tables[0].T + biases[0], scores[0] @ head['tails']['kernel'] + head['tails']['bias']], axis=1
    )
    first = log_softmax(first)
    expected = np.concatenate([first[:, :5], first[:, 5:6] + words[1], first[:, 6:7] + words[2]], axis=1)
    np.testing.assert_allclose(np.asarray(nnx.jit(Decoder.logits)(model, x_LD[None]))[0], expected, atol=1e-4)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_a_token_is_its_row_times_its_clusters_projection():
    token = decoder_of(adaptive_divisor=2).embeddings.token
    x_LE = np.asarray(nnx.jit(lambda token, tokens: token(tokens))(token, TOKENS))[0]
    for place, (cluster, row) in enumerate([(0, 0), (0, 4), (1, 0), (1, 6), (2, 0), (2, 17), (0, 3)]):
        parts = token.tables[cluster].embedding, token.projections[cluster].kernel
        rows, projection = (np.asarray(one[...]) for one in parts)
        assert_close(x_LE[place], rows[row] @ projection)


def test_parameters_of_the_embedding_and_the_head():
    narrow = decoder_of(adaptive_divisor=2)
    tables = {'tables/0/embedding': (5, 16), 'tables/1/embedding': (7, 8), 'tables/2/embedding': (18, 4)}
    kernels = {'projections/0/kernel': (16, 16), 'projections/1/kernel': (8, 16), 'projections/2/kernel': (4, 16)}
    ends = {'tails/kernel': (16, 2), 'tails/bias': (2,), 'bias': (30,)}
    assert shapes(narrow.embeddings.token) == tables | kernels
    assert shapes(narrow.head) == ends | {'first/kernel': (16, 16)}
    assert shapes(decoder_of().embeddings.token) == {'embedding': (30, 16)}
    assert shapes(decoder_of().head) == ends
    own = {f'own/{path}': shape for path, shape in (tables | kernels).items()}
    assert shapes(decoder_of(adaptive_divisor=2, tied_output=False).head) == ends | own
    plain = {'projection/kernel': (16, 8), 'projection/bias': (8,), 'tails/kernel': (8, 2)}
    assert shapes(decoder_of(embedding_width=8, output_bias=False).head) == plain


def test_the_gradient_of_a_tails_word_leaves_the_other_tails_alone():
    graph, state = nnx.split(decoder_of(adaptive_divisor=2, tied_output=False))
    x_BLD = jax.device_put(np.random.default_rng(2).normal(size=(1, 1, 16)).astype(np.float32))
    gradient = jax.jit(jax.grad(lambda state: nnx.merge(graph, state).logits(x_BLD)[0, 0, 6]))(state)
    tables = nnx.to_pure_dict(gradient)['head']['own']['tables']
    assert [bool(np.any(tables[i]['embedding'])) for i in range(3)] == [True, True, False]


@pytest.mark.parametrize('name', ['one table', 'narrow tails'])
def test_cached_decoding_gives_the_same_log_probabilities(name: str):
    decoder = decoder_of(**KINDS[name])

    @nnx.jit
    def read(decoder: Decoder) -> jax.Array:
        cached = CachedDecoder(decoder, 7)
        return cached(cached.init_state(1), TOKENS)[0]

    assert_close(read(decoder), call(decoder, TOKENS, ONES))


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
@pytest.mark.parametrize('name', ['one table', 'narrow tails'])
def test_bfloat16_gives_float32_log_probabilities(name: str):
    decoders = [decoder_of(**KINDS[name], dtype=dtype) for dtype in ('bfloat16', 'float32')]
    low, high = (np.asarray(call(decoder, TOKENS, ONES)) for decoder in decoders)
    assert low.dtype == np.float32
    assert np.abs(low - high).max() < 0.1 * np.abs(high).max()

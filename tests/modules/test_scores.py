"""Tests scores in self-attention and cross-attention against their formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import weights_with_options
from efficient_attention.attention.request import CallOptions
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.cross_attention import CrossAttention
from efficient_attention.modules.layer_context import Context, EncodedSource
from tests.attention import contract
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

H, K, D = 2, 8, 16
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, D)), jnp.float32)
SEGMENTS = jnp.asarray([[1, 1, 1, 2, 2, 0], [1] * 6])
POSITIONS = jnp.asarray([[0, 1, 2, 0, 1, 0], [*range(6)]])
OTHER = EncodedSource(
    jnp.asarray(np.random.default_rng(4).normal(size=(2, 5, D)), jnp.float32),
    jnp.asarray([[1, 1, 2, 2, 0], [1] * 5]),
    jnp.asarray([[0, 1, 0, 1, 0], [*range(5)]]),
)


def heads(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:-1], H, K)


def numbers(x: jax.Array | nnx.Param) -> np.ndarray:
    return np.asarray(x[...], np.float64)


def logits_of(module: Attention, row: int, read: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns the papers' logits [H, L, M] from inputs [L, D] and read vectors [M, D]."""
    config, scale = module.config, 1.0 / np.sqrt(K) if module.config.scaled_logits else 1.0
    x = np.asarray(X[row], np.float64)
    q = heads(x @ numbers(module.query.kernel) + numbers(module.query.bias))
    if config.score == 'location':
        t = heads(numbers(module.location.table.embedding)[positions])
        return np.einsum('LHK,MHK->HLM', q, t)
    k = heads(read @ numbers(module.key.kernel) + numbers(module.key.bias))
    if config.score == 'additive':
        return np.einsum('LMHK,HK->HLM', np.tanh(q[:, None] + k[None]), numbers(module.additive.vector))
    matrix = numbers(module.general.matrix) if config.score == 'general' else np.stack([np.eye(K)] * H)
    return np.einsum('LHK,HKJ,MHJ->HLM', q, matrix, k) * scale


def softmax(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    weights = np.where(allowed, np.exp(logits), 0.0)
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


CASES = [('dot', True), ('dot', False), ('general', True), ('general', False), ('additive', True), ('location', True)]


@pytest.mark.parametrize('is_cross', [False, True])
@pytest.mark.parametrize('score, is_scaled', CASES)
def test_weights_and_output_are_the_formula_s(score: str, is_scaled: bool, is_cross: bool):
    """Cached source keys give the same; in packed rows a location is a place within the text."""
    options = {'location_length': 6} if score == 'location' else {}
    config = LayerConfig(width=D, heads=H, score=score, scaled_logits=is_scaled, attention_dropout_rate=0.0, **options)
    module = nnx.merge(*drawn(lambda: (CrossAttention if is_cross else Attention)(config, rngs=nnx.Rngs(0))))
    context = Context(SEGMENTS, POSITIONS, other=OTHER)
    read, segments, positions = OTHER[:3] if is_cross else (X, SEGMENTS, POSITIONS)
    mechanism = config.cross_mechanism if is_cross else config.mechanisms[0]

    @quick
    def all_ways() -> tuple:
        out, operands = module.run(X, context)
        options = operands.add_to_options(CallOptions(query_segments=SEGMENTS, key_segments=segments))
        weights = weights_with_options(operands.query_BLHK, operands.key_BMHK, mechanism, options)
        again = (
            module.run_with_cache(X, Context(SEGMENTS, POSITIONS), module.source_keys_for_decoding(OTHER))
            if is_cross
            else None
        )
        return out, weights, again

    out, weights, again = jax.device_get(all_ways())
    for row in range(2):
        of_row = np.asarray(read[row], np.float64)
        allowed = contract.same_segment(np.asarray(SEGMENTS[row]), np.asarray(segments[row]))
        expected = softmax(logits_of(module, row, of_row, np.asarray(positions[row])), allowed)
        assert_close(weights[row], expected)
        v = heads(of_row @ numbers(module.value.kernel) + numbers(module.value.bias))
        mixed = np.einsum('HLM,MHK->LHK', expected, v).reshape(-1, D)
        assert_close(out[row], mixed @ numbers(module.out.kernel) + numbers(module.out.bias), gradient=True)
    if is_cross:
        found, kept = again
        assert_close(found, out)
        assert kept is not None and (kept.additive_HK is None) == (score != 'additive')


@pytest.mark.parametrize('score', ['dot', 'additive'])
def test_local_p_reads_where_its_parameters_say(score: str):
    """Centres are sigmoid(v tanh(W h)); cached source keys give the same; all parameters get gradients."""
    config = LayerConfig(width=D, heads=H, score=score, cross_attention='local_p(2)', attention_dropout_rate=0.0)
    graph, params = drawn(lambda: CrossAttention(config, rngs=nnx.Rngs(0)))
    module, context = nnx.merge(graph, params), Context(SEGMENTS, POSITIONS, other=OTHER)
    hidden = np.tanh(heads(np.asarray(X, np.float64) @ numbers(module.centres.hidden.kernel)))
    expected = 1.0 / (1.0 + np.exp(-np.einsum('BLHK,HK->BLH', hidden, numbers(module.centres.vector))))

    @quick
    @functools.partial(jax.grad, has_aux=True)
    def run(params: dict) -> tuple:
        module = nnx.merge(graph, params)
        out, operands = module.run(X, context)
        return jnp.sin(out).sum(), (
            out,
            operands.centres_BLH,
            module.run_with_cache(X, context, module.source_keys_for_decoding(OTHER))[0],
        )

    gradients, (out, centres, from_fixed) = jax.device_get(run(params))
    assert_close(centres, expected)
    assert_close(from_fixed, out)
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(gradients['centres']))


@pytest.mark.parametrize('score', ['general', 'additive', 'location'])
def test_all_operands_learn(score: str):
    """There is also no projection that nothing reads."""
    config = LayerConfig(width=D, heads=H, score=score, attention_dropout_rate=0.0)
    graph, params = drawn(lambda: Attention(config, rngs=nnx.Rngs(0)))

    def loss(params: dict) -> jax.Array:
        return jnp.sin(nnx.merge(graph, params)(X, SEGMENTS, POSITIONS)).sum()

    gradients = jax.device_get(quick(jax.grad(loss))(params))
    # A key's bias adds the same to all logits of a query.
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(gradients)}
    still = [name for name, leaf in named.items() if not np.abs(leaf).max() > 1e-4]
    assert still == (["['key']['bias']"] if score == 'general' else [])


def test_a_location_beyond_the_table_is_not_a_number():
    config = LayerConfig(width=D, heads=H, score='location', location_length=4)
    module = nnx.merge(*drawn(lambda: Attention(config, rngs=nnx.Rngs(0))))
    assert np.isnan(quick(lambda: module(X, SEGMENTS, POSITIONS)[1])()).all()

"""Tests the attention sub-layer against a plain NumPy computation, and its use of segments, positions and dropout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import weights_with_options
from efficient_attention.attention.request import CallOptions
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.cross_attention import CrossAttention, cross_options, cross_rng
from efficient_attention.modules.layer_context import Context, EncodedSource, LayerMemory
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = LayerConfig(width=16, heads=4, init_std=0.3, attention_dropout_rate=0.5)
X = np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32)
SEGMENTS = jnp.asarray(np.ones((2, 6), np.int32))
POSITIONS = jnp.asarray(np.tile(np.arange(6, dtype=np.int32), (2, 1)))


def made(config: LayerConfig = CONFIG) -> Attention:
    return nnx.merge(*drawn(lambda: Attention(config, rngs=nnx.Rngs(1))))


def numbers(layer: nnx.Linear, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(layer.kernel[...], np.float64) + np.asarray(layer.bias[...], np.float64)


def test_equals_a_loop_over_heads():
    module = made()
    out = quick(lambda x: module(x, SEGMENTS, POSITIONS))(X)
    x = np.asarray(X, np.float64)
    q, k, v = (numbers(layer, x) for layer in (module.query, module.key, module.value))
    heads = []
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        logits = q[..., part] @ k[..., part].swapaxes(1, 2) / 2.0
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        heads.append(weights @ v[..., part])
    np.testing.assert_allclose(out, numbers(module.out, np.concatenate(heads, -1)), atol=1e-4)


@pytest.mark.parametrize('has_bias', [True, False])
def test_biases_of_all_projections_can_be_left_out(has_bias: bool):
    config = dataclasses.replace(CONFIG, attention_bias=has_bias, global_tokens=1)
    state = nnx.state(nnx.eval_shape(lambda: Attention(config, rngs=nnx.Rngs(1))))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
    assert sum('bias' in path for path in paths) == 7 * has_bias and sum('kernel' in path for path in paths) == 7


def test_rotary_attention_sees_distances_not_places():
    module = made(LayerConfig(width=16, heads=4, rotary=True, init_std=0.3))
    run = quick(lambda positions: module(jnp.asarray(X), SEGMENTS, positions))
    out = np.asarray(run(POSITIONS))
    assert_close(out, run(np.asarray(POSITIONS) + 11))
    assert np.abs(out - run(np.asarray(POSITIONS) * 2)).max() > 1e-3


def test_dropout_needs_a_key_and_follows_it():
    module = made()
    run = quick(lambda rng: module(jnp.asarray(X), SEGMENTS, POSITIONS, rng=rng))
    dropped = [np.asarray(run(jax.random.key(seed))) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert np.abs(dropped[0] - dropped[2]).max() > 1e-2
    assert np.abs(dropped[0] - run(None)).max() > 1e-2


def test_segments_do_not_read_one_another():
    module, segments = made(), jnp.asarray([[1, 1, 1, 2, 2, 0]] * 2)
    run = quick(lambda x: module(x, segments, POSITIONS)[:, :3])
    changed = np.concatenate([X[:, :3], X[:, 3:] + 1.0], axis=1)
    np.testing.assert_array_equal(run(X), run(changed))


def softmax_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Computes softmax(q k^T / sqrt(K)) v over allowed pairs in float64, for heads of width 4 of [L, 16]."""
    heads = []
    for part in (slice(start, start + 4) for start in range(0, 16, 4)):
        logits = np.where(allowed, q[:, part] @ k[:, part].T / 2.0, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
    return np.concatenate(heads, -1)


def test_shared_queries_and_keys_have_unit_keys():
    module = made(LayerConfig(width=16, heads=4, init_std=0.3, shared_qk=True))
    assert module.key is None
    x = np.asarray(X[0], np.float64)
    q, v = numbers(module.query, x), numbers(module.value, x)
    unit = q.reshape(6, 4, 4) / np.linalg.norm(q.reshape(6, 4, 4), axis=-1, keepdims=True)
    # The logits are q . k, not divided by 2.
    expected = softmax_rows(q, 2.0 * unit.reshape(6, 16), v, np.ones((6, 6), bool))
    out = quick(lambda x: module(x, SEGMENTS, POSITIONS)[0])(X)
    np.testing.assert_allclose(out, numbers(module.out, expected), atol=1e-4)


@pytest.mark.parametrize('rotary', [False, True])
def test_lsh_takes_the_module_s_one_projection(rotary: bool):
    config = LayerConfig(width=16, heads=4, init_std=0.3, shared_qk=True, rotary=rotary, attention='lsh(2, 2)')
    modules = [made(dataclasses.replace(config, attention_backend=backend)) for backend in ('auto', 'reference')]
    options = {'mechanism_rng': jax.random.key(3)}
    assert_close(*quick(lambda x: [module(x, SEGMENTS, POSITIONS, **options) for module in modules])(X))


def test_a_sort_has_noise_where_dropout_has_a_key_and_none_without():
    """Noise exists only in training; its key depends on (seed, step), the row and the layer."""
    fields = {'init_std': 0.3, 'attention': 'sinkhorn(2, 3)', 'attention_dropout_rate': 0.0}
    module, rngs = made(LayerConfig(width=16, heads=4, **fields)), jax.random.split(jax.random.key(3), 2)

    @quick
    def run(x: jax.Array, **keys: jax.Array) -> jax.Array:
        return module(x, SEGMENTS[: len(x)], POSITIONS[: len(x)], **keys)

    quiet, noisy, other = (np.asarray(run(X, **keys)) for keys in ({}, {'rng': rngs}, {'rng': rngs[::-1]}))
    assert_close(run(X, mechanism_rng=jax.random.key(3)), quiet)
    assert np.abs(noisy - quiet).max() > 1e-3
    assert_close(run(X[1:], rng=rngs[1:]), noisy[1:])
    assert np.abs(noisy - other).max() > 1e-3


def test_global_tokens_read_and_are_read_with_projections_of_their_own():
    config = LayerConfig(width=16, heads=4, init_std=0.3, attention='window(1)', global_tokens=2)
    module, is_global = made(config), np.tile(np.arange(6) == 3, (2, 1))
    out = quick(lambda x, is_global: module(x, SEGMENTS, POSITIONS, is_global_BL=is_global))(X, is_global)
    own = module.global_projections
    places = np.arange(6)
    near = (abs(places[:, None] - places) <= 1) | (places == 3)
    for row in range(2):
        x = np.asarray(X[row], np.float64)
        expected = softmax_rows(*(numbers(layer, x) for layer in (module.query, module.key, module.value)), near)
        whole = softmax_rows(*(numbers(layer, x) for layer in (own.query, own.key, own.value)), np.ones((6, 6), bool))
        expected[3] = whole[3]
        np.testing.assert_allclose(out[row], numbers(module.out, expected), atol=1e-4)


def test_a_bias_is_added_to_the_logits():
    module = made(LayerConfig(width=16, heads=4, init_std=0.3))
    slopes = np.float32([0.5, 0.25, 0.125, 0.0625])

    def alibi(query: jax.Array, key: jax.Array) -> jax.Array:
        return -slopes[None, :, None, None] * abs(query - key).astype(jnp.float32)

    places = np.arange(6)
    array = (-slopes[:, None, None] * abs(places[:, None] - places)).astype(np.float32)[None]

    @quick
    def all_ways(x: jax.Array) -> list:
        return [module.run(x, Context(SEGMENTS, POSITIONS, bias=bias))[0] for bias in (None, alibi, jnp.asarray(array))]

    plain, biased, by_array = jax.device_get(all_ways(X))
    assert_close(biased, by_array)
    assert np.abs(biased - plain).max() > 1e-3
    x = np.asarray(X[0], np.float64)
    q, k, v = (numbers(layer, x) for layer in (module.query, module.key, module.value))
    heads = []
    for head, part in enumerate(slice(start, start + 4) for start in range(0, 16, 4)):
        weights = np.exp(q[:, part] @ k[:, part].T / 2.0 + np.asarray(array[0, head], np.float64))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
    np.testing.assert_allclose(biased[0], numbers(module.out, np.concatenate(heads, -1)), atol=1e-4)


def test_a_bias_and_global_tokens_are_refused_together():
    config = LayerConfig(width=16, heads=4, attention='window(1)', global_tokens=2)
    module = made(config)
    with pytest.raises(ValueError, match='is_global and bias do not go together'):
        module.run(jnp.asarray(X), Context(SEGMENTS, POSITIONS, is_global_BL=SEGMENTS > 1, bias=jnp.zeros((6, 6))))


# ---- cross-attention ----

OTHER = EncodedSource(
    jnp.asarray(np.random.default_rng(4).normal(size=(2, 5, 16)), jnp.float32),
    jnp.asarray([[1, 1, 2, 2, 0], [1] * 5]),
    jnp.asarray([[0, 1, 0, 1, 0], [*range(5)]]),
)
READER = Context(
    jnp.asarray([[1, 1, 1, 2, 2, 0], [1] * 6]),
    jnp.asarray([[0, 1, 2, 0, 1, 0], [*range(6)]]),
    mechanism_rng=jax.random.key(9),
    other=OTHER,
)
BACKENDS = {'full': 'auto', 'window(1)': 'blocked', 'per_head(full, window(1))': 'auto', 'linear': 'auto'}
BACKENDS['favor(8, orthogonal=False)'] = 'auto'


@pytest.mark.parametrize('text', BACKENDS)
def test_cross_attention_is_its_definition_forward_and_gradient(text: str):
    """The rows are packed, and windows depend on the positions of both texts; the definition has dense weights."""
    config = LayerConfig(width=16, heads=2, cross_attention=text, attention_dropout_rate=0.0, scaled_logits=False)

    def output(states: jax.Array, params: dict, backend: str) -> tuple[jax.Array, jax.Array]:
        changed = dataclasses.replace(config, attention_backend=backend)
        graph, _ = nnx.split(nnx.eval_shape(lambda: CrossAttention(changed, rngs=nnx.Rngs(0))))
        out, _ = nnx.merge(graph, params).run(jnp.asarray(X), READER._replace(other=OTHER._replace(states_BMD=states)))
        return jnp.sin(out).sum(), out

    params = drawn(lambda: CrossAttention(config, rngs=nnx.Rngs(0)))[1]
    both = jax.jit(
        lambda: [
            jax.grad(output, argnums=(0, 1), has_aux=True)(OTHER.states_BMD, params, backend)
            for backend in (BACKENDS[text], 'reference')
        ]
    )
    found, expected = both()
    assert_close(found, expected, gradient=True)
    assert not found[0][0][0, 4].any()  # This position is padding.


def test_cross_attention_reads_by_the_weights_of_its_queries_and_keys():
    config = LayerConfig(width=16, heads=2, cross_attention='window(1)', attention_dropout_rate=0.0)
    module = nnx.merge(*drawn(lambda: CrossAttention(config, rngs=nnx.Rngs(0))))
    options = cross_options(config.cross_mechanism, READER, CallOptions())

    @quick
    def both_ways(x: jax.Array) -> tuple:
        out, (query, key, *_) = module.run(x, READER)
        weights = weights_with_options(query, key, config.cross_mechanism, options)
        mixed = jnp.einsum('BHLM,BMHK->BLHK', weights, module.project_source(OTHER).value)
        return weights, out, module.merge_and_project_heads(mixed)

    weights, out, expected = jax.device_get(both_ways(X))
    assert_close(out, expected)
    is_far = np.abs(np.asarray(READER.positions_BL)[:, :, None] - np.asarray(OTHER.positions_BM)[:, None]) > 1
    assert not weights[np.broadcast_to(is_far[:, None], weights.shape)].any()


def test_dropout_of_cross_attention_has_a_key_apart_from_what_its_mechanism_draws():
    module = nnx.merge(*drawn(lambda: CrossAttention(CONFIG, rngs=nnx.Rngs(0))))
    run = quick(lambda **keys: module.run(jnp.asarray(X), READER._replace(**keys))[0])
    one, two, three, its_own = (jax.random.key(seed) for seed in (1, 2, 3, 9))
    dropped = np.asarray(run(rng=one, mechanism_rng=its_own))
    np.testing.assert_array_equal(run(rng=one, mechanism_rng=two), dropped)
    np.testing.assert_array_equal(run(rng=one, mechanism_rng=None), dropped)
    assert np.abs(run(rng=three, mechanism_rng=its_own) - dropped).max() > 1e-2
    data = [np.asarray(jax.random.key_data(rng)) for rng in (cross_rng(READER.mechanism_rng), READER.mechanism_rng)]
    assert (data[0] != data[1]).any()
    assert cross_rng(None) is None


def test_a_call_is_the_output_of_run_for_every_field_of_the_context():
    module, rng = made(LayerConfig(width=16, heads=4, init_std=0.3)), np.random.default_rng(5)
    memory, bias = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 3, 16), (6, 9)))
    options = {'bias': bias, 'memory': LayerMemory(memory, jnp.ones((2, 3), jnp.int32)), 'state_rng': None}

    @quick
    def all_ways(x: jax.Array) -> tuple:
        by_run = module.run(x, Context(SEGMENTS, POSITIONS, **options))[0]
        return module(x, SEGMENTS, POSITIONS, **options), by_run, module(x, SEGMENTS, POSITIONS)

    found, expected, plain = jax.device_get(all_ways(X))
    np.testing.assert_array_equal(found, expected)
    assert np.abs(plain - expected).max() > 1e-2
    cross = nnx.merge(*drawn(lambda: CrossAttention(CONFIG, rngs=nnx.Rngs(0))))

    @quick
    def both_ways(x: jax.Array) -> tuple:
        keywords = {'mechanism_rng': READER.mechanism_rng, 'other': OTHER}
        return cross(x, READER.segments_BL, READER.positions_BL, **keywords), cross.run(x, READER)[0]

    np.testing.assert_array_equal(*both_ways(X))

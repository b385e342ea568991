"""The attention sub-layer against a plain NumPy computation, and its use of segments, positions and dropout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import weights_with
from efficient_attention.attention.request import CallOptions
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.context import Context, LayerMemory, OtherSequence
from efficient_attention.modules.cross_attention import CrossAttention, cross_options, cross_rng
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = LayerConfig(width=16, heads=4, init_std=0.3, attention_dropout_rate=0.5)
X = jax.random.normal(jax.random.key(0), (2, 6, 16))
SEGMENTS = jnp.ones((2, 6), jnp.int32)
POSITIONS = jnp.tile(jnp.arange(6)[None], (2, 1))


def test_equals_a_loop_over_heads():
    module = Attention(CONFIG, rngs=nnx.Rngs(1))
    out = module(X, SEGMENTS, POSITIONS)
    x = np.asarray(X, np.float64)
    q, k, v = (x @ np.asarray(layer.kernel[...], np.float64) for layer in (module.query, module.key, module.value))
    heads = []
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        logits = q[..., part] @ k[..., part].swapaxes(1, 2) / 2.0
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        heads.append(weights @ v[..., part])
    np.testing.assert_allclose(
        out, np.concatenate(heads, -1) @ np.asarray(module.out.kernel[...], np.float64), atol=1e-4
    )


@pytest.mark.parametrize('has_bias', [True, False])
def test_biases_of_all_projections_can_be_left_out(has_bias: bool):
    config = dataclasses.replace(CONFIG, attention_bias=has_bias, global_tokens=1)
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree.leaves_with_path(nnx.state(Attention(config, rngs=nnx.Rngs(1))))
    ]
    assert sum('bias' in path for path in paths) == 7 * has_bias and sum('kernel' in path for path in paths) == 7


def test_rotary_attention_sees_distances_not_places():
    module = Attention(LayerConfig(width=16, heads=4, rotary=True, init_std=0.3), rngs=nnx.Rngs(1))
    assert_close(module(X, SEGMENTS, POSITIONS), module(X, SEGMENTS, POSITIONS + 11))
    assert jnp.abs(module(X, SEGMENTS, POSITIONS) - module(X, SEGMENTS, POSITIONS * 2)).max() > 1e-3


def test_dropout_needs_a_key_and_follows_it():
    module = Attention(CONFIG, rngs=nnx.Rngs(1))
    dropped = [module(X, SEGMENTS, POSITIONS, rng=jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert jnp.abs(dropped[0] - dropped[2]).max() > 1e-2
    assert jnp.abs(dropped[0] - module(X, SEGMENTS, POSITIONS)).max() > 1e-2


def test_segments_do_not_read_one_another():
    module = Attention(CONFIG, rngs=nnx.Rngs(1))
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0]] * 2)
    changed = X.at[:, 3:].add(1.0)
    np.testing.assert_array_equal(module(X, segments, POSITIONS)[:, :3], module(changed, segments, POSITIONS)[:, :3])


def softmax_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(K)) v over allowed pairs, heads of width 4 of [L, 16], in float64."""
    heads = []
    for part in (slice(start, start + 4) for start in range(0, 16, 4)):
        logits = np.where(allowed, q[:, part] @ k[:, part].T / 2.0, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
    return np.concatenate(heads, -1)


def numbers(layer: nnx.Linear, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(layer.kernel[...], np.float64)


def test_shared_queries_and_keys_have_unit_keys():
    module = Attention(LayerConfig(width=16, heads=4, init_std=0.3, shared_qk=True), rngs=nnx.Rngs(1))
    assert module.key is None
    x = np.asarray(X[0], np.float64)
    q, v = numbers(module.query, x), numbers(module.value, x)
    unit = q.reshape(6, 4, 4) / np.linalg.norm(q.reshape(6, 4, 4), axis=-1, keepdims=True)
    expected = softmax_rows(q, 2.0 * unit.reshape(6, 16), v, np.ones((6, 6), bool))  # logits q . k, not divided by 2
    out = module(X, SEGMENTS, POSITIONS)[0]
    np.testing.assert_allclose(out, numbers(module.out, expected), atol=1e-4)


@pytest.mark.parametrize('rotary', [False, True])
def test_lsh_takes_the_module_s_one_projection(rotary: bool):
    config = LayerConfig(width=16, heads=4, init_std=0.3, shared_qk=True, rotary=rotary, attention='lsh(2, 2)')
    outs = []
    for backend in ('auto', 'reference'):
        module = Attention(dataclasses.replace(config, attention_backend=backend), rngs=nnx.Rngs(1))
        outs.append(module(X, SEGMENTS, POSITIONS, mechanism_rng=jax.random.key(3)))
    assert_close(*outs)


def test_a_sort_has_noise_where_dropout_has_a_key_and_none_without():
    """So in training alone, from the key of (seed, step), of the row and of the layer."""
    fields = {'init_std': 0.3, 'attention': 'sinkhorn(2, 3)', 'attention_dropout_rate': 0.0}
    module = Attention(LayerConfig(width=16, heads=4, **fields), rngs=nnx.Rngs(1))
    quiet, rngs = module(X, SEGMENTS, POSITIONS), jax.random.split(jax.random.key(3), 2)
    noisy = module(X, SEGMENTS, POSITIONS, rng=rngs)
    assert_close(module(X, SEGMENTS, POSITIONS, mechanism_rng=jax.random.key(3)), quiet)
    assert jnp.abs(noisy - quiet).max() > 1e-3
    alone = module(X[1:], SEGMENTS[1:], POSITIONS[1:], rng=rngs[1:])
    assert_close(alone, noisy[1:])
    other = module(X, SEGMENTS, POSITIONS, rng=rngs[::-1])
    assert jnp.abs(noisy - other).max() > 1e-3


def test_global_tokens_read_and_are_read_with_projections_of_their_own():
    config = LayerConfig(width=16, heads=4, init_std=0.3, attention='window(1)', global_tokens=2)
    module = Attention(config, rngs=nnx.Rngs(1))
    is_global = jnp.zeros((2, 6), bool).at[:, 3].set(True)
    out = module(X, SEGMENTS, POSITIONS, is_global_BL=is_global)
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
    module = Attention(LayerConfig(width=16, heads=4, init_std=0.3), rngs=nnx.Rngs(1))
    slopes = 2.0 ** -jnp.arange(1.0, 5.0)

    def alibi(query: jax.Array, key: jax.Array) -> jax.Array:
        return -slopes[None, :, None, None] * abs(query - key).astype(jnp.float32)

    places = jnp.arange(6)
    array = alibi(places[None, None, :, None], places[None, None, None, :])
    plain, biased = (module.run(X, Context(SEGMENTS, POSITIONS, bias=bias))[0] for bias in (None, alibi))
    assert_close(biased, module.run(X, Context(SEGMENTS, POSITIONS, bias=array))[0])
    assert jnp.abs(biased - plain).max() > 1e-3
    x = np.asarray(X[0], np.float64)
    q, k, v = (numbers(layer, x) for layer in (module.query, module.key, module.value))
    heads = []
    for head, part in enumerate(slice(start, start + 4) for start in range(0, 16, 4)):
        weights = np.exp(q[:, part] @ k[:, part].T / 2.0 + np.asarray(array[0, head], np.float64))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
    np.testing.assert_allclose(biased[0], numbers(module.out, np.concatenate(heads, -1)), atol=1e-4)


def test_a_bias_and_global_tokens_are_refused_together():
    config = LayerConfig(width=16, heads=4, attention='window(1)', global_tokens=2)
    module = Attention(config, rngs=nnx.Rngs(1))
    with pytest.raises(ValueError, match='is_global and bias do not go together'):
        module.run(X, Context(SEGMENTS, POSITIONS, is_global_BL=SEGMENTS > 1, bias=jnp.zeros((6, 6))))


# ---- cross-attention ----

OTHER = OtherSequence(
    jax.random.normal(jax.random.key(4), (2, 5, 16)),
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
    """For packed texts, in which windows go by the positions of both; the weights are dense ones."""
    config = LayerConfig(width=16, heads=2, cross_attention=text, attention_dropout_rate=0.0, scaled_logits=False)

    def output(states: jax.Array, params: dict, backend: str) -> tuple[jax.Array, jax.Array]:
        changed = dataclasses.replace(config, attention_backend=backend)
        graph, _ = nnx.split(nnx.eval_shape(lambda: CrossAttention(changed, rngs=nnx.Rngs(0))))
        out, _ = nnx.merge(graph, params).run(X, READER._replace(other=OTHER._replace(states_BMD=states)))
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
    assert not found[0][0][0, 4].any()  # the padding


def test_cross_attention_reads_by_the_weights_of_its_queries_and_keys():
    config = LayerConfig(width=16, heads=2, cross_attention='window(1)', attention_dropout_rate=0.0)
    module = nnx.merge(*drawn(lambda: CrossAttention(config, rngs=nnx.Rngs(0))))
    out, (query, key, *_) = module.run(X, READER)
    options = cross_options(config.cross_mechanism, READER, CallOptions())
    weights = weights_with(query, key, config.cross_mechanism, options)
    value = module.keys(OTHER).value
    assert_close(out, module.join_heads(jnp.einsum('BHLM,BMHK->BLHK', weights, value)))
    is_far = jnp.abs(READER.positions_BL[:, :, None] - OTHER.positions_BM[:, None]) > 1
    assert not weights[jnp.broadcast_to(is_far[:, None], weights.shape)].any()


def test_dropout_of_cross_attention_has_a_key_apart_from_what_its_mechanism_draws():
    module = nnx.merge(*drawn(lambda: CrossAttention(CONFIG, rngs=nnx.Rngs(0))))
    context = READER._replace(rng=jax.random.key(1))
    dropped = module.run(X, context)[0]
    others = {'mechanism_rng': jax.random.key(2)}, {'mechanism_rng': None}
    assert all((module.run(X, context._replace(**other))[0] == dropped).all() for other in others)
    assert jnp.abs(module.run(X, context._replace(rng=jax.random.key(3)))[0] - dropped).max() > 1e-2
    assert (jax.random.key_data(cross_rng(READER.mechanism_rng)) != jax.random.key_data(READER.mechanism_rng)).any()
    assert cross_rng(None) is None


def test_a_call_is_the_output_of_run_for_every_field_of_the_context():
    module = Attention(LayerConfig(width=16, heads=4, init_std=0.3), rngs=nnx.Rngs(1))
    memory = LayerMemory(jax.random.normal(jax.random.key(5), (2, 3, 16)), jnp.ones((2, 3), jnp.int32))
    options = {'bias': jax.random.normal(jax.random.key(6), (6, 9)), 'memory': memory, 'state_rng': None}
    expected = module.run(X, Context(SEGMENTS, POSITIONS, **options))[0]
    np.testing.assert_array_equal(module(X, SEGMENTS, POSITIONS, **options), expected)
    assert jnp.abs(module(X, SEGMENTS, POSITIONS) - expected).max() > 1e-2
    cross = nnx.merge(*drawn(lambda: CrossAttention(CONFIG, rngs=nnx.Rngs(0))))
    found = cross(X, READER.segments_BL, READER.positions_BL, mechanism_rng=READER.mechanism_rng, other=OTHER)
    np.testing.assert_array_equal(found, cross.run(X, READER)[0])

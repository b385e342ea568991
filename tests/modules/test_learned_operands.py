"""Tests learned operands: of one layer or a whole stack, with the same results as `attend` called with them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import attend
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.encoder import Encoder
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.cross_attention import CrossAttention
from efficient_attention.modules.layer_context import Context, EncodedSource
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=11, layers=2, max_length=12, token_types=0, attention='linformer(3, 12, tied=False)',
    dropout_rate=0.0, attention_dropout_rate=0.0, init_std=0.3,
)  # fmt: skip
TOKENS = jnp.asarray(np.arange(20).reshape(2, 10) % 11, jnp.int32)
SEGMENTS = jnp.asarray([[1] * 10, [1] * 6 + [0] * 4])


def made(text: str, **fields: object) -> Encoder:
    return Encoder(dataclasses.replace(CONFIG, attention=text, **fields), rngs=nnx.Rngs(0))


def shaped(text: str, **fields: object) -> Encoder:
    return nnx.eval_shape(lambda: made(text, **fields))


def learned_paths(module: nnx.Module) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(module)))
    paths = {jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape for path, leaf in leaves}
    return {path: shape for path, shape in paths.items() if '/learned/' in path}


def test_a_layer_or_a_stack_has_what_is_declared_and_nothing_else_has():
    assert learned_paths(shaped('linformer(3, 12, tied=False)')) == {
        'stack/layers/attention/learned/keys': (2, 1, 3, 12),
        'stack/layers/attention/learned/values': (2, 1, 3, 12),
    }
    assert learned_paths(shaped('linformer(3, 12, by_layer=False)')) == {'stack/learned/keys': (1, 3, 12)}
    assert learned_paths(shaped('induced(5)', sharing='all')) == {'stack/layers/attention/learned/points': (2, 5, 8)}
    assert learned_paths(shaped('nystrom(4, 6, 3)')) == {'stack/layers/attention/learned/convolution': (2, 2, 3)}
    assert learned_paths(shaped('sinkhorn(4, 3)')) == {'stack/layers/attention/learned/sort': (2, 2, 8, 3)}
    routed = shaped('routing(4, 3, local_heads=1)')
    path = 'stack/layers/attention/learned/running_means/centroids'
    assert learned_paths(routed) == {path: (2, 1, 4, 9)}
    table = shaped("synthesizer('random', 12)")
    assert learned_paths(table) == {'stack/layers/attention/learned/table': (2, 2, 12, 12)}
    assert table.stack.layers.attention.query is table.stack.layers.attention.key is None
    dense = shaped("synthesizer('dense', 12)").stack.layers.attention
    assert dense.query is not None and dense.key is None
    assert not learned_paths(shaped('full')) and not learned_paths(shaped('nystrom(4)'))


def test_centroids_begin_as_unit_vectors_of_each_layer():
    centroids = jax.jit(lambda: made('routing(4, 3, local_heads=1)').stack.layers.attention.learned()['centroids'])
    points = np.asarray(centroids())
    np.testing.assert_allclose(np.linalg.norm(points[..., :-1], axis=-1), 1.0, rtol=1e-6)
    assert not points[..., -1].any() and np.abs(points[0] - points[1]).max() > 0.1


@pytest.mark.parametrize(
    'text, fields',
    [
        ('linformer(3, 12, by_layer=False)', {}),
        ('linformer(3, 12, by_layer=False)', {'remat': 'full'}),
        ('induced(5)', {'stack': 'reversible', 'norm': 'pre'}),
        ("synthesizer('random', 12)", {}),
        ('sinkhorn(3, 4, cut=2)', {'remat': 'full'}),
        ('linformer(3, 12, by_layer=False)', {'stack': 'reversible', 'norm': 'pre'}),
    ],
    ids=str,
)
def test_every_stack_gives_the_arrays_their_gradient(text: str, fields: dict):
    """Compares with finite differences, where layers are recomputed or inverted, and where all layers share an
    array.
    """
    graph, params = drawn(lambda: made(text, **fields), std=0.5)

    @quick
    @jax.value_and_grad
    def loss(params: dict) -> jax.Array:
        out = nnx.merge(graph, params)(TOKENS, SEGMENTS)
        return (out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)).sum()

    (learned,) = (path for path in jax.tree_util.tree_leaves_with_path(params) if 'learned' in str(path[0]))
    gradient = loss(params)[1]
    direction = np.random.default_rng(1).normal(size=learned[1].shape).astype(np.float32)

    def moved(step: float) -> float:
        def change(path: tuple, leaf: jax.Array) -> jax.Array | np.ndarray:
            return np.asarray(leaf) + np.float32(step) * direction if path == learned[0] else leaf

        return float(loss(jax.tree_util.tree_map_with_path(change, params))[0])

    (found,) = (leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradient) if path == learned[0])
    expected = (moved(4e-3) - moved(-4e-3)) / 8e-3
    assert abs(expected) > 1e-2
    np.testing.assert_allclose((np.asarray(found) * direction).sum(), expected, rtol=2e-2)


def test_attention_gives_attend_its_arrays_and_reads_another_sequence_by_them():
    config = dataclasses.replace(CONFIG, cross_attention='linformer(3, 12)')
    rng, mechanism = np.random.default_rng(0), config.mechanisms[0]
    x, states = (rng.normal(size=(2, length, 16)).astype(np.float32) for length in (10, 7))
    module = nnx.merge(*drawn(lambda: Attention(config, rngs=nnx.Rngs(0))))
    cross = nnx.merge(*drawn(lambda: CrossAttention(config, rngs=nnx.Rngs(1))))
    assert set(cross.learned()) == {'keys'}
    context = Context(SEGMENTS, jnp.asarray(np.tile(np.arange(10, dtype=np.int32), (2, 1))))

    @quick
    def own_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, operands = module.run(x, context)
        arrays = operands.query_BLHK, operands.key_BMHK, operands.value_BMHK
        rows = {'query_segments': SEGMENTS, 'key_segments': SEGMENTS}
        return out, module.merge_and_project_heads(attend(*arrays, mechanism, learned=module.learned(), **rows))

    assert_close(*own_ways(x))

    @quick
    def cross_ways(x: jax.Array, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        other = EncodedSource(states, jnp.ones((2, 7), jnp.int32))
        at_once, _ = cross.run(x, context._replace(other=other))
        return at_once, cross.run_with_cache(x, context, cross.source_keys_for_decoding(other))[0]

    at_once, fixed = jax.device_get(cross_ways(x, states))
    assert_close(at_once, fixed)
    assert at_once.any()


def test_what_cannot_be_learned_so_is_one_line():
    with pytest.raises(InputError, match='linformer learns arrays, and layers that alternate between mechanisms'):
        dataclasses.replace(CONFIG, attention='linformer(3, 12);full')
    for field, value in (('rotary', True), ('shared_qk', True), ('score', 'additive'), ('relative', 'transformer_xl')):
        with pytest.raises(InputError, match=f'model.{field} is .*compares no queries with keys'):
            dataclasses.replace(CONFIG, attention="synthesizer('random', 12)", **{field: value})
    with pytest.raises(InputError, match='nystrom.3.. mixes queries in its landmarks, so a decoder'):
        dataclasses.replace(CONFIG, cross_attention='nystrom(3)')
    with pytest.raises(InputError, match='sinkhorn.3, 4.. needs queries and keys in one row'):
        dataclasses.replace(CONFIG, cross_attention='sinkhorn(3, 4)')
    with pytest.raises(InputError, match='routing.3, 4.. needs queries and keys in one row'):
        dataclasses.replace(CONFIG, cross_attention='routing(3, 4)')
    with pytest.raises(InputError, match='routing local_heads is 2; it must be below 2, the heads'):
        dataclasses.replace(CONFIG, attention='routing(3, 4, local_heads=2)')
    with pytest.raises(InputError, match='arrays that all layers share work only in model.attention'):
        dataclasses.replace(CONFIG, cross_attention='linformer(3, 12, by_layer=False)')

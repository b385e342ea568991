"""Arrays that mechanisms learn: of a layer, or of a whole stack, and the same results as `attend` with them."""

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
from efficient_attention.modules.context import Context, OtherSequence
from efficient_attention.modules.cross_attention import CrossAttention
from tests.tolerances import assert_close

CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=11, layers=2, max_length=12, token_types=0, attention='linformer(3, 12, tied=False)',
    dropout_rate=0.0, attention_dropout_rate=0.0, init_std=0.3,
)  # fmt: skip
TOKENS = jnp.asarray(np.arange(20).reshape(2, 10) % 11, jnp.int32)
SEGMENTS = jnp.asarray([[1] * 10, [1] * 6 + [0] * 4])


def made(text: str, **fields: object) -> Encoder:
    return Encoder(dataclasses.replace(CONFIG, attention=text, **fields), rngs=nnx.Rngs(0))


def learned_paths(module: nnx.Module) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(module)))
    paths = {jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape for path, leaf in leaves}
    return {path: shape for path, shape in paths.items() if '/learned/' in path}


def test_a_layer_or_a_stack_has_what_is_declared_and_nothing_else_has():
    assert learned_paths(made('linformer(3, 12, tied=False)')) == {
        'stack/layers/attention/learned/keys': (2, 1, 3, 12),
        'stack/layers/attention/learned/values': (2, 1, 3, 12),
    }
    assert learned_paths(made('linformer(3, 12, by_layer=False)')) == {'stack/learned/keys': (1, 3, 12)}
    assert learned_paths(made('induced(5)', sharing='all')) == {'stack/layers/attention/learned/points': (2, 5, 8)}
    assert learned_paths(made('nystrom(4, 6, 3)')) == {'stack/layers/attention/learned/convolution': (2, 2, 3)}
    assert learned_paths(made('sinkhorn(4, 3)')) == {'stack/layers/attention/learned/sort': (2, 2, 8, 3)}
    routed = made('routing(4, 3, local_heads=1)')
    path = 'stack/layers/attention/learned/running_means/centroids'
    assert learned_paths(routed) == {path: (2, 1, 4, 9)}
    points = routed.stack.layers.attention.learned()['centroids']
    np.testing.assert_allclose(jnp.linalg.norm(points[..., :-1], axis=-1), 1.0, rtol=1e-6)
    assert not points[..., -1].any() and jnp.abs(points[0] - points[1]).max() > 0.1
    table = made("synthesizer('random', 12)")
    assert learned_paths(table) == {'stack/layers/attention/learned/table': (2, 2, 12, 12)}
    assert table.stack.layers.attention.query is table.stack.layers.attention.key is None
    dense = made("synthesizer('dense', 12)").stack.layers.attention
    assert dense.query is not None and dense.key is None
    assert not learned_paths(made('full')) and not learned_paths(made('nystrom(4)'))


@pytest.mark.parametrize(
    'text, fields',
    [
        ('linformer(3, 12, by_layer=False)', {}),
        ('linformer(3, 12, by_layer=False)', {'remat': 'full'}),
        ('induced(5)', {'stack': 'reversible', 'norm': 'pre'}),
        ("synthesizer('random', 12)", {}),
        ('sinkhorn(3, 4)', {}),
        ('sinkhorn(3, 4)', {'stack': 'reversible', 'norm': 'pre'}),
        ('sinkhorn(3, 4, cut=2)', {'remat': 'full'}),
        ('sinkhorn(3, 4, causal=True)', {}),
        ('linformer(3, 12, by_layer=False)', {'stack': 'reversible', 'norm': 'pre'}),
    ],
    ids=str,
)
def test_every_stack_gives_the_arrays_their_gradient(text: str, fields: dict):
    """By finite differences, where layers are computed again or inverted, and where all share an array."""
    graph, state = nnx.split(made(text, **fields))
    params = nnx.to_pure_dict(state)

    @jax.jit
    def loss(params: dict) -> jax.Array:
        out = nnx.merge(graph, params)(TOKENS, SEGMENTS)
        return (out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)).sum()

    (learned,) = (path for path in jax.tree_util.tree_leaves_with_path(params) if 'learned' in str(path[0]))
    gradient = jax.jit(jax.grad(loss))(params)
    direction = jax.random.normal(jax.random.key(1), learned[1].shape)

    def moved(step: float) -> jax.Array:
        def change(path: tuple, leaf: jax.Array) -> jax.Array:
            return leaf + step * direction if path == learned[0] else leaf

        return loss(jax.tree_util.tree_map_with_path(change, params))

    (found,) = (leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradient) if path == learned[0])
    expected = (moved(1e-2) - moved(-1e-2)) / 2e-2
    assert abs(float(expected)) > 1e-2
    np.testing.assert_allclose((found * direction).sum(), expected, rtol=2e-2)


def test_attention_gives_attend_its_arrays_and_reads_another_sequence_by_them():
    config = dataclasses.replace(CONFIG, cross_attention='linformer(3, 12)')
    x = jax.random.normal(jax.random.key(0), (2, 10, 16))
    module = Attention(config, rngs=nnx.Rngs(0))
    positions = jnp.broadcast_to(jnp.arange(10), (2, 10))
    out, operands = module.run(x, Context(SEGMENTS, positions))
    mechanism = config.mechanisms[0]
    given = attend(
        operands.query_BLHK, operands.key_BMHK, operands.value_BMHK, mechanism, learned=module.learned(),
        query_segments=SEGMENTS, key_segments=SEGMENTS,
    )  # fmt: skip
    assert_close(out, module.join_heads(given))
    cross = CrossAttention(config, rngs=nnx.Rngs(1))
    assert set(cross.learned()) == {'keys'}
    other = OtherSequence(jax.random.normal(jax.random.key(2), (2, 7, 16)), jnp.ones((2, 7), jnp.int32))
    at_once, _ = cross.run(x, Context(SEGMENTS, positions, other=other))
    fixed, _ = cross.go_on(x, Context(SEGMENTS, positions), cross.fixed_keys(other))
    assert_close(at_once, fixed)
    assert at_once.any()


def test_what_cannot_be_learned_so_is_one_line():
    with pytest.raises(InputError, match='linformer learns arrays of its own, and layers that take mechanisms in turn'):
        dataclasses.replace(CONFIG, attention='linformer(3, 12);full')
    for field, value in (('rotary', True), ('shared_qk', True), ('score', 'additive'), ('relative', 'transformer_xl')):
        with pytest.raises(InputError, match=f'model.{field} is .*compares no queries with keys'):
            dataclasses.replace(CONFIG, attention="synthesizer('random', 12)", **{field: value})
    with pytest.raises(InputError, match='nystrom.3.. mixes queries in its landmarks, by which'):
        dataclasses.replace(CONFIG, cross_attention='nystrom(3)')
    with pytest.raises(InputError, match='sinkhorn.3, 4.. needs queries and keys in one row'):
        dataclasses.replace(CONFIG, cross_attention='sinkhorn(3, 4)')
    with pytest.raises(InputError, match='routing.3, 4.. needs queries and keys in one row'):
        dataclasses.replace(CONFIG, cross_attention='routing(3, 4)')
    with pytest.raises(InputError, match='routing local_heads is 2; it must be below 2, the heads'):
        dataclasses.replace(CONFIG, attention='routing(3, 4, local_heads=2)')
    with pytest.raises(InputError, match='arrays that all layers share are served in model.attention alone'):
        dataclasses.replace(CONFIG, cross_attention='linformer(3, 12, by_layer=False)')

"""The recurrent sub-layer: its cells with its own arrays, both directions, dropout of the state, and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.context import Context
from efficient_attention.modules.layer import Layer
from efficient_attention.modules.recurrent import Recurrent
from efficient_attention.recurrence.recur import recur
from tests.tolerances import assert_close

X = jax.random.normal(jax.random.key(0), (2, 7, 8))
SEGMENTS = jnp.asarray([[1, 1, 1, 2, 2, 2, 0], [1] * 7])


def make(**fields: object) -> Recurrent:
    return Recurrent(LayerConfig(width=8, init_std=0.5, **fields), rngs=nnx.Rngs(0))


@pytest.mark.parametrize('name', ['gru', 'sru2'])
def test_each_direction_has_half_of_the_units_and_arrays_of_its_own(name: str):
    module = make(cell=name, bidirectional=True)
    ahead, back = module.forward.learned(), module.backward.learned()
    assert ahead.units == back.units == 4 and jnp.abs(ahead.operands['input'] - back.operands['input']).max() > 0.1
    expected = [recur(ahead, X, SEGMENTS)[0], recur(back, X, SEGMENTS, is_reversed=True)[0]]
    assert_close(module(X, SEGMENTS), jnp.concatenate(expected, axis=-1))
    assert_close(make(cell=name)(X, SEGMENTS), recur(make(cell=name).forward.learned(), X, SEGMENTS)[0])


def test_states_of_another_width_are_mapped_to_the_layer_s():
    module = make(cell='gru', bidirectional=True, state_width=8)
    outs = [
        recur(cell.learned(), X, SEGMENTS, is_reversed=number == 1)[0]
        for number, cell in enumerate((module.forward, module.backward))
    ]
    assert_close(module(X, SEGMENTS), module.out(jnp.concatenate(outs, axis=-1)))
    assert module.out.bias is None and make(cell='gru', state_width=8).out is None


def test_initial_values_follow_the_config():
    narrow, wide = make(cell='lstm'), LayerConfig(width=8, cell='lstm', kernel_init='fan_in')
    assert jnp.abs(narrow.forward.input[...]).max() <= 2 * 0.5 and not narrow.forward.bias[...].any()
    by_inputs = Recurrent(wide, rngs=nnx.Rngs(0)).forward.recurrent[...]
    assert jnp.std(by_inputs) == pytest.approx(8**-0.5, rel=0.2)


def test_dropout_of_the_state_is_one_mask_for_all_positions_of_a_row():
    """Of a row whose mask drops a unit, that unit's row of the recurrent matrix is not read at any position."""
    module, rng = make(cell='tanh', state_dropout_rate=0.5), jax.random.key(3)
    mask_BU = module.state_mask(2, jax.random.fold_in(rng, 0))
    assert set(np.unique(mask_BU)) == {0.0, 2.0} and (mask_BU[0] != mask_BU[1]).any()
    learned = module.forward.learned()
    for row in range(2):
        masked = {'recurrent': mask_BU[row][:, None] * learned.operands['recurrent']}
        alone = recur(learned._replace(operands=learned.operands | masked), X[row : row + 1])[0]
        assert_close(module(X, jnp.ones_like(SEGMENTS), rng=rng)[row : row + 1], alone)
    assert_close(module(X, SEGMENTS), make(cell='tanh')(X, SEGMENTS))


def test_tokens_go_on_from_a_state():
    module = make(cell='lstm')
    out, state = module.go_on(X[:, :4], Context(SEGMENTS[:, :4], SEGMENTS[:, :4]), module.empty_state(2))
    rest, _ = module.go_on(X[:, 4:], Context(SEGMENTS[:, 4:], SEGMENTS[:, 4:]), state)
    assert_close(jnp.concatenate([out, rest], axis=1), module(X, SEGMENTS))


def test_a_call_takes_the_fields_of_a_context():
    module = make(cell='gru')
    _, state = module.go_on(X[:, :4], Context(SEGMENTS[:, :4], SEGMENTS[:, :4]), module.empty_state(2))
    assert_close(module(X[:, 4:], SEGMENTS[:, 4:], memory=(state,)), module(X, SEGMENTS)[:, 4:])
    product_BLX = module.input_product(X)
    assert_close(module(X, SEGMENTS, product_BLX=product_BLX), module(X, SEGMENTS))
    assert jnp.abs(module(X, SEGMENTS, product_BLX=2 * product_BLX) - module(X, SEGMENTS)).max() > 1e-2


def test_memory_grows_with_the_length_and_chunks_keep_less_than_a_third():
    def temporary_bytes(length: int, chunk: int) -> int:
        config = LayerConfig(width=64, cell='lstm', recurrent_chunk=chunk)

        def loss(x: jax.Array) -> jax.Array:
            return Recurrent(config, rngs=nnx.Rngs(0))(x, jnp.ones(x.shape[:2], jnp.int32)).sum()

        x = jax.ShapeDtypeStruct((8, length, 64), np.float32)
        return jax.jit(jax.grad(loss)).lower(x).compile().memory_analysis().temp_size_in_bytes

    whole = temporary_bytes(1024, 0)
    assert whole == pytest.approx(2 * temporary_bytes(512, 0), rel=0.1)
    assert temporary_bytes(1024, 32) <= 0.3 * whole


def test_a_layer_is_the_sub_layers_that_its_config_names():
    config = LayerConfig(width=8, cell='gru', feed_forward=False, norm='pre')
    layer = Layer(config, rngs=nnx.Rngs(0))
    assert [sub.name for sub in layer.sub_layers] == ['recurrent'] and not hasattr(layer, 'feed_forward')
    places = jnp.zeros_like(SEGMENTS)
    read = layer.recurrent_norm(X)
    assert_close(layer(X, SEGMENTS, places), X + layer.recurrent(read, SEGMENTS))
    whole = Layer(LayerConfig(width=8, cell='gru'), rngs=nnx.Rngs(0))
    assert [sub.name for sub in whole.sub_layers] == ['recurrent', 'feed_forward']

"""Tests the recurrent sub-layer: cells with their arrays, both directions, state dropout, and memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer import Layer
from efficient_attention.modules.layer_context import Context
from efficient_attention.modules.recurrent_sub_layer import RecurrentSubLayer
from efficient_attention.recurrence.run_cell import run_cell
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

X = np.random.default_rng(0).normal(size=(2, 7, 8)).astype(np.float32)
SEGMENTS = np.asarray([[1, 1, 1, 2, 2, 2, 0], [1] * 7], np.int32)


def make(**fields: object) -> RecurrentSubLayer:
    return nnx.merge(*drawn(lambda: RecurrentSubLayer(LayerConfig(width=8, **fields), rngs=nnx.Rngs(0))))


@pytest.mark.parametrize('name', ['gru', 'sru2'])
def test_each_direction_has_half_of_the_units_and_arrays_of_its_own(name: str):
    module = make(cell=name, bidirectional=True)
    ahead, back = module.forward.learned(), module.backward.learned()
    assert ahead.units == back.units == 4
    assert np.abs(np.asarray(ahead.operands['input']) - np.asarray(back.operands['input'])).max() > 0.1
    alone = make(cell=name)

    @quick
    def both_ways(x: jax.Array) -> list:
        expected = [run_cell(ahead, x, SEGMENTS)[0], run_cell(back, x, SEGMENTS, is_reversed=True)[0]]
        return [
            (module(x, SEGMENTS), jnp.concatenate(expected, axis=-1)),
            (alone(x, SEGMENTS), run_cell(alone.forward.learned(), x, SEGMENTS)[0]),
        ]

    for found, expected in both_ways(X):
        assert_close(found, expected)


def test_states_of_another_width_are_mapped_to_the_layer_s():
    module = make(cell='gru', bidirectional=True, state_width=8)

    @quick
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        outs = [
            run_cell(cell.learned(), x, SEGMENTS, is_reversed=number == 1)[0]
            for number, cell in enumerate((module.forward, module.backward))
        ]
        return module(x, SEGMENTS), module.out(jnp.concatenate(outs, axis=-1))

    assert_close(*both_ways(X))
    assert module.out.bias is None and make(cell='gru', state_width=8).out is None


def test_initial_values_follow_the_config():
    narrow, wide = (
        LayerConfig(width=8, cell='lstm', init_std=0.5),
        LayerConfig(width=8, cell='lstm', kernel_init='fan_in'),
    )

    @quick
    def started() -> list:
        cells = [RecurrentSubLayer(config, rngs=nnx.Rngs(0)).forward for config in (narrow, wide)]
        return [cells[0].input[...], cells[0].bias[...], cells[1].recurrent[...]]

    by_std, bias, by_inputs = jax.device_get(started())
    assert 0.5 < np.abs(by_std).max() <= 2 * 0.5 and not bias.any()
    assert np.std(by_inputs) == pytest.approx(8**-0.5, rel=0.2)


def test_dropout_of_the_state_is_one_mask_for_all_positions_of_a_row():
    """Where a row's mask drops a unit, that row reads the unit's row of the recurrent matrix at no position."""
    module, rng = make(cell='tanh', state_dropout_rate=0.5), jax.random.key(3)
    plain, learned = make(cell='tanh'), module.forward.learned()

    @quick
    def all_ways(x: jax.Array) -> tuple:
        mask_BU, alone = module.state_mask(2, jax.random.fold_in(rng, 0)), []
        for row in range(2):
            masked = {'recurrent': mask_BU[row][:, None] * learned.operands['recurrent']}
            alone.append(run_cell(learned._replace(operands=learned.operands | masked), x[row : row + 1])[0])
        whole = module(x, jnp.ones_like(SEGMENTS), rng=rng)
        return mask_BU, (whole, jnp.concatenate(alone)), (module(x, SEGMENTS), plain(x, SEGMENTS))

    mask_BU, masked, quiet = jax.device_get(all_ways(X))
    assert set(np.unique(mask_BU)) == {0.0, 2.0} and (mask_BU[0] != mask_BU[1]).any()
    assert_close(*masked)
    assert_close(*quiet)


def run_with_cache(module: RecurrentSubLayer, x: jax.Array, places: slice, state: Any) -> tuple:
    return module.run_with_cache(x[:, places], Context(SEGMENTS[:, places], SEGMENTS[:, places]), state)


def test_tokens_go_on_from_a_state():
    module = make(cell='lstm')

    @quick
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, state = run_with_cache(module, x, slice(0, 4), module.empty_state(2))
        rest, _ = run_with_cache(module, x, slice(4, 7), state)
        return jnp.concatenate([out, rest], axis=1), module(x, SEGMENTS)

    assert_close(*both_ways(X))


def test_a_call_takes_the_fields_of_a_context():
    module = make(cell='gru')

    @quick
    def all_ways(x: jax.Array) -> tuple:
        _, state = run_with_cache(module, x, slice(0, 4), module.empty_state(2))
        rest, product = module(x[:, 4:], SEGMENTS[:, 4:], memory=(state,)), module.input_product(x)
        by_product = [module(x, SEGMENTS, product_BLX=factor * product) for factor in (1.0, 2.0)]
        return rest, by_product, module(x, SEGMENTS)

    rest, (same, other), whole = jax.device_get(all_ways(X))
    assert_close(rest, whole[:, 4:])
    assert_close(same, whole)
    assert np.abs(other - whole).max() > 1e-2


def test_memory_grows_with_the_length_and_chunks_keep_less_than_a_third():
    def temporary_bytes(length: int, chunk: int) -> int:
        config = LayerConfig(width=64, cell='lstm', recurrent_chunk=chunk)

        def loss(x: jax.Array) -> jax.Array:
            return RecurrentSubLayer(config, rngs=nnx.Rngs(0))(x, jnp.ones(x.shape[:2], jnp.int32)).sum()

        x = jax.ShapeDtypeStruct((8, length, 64), np.float32)
        return jax.jit(jax.grad(loss)).lower(x).compile().memory_analysis().temp_size_in_bytes

    whole = temporary_bytes(1024, 0)
    assert whole == pytest.approx(2 * temporary_bytes(512, 0), rel=0.1)
    assert temporary_bytes(1024, 32) <= 0.3 * whole


def test_a_layer_is_the_sub_layers_that_its_config_names():
    config = LayerConfig(width=8, cell='gru', feed_forward=False, norm='pre')
    layer = nnx.merge(*drawn(lambda: Layer(config, rngs=nnx.Rngs(0))))
    assert [sub.name for sub in layer.sub_layers] == ['recurrent'] and not hasattr(layer, 'feed_forward')

    @quick
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        expected = x + layer.recurrent(layer.recurrent_norm(x), SEGMENTS)
        return layer(x, SEGMENTS, jnp.zeros_like(SEGMENTS)), expected

    assert_close(*both_ways(X))
    whole = nnx.eval_shape(lambda: Layer(LayerConfig(width=8, cell='gru'), rngs=nnx.Rngs(0)))
    assert [sub.name for sub in whole.sub_layers] == ['recurrent', 'feed_forward']

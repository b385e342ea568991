"""Tests sinusoidal, rotary and axial positions: their formulas and their intended properties."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.positions import AxialPositions, apply_rotary_positions, sinusoid
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close


def test_sinusoid_formula():
    table = np.asarray(quick(lambda places: sinusoid(places, 16))(np.arange(50)))
    for position in (0, 1, 49):
        frequencies = 10_000.0 ** (-np.arange(8) / 8)
        np.testing.assert_allclose(
            table[position], [*np.sin(position * frequencies), *np.cos(position * frequencies)], atol=1e-5
        )


def test_rotated_products_depend_on_the_distance_alone():
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    turned = quick(apply_rotary_positions)

    def at(x: np.ndarray, position: int) -> np.ndarray:
        return np.asarray(turned(x, np.full((1, 1), position, np.int32)))

    products = [(at(q, position + 3) * at(k, position)).sum() for position in (0, 5, 100)]
    assert_close(products[1:], [products[0]] * 2)
    assert abs((at(q, 4) * at(k, 0)).sum() - products[0]) > 1e-3


def test_rotation_keeps_lengths_and_is_nothing_at_position_0():
    x = np.random.default_rng(1).normal(size=(2, 5, 3, 8)).astype(np.float32)
    positions, turned = np.tile(np.arange(5, dtype=np.int32), (2, 1)), quick(apply_rotary_positions)
    out = np.asarray(turned(x, positions))
    assert_close(np.linalg.norm(out, axis=-1), np.linalg.norm(x, axis=-1))
    assert_close(out[:, 0], x[:, 0])
    assert jax.eval_shape(apply_rotary_positions, x.astype(jnp.bfloat16), positions).dtype == jnp.bfloat16


def axial(shape: tuple[int, ...], widths: tuple[int, ...], *, is_sum: bool) -> tuple[AxialPositions, list[np.ndarray]]:
    module = nnx.merge(*drawn(lambda: AxialPositions(LayerConfig(), shape, widths, is_sum=is_sum, rngs=nnx.Rngs(0))))
    return module, [np.asarray(table.embedding[...]) for table in module.tables]


def test_axial_vectors_are_those_of_the_places_in_the_shape():
    shape, positions = (2, 3, 4), np.arange(24).reshape(2, 12)
    joined, joined_tables = axial(shape, (5, 2, 1), is_sum=False)
    added, added_tables = axial(shape, (6, 6, 6), is_sum=True)
    both = quick(lambda places: (joined(places).reshape(24, 8), added(places).reshape(24, 6)))
    side_by_side, sums = jax.device_get(both(positions))
    for position, place in enumerate(np.ndindex(shape)):
        parts, terms = ([t[i] for t, i in zip(own, place, strict=True)] for own in (joined_tables, added_tables))
        np.testing.assert_array_equal(side_by_side[position], np.concatenate(parts))
        np.testing.assert_allclose(sums[position], np.sum(terms, axis=0), rtol=1e-6)


def test_axial_tables_are_small_and_end_with_their_shape():
    """The sizes are Reformer's released settings for enwik8: 65,536 positions of width 1,024."""
    module = nnx.eval_shape(
        lambda: AxialPositions(LayerConfig(), (128, 512), (256, 768), is_sum=False, rngs=nnx.Rngs(0))
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module))) == 128 * 256 + 512 * 768
    module, _ = axial((2, 3), (1, 1), is_sum=False)
    run = quick(module.__call__)
    assert np.isfinite(run(np.asarray([[5]]))).all() and np.isnan(run(np.asarray([[6]]))[0, 0, 0])

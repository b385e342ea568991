"""Tests the merging of partial softmax results: it is exact, differentiable, and zero where no part has a key."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.partial_softmax import Partial, merge_partial_softmax
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.cells import quick
from tests.tolerances import assert_close

CUTS = (slice(0, 2), slice(2, 9), slice(9, 11))


def arrays(dtype: jnp.dtype = jnp.float32) -> list[jax.Array]:
    rng, shapes = np.random.default_rng(0), [(2, 5, 4, 8), (2, 11, 2, 8), (2, 11, 2, 8)]
    return [jax.device_put(rng.normal(size=shape).astype(dtype)) for shape in shapes]


def in_parts(q: jax.Array, k: jax.Array, v: jax.Array) -> Partial:
    return merge_partial_softmax(
        [attend(q, k[:, cut], v[:, cut], Softmax(), backend='reference', return_lse=True) for cut in CUTS]
    )


def in_one(q: jax.Array, k: jax.Array, v: jax.Array) -> Partial:
    return attend(q, k, v, Softmax(), backend='reference', return_lse=True)


def test_parts_over_disjoint_keys_make_the_whole_with_its_gradients():
    def loss(arrays: list[jax.Array], compute: Callable) -> tuple[jax.Array, Partial]:
        out, lse = compute(*arrays)
        turn = np.cos(np.arange(out.size, dtype=np.float32)).reshape(out.shape)
        return (out * turn).sum() + jnp.sin(lse).sum(), (out, lse)

    run = quick(lambda arrays: [jax.grad(loss, has_aux=True)(arrays, compute) for compute in (in_parts, in_one)])
    (gradient, found), (expected_gradient, expected) = run(arrays())
    assert_close(found, expected)
    assert_close(gradient, expected_gradient, gradient=True)


def test_half_precision_is_summed_in_float32():
    @quick
    def both(*arrays: jax.Array) -> tuple[Partial, Partial]:
        return in_parts(*arrays), in_one(*(x.astype(jnp.float32) for x in arrays))

    (out, lse), (exact, exact_lse) = both(*arrays(jnp.bfloat16))
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    assert_close(out, exact, dtype='bfloat16')
    assert_close(lse, exact_lse)


def test_parts_without_keys_count_nothing():
    """A query without a key in one part takes the other part; a query without any key gets zeros and no gradient."""
    zeros, masked = np.zeros((2, 5, 4, 8), np.float32), np.full((2, 4, 5), MASKED, np.float32)
    empty = jax.device_put(zeros), jax.device_put(masked)

    def total(out: jax.Array, lse: jax.Array) -> jax.Array:
        merged, merged_lse = merge_partial_softmax([(out, lse), empty])
        return merged.sum() + merged_lse.sum()

    @quick
    def run(empty: Partial, *arrays: jax.Array) -> tuple:
        whole = in_one(*arrays)
        return (
            whole,
            merge_partial_softmax([empty, whole, empty]),
            merge_partial_softmax([empty, empty]),
            jax.grad(total, (0, 1))(*empty),
        )

    whole, found, (out, lse), gradients = jax.device_get(run(empty, *arrays()))
    assert_close(found, whole)
    assert not out.any() and (lse == np.float32(MASKED)).all()
    for gradient in gradients:
        assert np.isfinite(gradient).all()


def test_log_sum_exps_far_apart_do_not_overflow():
    @quick
    def run(lses: jax.Array) -> Partial:
        ones = jnp.ones((1, 3, 1, 2))
        return merge_partial_softmax([(ones, lses), (2 * ones, jnp.zeros((1, 1, 3)))])

    out, lse = map(np.asarray, run(np.array([[[-3e4, 0.0, 3e4]]], np.float32)))
    np.testing.assert_allclose(out[0, :, 0, 0], [2.0, 1.5, 1.0])
    np.testing.assert_allclose(lse[0, 0], [0.0, np.log(2), 3e4], rtol=1e-6)


def test_one_part_is_itself():
    part = quick(in_one)(*arrays())
    assert merge_partial_softmax([part]) is part

"""Merging partial softmax results: exact, differentiable, and zero where nobody has a key."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.merge import Partial, merge
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.weights import MASKED
from tests.tolerances import assert_close

CUTS = (slice(0, 2), slice(2, 9), slice(9, 11))


def arrays(dtype: jnp.dtype = jnp.float32) -> list[jax.Array]:
    shapes = (2, 5, 4, 8), (2, 11, 2, 8), (2, 11, 2, 8)
    return [jax.random.normal(jax.random.key(seed), shape, dtype) for seed, shape in enumerate(shapes)]


def in_parts(q: jax.Array, k: jax.Array, v: jax.Array) -> Partial:
    return merge([attend(q, k[:, cut], v[:, cut], Softmax(), backend='reference', return_lse=True) for cut in CUTS])


def in_one(q: jax.Array, k: jax.Array, v: jax.Array) -> Partial:
    return attend(q, k, v, Softmax(), backend='reference', return_lse=True)


def test_parts_over_disjoint_keys_make_the_whole_with_its_gradients():
    def loss(compute, *arrays: jax.Array) -> jax.Array:
        out, lse = compute(*arrays)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum() + jnp.sin(lse).sum()

    assert_close(in_parts(*arrays()), in_one(*arrays()))
    gradients = [jax.jit(jax.grad(loss, (1, 2, 3)), static_argnums=0)(make, *arrays()) for make in (in_parts, in_one)]
    assert_close(*gradients, gradient=True)


def test_half_precision_is_summed_in_float32():
    out, lse = in_parts(*arrays(jnp.bfloat16))
    exact, exact_lse = in_one(*(x.astype(jnp.float32) for x in arrays(jnp.bfloat16)))
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    assert_close(out, exact, dtype='bfloat16')
    assert_close(lse, exact_lse)


def test_parts_without_keys_count_nothing():
    """A query that has no key in one part takes the other; one that has none in any gets zeros and no gradient."""
    (q, k, v), empty = arrays(), (jnp.zeros((2, 5, 4, 8)), jnp.full((2, 4, 5), MASKED))
    whole = in_one(q, k, v)
    assert_close(merge([empty, whole, empty]), whole)

    def total(out: jax.Array, lse: jax.Array) -> jax.Array:
        merged, merged_lse = merge([(out, lse), empty])
        return merged.sum() + merged_lse.sum()

    out, lse = merge([empty, empty])
    assert not out.any() and (lse == MASKED).all()
    for gradient in jax.grad(total, (0, 1))(*empty):
        assert jnp.isfinite(gradient).all()


def test_log_sum_exps_far_apart_do_not_overflow():
    ones = jnp.ones((1, 3, 1, 2))
    lses = jnp.asarray([[[-3e4, 0.0, 3e4]]])
    out, lse = merge([(ones, lses), (2 * ones, jnp.zeros((1, 1, 3)))])
    np.testing.assert_allclose(out[0, :, 0, 0], [2.0, 1.5, 1.0])
    np.testing.assert_allclose(lse[0, 0], [0.0, np.log(2), 3e4], rtol=1e-6)


def test_one_part_is_itself():
    part = in_one(*arrays())
    assert merge([part]) is part

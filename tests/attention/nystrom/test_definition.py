"""Tests that Nystrom attention approaches full attention with every iteration if each token is a landmark."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.nystrom.definition import Nystrom
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError
from tests.attention.cells import inputs, quick


def test_it_nears_full_attention_with_every_iteration():

    @quick
    def all_ways(*arrays: jax.Array) -> tuple:
        near = [attend(*arrays, Nystrom(16, iterations)) for iterations in (2, 6, 12, 20)]
        return attend(*arrays, Softmax()), near

    full, near = jax.device_get(all_ways(*inputs(16)[0]))
    far = [np.abs(out - full).max() for out in near]
    assert far == sorted(far, reverse=True) and far[0] > 0.05 and far[-1] < 1e-3


def test_rows_of_the_weights_sum_to_one_as_far_as_the_inverse_has_converged():
    q, k = np.random.default_rng(1).normal(size=(2, 1, 64, 4, 8)).astype(np.float32)
    both_ways = quick(lambda q, k: [attention_weights(q, k, Nystrom(8, count)).sum(-1) for count in (2, 20)])
    rough, fine = both_ways(q, k)
    np.testing.assert_allclose(fine, 1.0, atol=1e-3)
    assert np.abs(np.asarray(rough) - 1.0).max() > 1e-3


def test_it_is_computed_in_float32_whatever_comes_in():
    @quick
    def both_ways(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        rounded = [x.astype(jnp.bfloat16) for x in arrays]
        exact = attend(*(x.astype(jnp.float32) for x in rounded), Nystrom(8), backend='reference')
        return attend(*rounded, Nystrom(8)), exact

    out, exact = both_ways(*inputs(33)[0])
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), exact, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(
    'text, line',
    [
        ('nystrom(0)', 'nystrom landmarks is 0; it must be at least 1'),
        ('nystrom(8, 0)', 'nystrom iterations is 0; it must be at least 1'),
        ('nystrom(8, 6, 4)', 'nystrom convolution is 4; it must be 0 or an odd width'),
        ('nystrom(8, causal=True)', 'nystrom has no option causal; write another mechanism'),
    ],
)
def test_bad_texts_are_named(text: str, line: str):
    with pytest.raises(InputError, match=line):
        parse_mechanism(text)

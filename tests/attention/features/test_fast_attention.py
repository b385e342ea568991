"""Tests attention through any feature map, including a caller's own; FAVOR's tests set the map by options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import using_device_tuning
from efficient_attention.attention.features.fast_attention import attend_features, check_supported
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.linear.definition import Linear
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import AnySegments, Lengths
from tests.attention.cells import quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close


def log_squares(x: jax.Array, _: None) -> jax.Array:
    """Returns log(x^2 + 1)."""
    return jnp.log(jnp.square(x) + 1.0)


@pytest.mark.parametrize('causal', [False, True])
def test_a_feature_map_is_all_that_a_mechanism_brings(causal: bool):
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 9, 2, 4)).astype(np.float32)

    @jax.jit
    def out_of(*arrays: jax.Array) -> jax.Array:
        out, lse = attend_features(make_request(*arrays, Linear(causal=causal)), FeatureMap(log_squares), 4)
        assert lse is None
        return out

    products = np.einsum('BLHR,BMHR->BHLM', q**2 + 1.0, k**2 + 1.0)
    products = np.tril(products) if causal else products
    expected = np.einsum('BHLM,BMHK->BLHK', products / products.sum(axis=-1, keepdims=True), v)
    assert_close(out_of(q, k, v), expected)


@pytest.mark.parametrize(
    'text',
    ['linear(causal=True, chunk=4)', "linear('cos', 11, causal=True, chunk=4)", 'favor(8, causal=True, chunk=4)'],
)
def test_lengths_give_the_results_of_segments_without_sorting(text: str):
    """Compares chunks one by one, and all at once as on accelerators, with segments. One row has no token. With
    lengths, padding holds NaN.
    """
    mechanism, lengths = parse_mechanism(text), np.int32([11, 0, 6])
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(3, 11, heads, 4)).astype(np.float32) for heads in (4, 2, 2)]
    is_token_BL = np.arange(11) < lengths[:, None]
    spoiled = [np.where(is_token_BL[..., None, None], x, np.float32(np.nan)) for x in arrays]

    def run(inputs: list, segments: AnySegments, at_once: bool = False) -> tuple:
        def of_inputs(*inputs: jax.Array) -> jax.Array:
            options = {'query_segments': segments, 'key_segments': segments, 'rng': jax.random.key(3)}
            return attend(*inputs, mechanism, **options)

        with using_device_tuning(feature_prefix_sums=at_once):
            out, backward = jax.vjp(of_inputs, *inputs)
            return out, backward(jnp.cos(out))

    def with_lengths(inputs: list, lengths_B: jax.Array) -> list:
        return [run(inputs, Lengths(lengths_B), at_once) for at_once in (False, True)]

    def with_segments(inputs: list, lengths_B: jax.Array) -> tuple:
        return run(inputs, Lengths(lengths_B).segments(11))

    @quick
    def all_forms(inputs: list, others: list, lengths_B: jax.Array) -> tuple:
        return with_lengths(inputs, lengths_B), with_segments(others, lengths_B)

    found, (expected, expected_gradients) = all_forms(spoiled, arrays, lengths)
    for out, gradients in found:
        assert_close(out, expected)
        assert_close(gradients, expected_gradients, gradient=True)
        assert not np.asarray(out)[~is_token_BL].any()
    has_sort = [' sort[' in str(jax.make_jaxpr(form)(arrays, lengths)) for form in (with_lengths, with_segments)]
    assert has_sort == [False, True]


def test_all_that_is_lacking_is_named_at_once():
    x = jnp.ones((1, 5, 1, 4))
    options = {'bias': jnp.zeros((1, 1, 5, 5)), 'query_positions': np.arange(1, 6)[None], 'return_lse': True}
    with pytest.raises(
        NotImplementedError, match='^linear has no additive bias, no log-sum-exp, no causal form for other'
    ):
        check_supported(make_request(x, x, x, Linear(causal=True), **options))

"""Tests float32 products of bfloat16 operands, and their gradients, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.einsum import float32_einsum
from tests.attention.cells import quick

CASES = [
    ('BLGhK,BMGK->BGhLM', (2, 5, 2, 3, 4), (2, 6, 2, 4)),
    ('BGhLM,BMGK->BLGhK', (2, 2, 3, 5, 6), (2, 6, 2, 4)),
    ('BLHK,PHK->BHLP', (2, 5, 3, 4), (7, 3, 4)),
    ('BLE,VE->BLV', (2, 5, 4), (9, 4)),
    ('BLHK,BMHK->BHLM', (2, 16, 3, 8), (2, 24, 3, 8)),
]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize(('equation', 'left', 'right'), CASES)
def test_values_and_gradients(equation: str, left: tuple, right: tuple, dtype: str):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(jnp.dtype(dtype)) for shape in (left, right))
    a64, b64 = (np.asarray(x, np.float64) for x in (a, b))
    weights = rng.standard_normal(np.einsum(equation, a64, b64).shape).astype(np.float32)

    @quick
    def run(a: jax.Array, b: jax.Array, weights: jax.Array) -> tuple:
        product, pull = jax.vjp(functools.partial(float32_einsum, equation), a, b)
        return product, pull(weights)

    product, gradients = run(a, b, weights)
    assert product.dtype == jnp.float32
    np.testing.assert_allclose(product, np.einsum(equation, a64, b64), rtol=1e-5, atol=1e-5)
    (first, second), result = equation.split('->')[0].split(','), equation.split('->')[1]
    exact = (
        np.einsum(f'{result},{second}->{first}', weights, b64),
        np.einsum(f'{result},{first}->{second}', weights, a64),
    )
    tolerance = {'float32': 1e-5, 'bfloat16': 8e-3, 'float16': 1e-3}[dtype]
    for own, true in zip(gradients, exact, strict=True):
        assert own.dtype == dtype
        error = np.sqrt(np.square(np.asarray(own, np.float64) - true).mean() / np.square(true).mean())
        assert error < tolerance


def test_gradients_of_bfloat16_products_are_bfloat16_products():
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((2, 4), (3, 4)))
    text = jax.jit(jax.grad(lambda a, b: float32_einsum('ik,jk->ij', a, b).sum(), (0, 1))).lower(a, b).as_text()
    products = [line for line in text.splitlines() if 'stablehlo.dot_general' in line]
    assert len(products) == 2 and all(line.count('xbf16>') == 2 for line in products)

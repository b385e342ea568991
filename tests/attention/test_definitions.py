"""Tests mechanisms with few tests of their own against float64 definitions, at every length, and their common
properties.
"""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.parsing import parse_mechanism
from tests.attention import contract, contract_rows
from tests.attention.cells import drawn_operands, inputs, quick
from tests.attention.implementation_checks import check_bfloat16, check_definition, largest_array, temporary_bytes

# One token; less than a block of 64 and than 40 landmarks; one block; one token more; several blocks and one token.
# Causal linear attention has chunks of 128. Two kinds of synthesizer show the blocks that all kinds have.
LENGTHS = (1, 7, 64, 65, 1025)
AT_THREE_LENGTHS = ('linear(', "synthesizer('factorized'", "synthesizer('random+dot'")
Arrays = dict[str, np.ndarray]


def of_pairs(mechanism: Any, query: np.ndarray, key: np.ndarray, learned: Arrays, valid: np.ndarray) -> np.ndarray:
    """Returns the weights of linear attention or of a synthesizer."""
    allowed = valid[:, None] & valid[None]
    allowed = np.tril(allowed) if mechanism.is_causal else allowed
    if mechanism.name == 'synthesizer':
        return contract.softmax(contract.synthesized(mechanism.kind, query, key, learned), allowed)[0]
    if mechanism.kind == 'cos':
        return contract.cosine_weights(query, key, mechanism.length, allowed)
    return contract.linear_weights(query, key, allowed)


def of_linformer(_: Any, query: np.ndarray, key: np.ndarray, learned: Arrays, valid: np.ndarray) -> np.ndarray:
    return contract_rows.linformer_weights(query, key, (learned['keys'], learned['values']), valid, valid)


def of_nystrom(mechanism: Any, query: np.ndarray, key: np.ndarray, learned: Arrays, valid: np.ndarray) -> np.ndarray:
    options = {'count': mechanism.landmarks, 'iterations': mechanism.iterations}
    return contract_rows.nystrom_weights(query, key, valid, valid, convolution=learned['convolution'], **options)


def of_induced(_: Any, query: np.ndarray, key: np.ndarray, learned: Arrays, valid: np.ndarray) -> np.ndarray:
    return contract_rows.induced_weights(query, key, learned['points'], valid, valid)


DEFINITIONS = {
    'linear()': of_pairs,
    'linear(causal=True)': of_pairs,
    "linear('cos', 1025)": of_pairs,
    "linear('cos', 1025, causal=True)": of_pairs,
    "synthesizer('dense', 1025)": of_pairs,
    "synthesizer('random', 1025, pattern=causal)": of_pairs,
    "synthesizer('factorized', 1025, 12)": of_pairs,  # The heads have width 8.
    "synthesizer('random+dot', 1025)": of_pairs,
    'linformer(40, 1025, tied=False)': of_linformer,
    'nystrom(40, 6, 35)': of_nystrom,  # Its convolution also takes several blocks.
    'induced(40)': of_induced,
}


@pytest.mark.parametrize(
    'text, length',
    [
        (text, length)
        for text, length in itertools.product(DEFINITIONS, LENGTHS)
        if length not in (7, 64) or not text.startswith(AT_THREE_LENGTHS)
    ],
)
def test_it_is_the_float64_definition_forward_and_in_gradients(text: str, length: int):
    check_definition(text, length, DEFINITIONS[text])


@pytest.mark.parametrize(
    'text',
    [
        'linear(causal=True, chunk=4)',
        "linear('cos', 20, causal=True, chunk=4)",
        "synthesizer('dense', 20, pattern=causal)",
        "synthesizer('random+dot', 20, pattern=causal)",
    ],
)
def test_no_gradient_reaches_a_later_token(text: str):
    mechanism, (q, k, v) = parse_mechanism(text), inputs(20)[0]
    call = functools.partial(attend, mechanism=mechanism, learned=drawn_operands(mechanism, 4, 8))

    def of_earlier(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return call(q, k, v)[:, :11].sum()

    gradients = jax.device_get(quick(jax.grad(of_earlier, (0, 1, 2)))(q, k, v))
    for gradient in gradients:
        assert not gradient[:, 11:].any()
    assert gradients[2][:, :11].any()


@pytest.mark.parametrize(
    'text',
    [
        'linear()',
        "linear('cos', 50)",
        'linformer(9, 50)',
        'induced(9)',
        'nystrom(9)',
        "synthesizer('dense', 50)",
        "synthesizer('factorized', 50, 3)",
        "synthesizer('random', 50)",
        "synthesizer('random+dot', 50)",
    ],
)
def test_sixteen_bits(text: str):
    check_bfloat16(text)


@pytest.mark.parametrize(
    'text',
    [
        'linear()',
        "linear('cos', 16384)",
        'linformer(64, 16384)',
        'nystrom(64)',
        'induced(64)',
        "synthesizer('dense', 16384)",
        "synthesizer('factorized', 16384, 8)",
        "synthesizer('factorized', 16384, 32)",  # This is more than a head's width of 16.
    ],
)
def test_nothing_is_as_large_as_all_pairs(text: str):
    """The largest array has at most 128 numbers for each token of 2 heads."""
    assert largest_array(text, 16_384) <= 2 * 16_384 * 128


@pytest.mark.parametrize(
    'text, most',
    [
        ('linear()', 2.2),
        ("linear('cos', {length})", 2.2),
        ('linformer(64, {length})', 2.2),
        ('nystrom(64)', 2.2),
        ('induced(64)', 2.2),
        ('sinkhorn(64, {blocks})', 2.2),
        ('sinkhorn(64, {blocks}, cut=2)', 2.2),
        ('routing(64, 64)', 2.2),
        ('routing({root}, {root})', 3.0),
    ],
)
def test_a_row_of_twice_the_length_takes_twice_the_temporary_memory(text: str, most: float):
    sizes = [
        temporary_bytes(text.format(length=length, blocks=length // 64, root=round(length**0.5)), length)
        for length in (4096, 8192)
    ]
    assert sizes[1] <= most * sizes[0]

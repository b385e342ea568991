"""Tests the formulas for multiply-adds against the products in the traced programs."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import multiply_adds
from tests.attention.cells import drawn_operands

HEADS, WIDTH = 2, 64


def traced_products(jaxpr: Any) -> int:
    """Returns the multiply-adds of all products in a program.

    Loops count by their length; of the branches of a condition the cheapest counts, because it is usually taken.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == 'dot_general':
            (contracted, _), _ = equation.params['dimension_numbers']
            left = equation.invars[0].aval.shape
            total += equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        inner = [part for value in equation.params.values() for part in (value if type(value) is tuple else (value,))]
        counts = [traced_products(getattr(part, 'jaxpr', part)) for part in inner if hasattr(part, 'eqns')]
        chosen = min if equation.primitive.name == 'cond' else max
        total += equation.params.get('length', 1) * (chosen(counts) if counts else 0)
    return total


def both_counts(text: str, length: int) -> tuple[int, int]:
    """Returns the multiply-adds by formula, and those of the blocked backend's forward pass."""
    mechanism = parse_mechanism(text)
    array = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
    rng = jax.eval_shape(lambda: jax.random.key(0))
    options: dict[str, Any] = {'centres': jnp.ones((1, length, HEADS))} if mechanism.requirements.centres else {}
    options['learned'] = drawn_operands(mechanism, HEADS, WIDTH)
    program = jax.make_jaxpr(lambda q, rng: attend(q, q, q, mechanism, rng=rng, backend='blocked', **options))(
        array, rng
    )
    return multiply_adds(mechanism, length, HEADS, WIDTH), traced_products(program.jaxpr)


@pytest.mark.parametrize(
    'text, length',
    [
        ('full', 256),
        ('lsh(64, 3)', 512),
        ('lsh(32, 2, buckets=300)', 512),
        ('lsh(64, 2)', 50),
        ('favor(128)', 512),
        ('favor(128, causal=True, chunk=64)', 512),
        ('favor(128, causal=True)', 100),
    ],
)
def test_the_formula_counts_the_products_of_the_program(text: str, length: int):
    counted, traced = both_counts(text, length)
    assert counted == pytest.approx(traced, rel=0.01)


@pytest.mark.parametrize('text', ['causal', 'window(64)', 'bigbird(64, 1)', 'per_head(block(64), full)'])
def test_a_schedule_adds_little_to_the_tiles_that_a_pattern_keeps(text: str):
    counted, traced = both_counts(text, 1024)
    assert counted <= traced <= 1.35 * counted


def test_full_attention_is_quadratic_and_sparse_mechanisms_are_linear():
    def growth(text: str) -> float:
        mechanism = parse_mechanism(text)
        return multiply_adds(mechanism, 16384, 4, 64) / multiply_adds(mechanism, 8192, 4, 64)

    assert growth('full') == 4.0
    assert growth('causal') == pytest.approx(4.0, rel=0.01)
    for text in ('window(128)', 'block(128)', 'lsh(64, 4, buckets=128)', 'favor(256)', 'favor(256, causal=True)'):
        assert growth(text) == pytest.approx(2.0, rel=0.02)


def test_a_mechanism_that_is_not_known_is_named():
    with pytest.raises(NotImplementedError, match='Mechanism has no implementation'):
        multiply_adds(Mechanism(), 4, 1, 1)

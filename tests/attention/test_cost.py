"""Tests the formulas for multiply-adds against the products in the traced programs."""

import pytest

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.testing import both_counts


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
    counted, traced = both_counts(parse_mechanism(text), length)
    assert counted == pytest.approx(traced, rel=0.01)


@pytest.mark.parametrize('text', ['causal', 'window(64)', 'bigbird(64, 1)', 'per_head(block(64), full)'])
def test_a_schedule_adds_little_to_the_tiles_that_a_pattern_keeps(text: str):
    counted, traced = both_counts(parse_mechanism(text), 1024)
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

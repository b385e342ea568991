"""Tests FAVOR's decoding cache of sums: its size, and pieces of text that do not fill a chunk."""

import functools
import math

import jax
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.cache import init_cache
from tests.attention.cells import quick
from tests.attention.test_cache import FAVORS, ONES, POSITIONS, RNG, arrays, in_pieces, slopes, spec_of
from tests.tolerances import assert_close


def test_favor_has_no_bias():
    with pytest.raises(NotImplementedError, match='favor has no additive bias'):
        in_pieces(spec_of(FAVORS[0]), 1, *arrays(), POSITIONS, ONES, bias=slopes)


def test_favor_reads_pieces_that_are_no_whole_number_of_chunks():
    spec = spec_of('favor(16, causal=True, chunk=5)')
    out, _ = in_pieces(spec, 12, *arrays(), POSITIONS, ONES)
    expected = quick(lambda *x: attend(*x, spec.mechanism, rng=RNG, backend='reference'))(*arrays())
    assert_close(out, expected)


def test_favor_keeps_sums_whatever_the_length():
    for length in (16, 4096):
        cache = jax.eval_shape(functools.partial(init_cache, spec_of(FAVORS[0], length), 3, 'float32', RNG))
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(cache)) == 3 * 2 * 16 * (8 + 2) + 16 * 8 + 3
    with pytest.raises(ValueError, match='samples at random and needs rng'):
        init_cache(spec_of(FAVORS[0]), 3, 'float32')

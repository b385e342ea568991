"""Tests that assert_close finds the differences that it should find."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.tolerances import assert_close


def test_equal_trees_pass():
    assert_close({'a': jnp.ones(3, jnp.bfloat16)}, {'a': np.full(3, 1.01)}, dtype='bfloat16')


@pytest.mark.parametrize('wrong', [np.float32(1.001), np.float32(np.nan), np.float32(np.inf)])
def test_differences_fail(wrong):
    with pytest.raises(AssertionError, match="'b'"):
        assert_close({'b': wrong}, {'b': np.float32(1)})


def test_nan_equals_nothing():
    with pytest.raises(AssertionError):
        assert_close(np.float32(np.nan), np.float32(np.nan))


def test_other_structure_fails():
    with pytest.raises(AssertionError):
        assert_close({'a': 1.0}, {'a': 1.0, 'b': 1.0})

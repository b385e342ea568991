"""Tests that a request of another mechanism has no pattern; test_contract.py compares logits and masks with loops."""

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.logits.definition import request_pattern
from efficient_attention.attention.lsh.definition import LSH
from tests.attention.requests import make_request


def test_another_mechanism_has_no_pattern():
    q = jnp.ones((1, 4, 1, 8))
    with pytest.raises(NotImplementedError, match='logits computes PatternAttention, not LSH'):
        request_pattern(make_request(q, q, q, LSH(), rng=jax.random.key(0)))

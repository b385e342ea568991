"""Tests which calls jax.nn's backend computes and refuses; test_attend.py tests that it equals the reference."""

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.patterns import Causal, Full
from efficient_attention.attention.softmax.definition import Softmax


@pytest.mark.parametrize(
    'mechanism, extra, message',
    [
        (Softmax(Causal() & Full()), {}, 'supports Softmax over full and causal'),
        (Softmax(), {'dropout_rate': 0.1, 'rng': jax.random.key(0)}, 'no attention dropout'),
        (Softmax(), {'return_lse': True}, 'log-sum-exp'),
    ],
)
def test_it_names_what_it_lacks(mechanism: Softmax, extra: dict, message: str):
    q = jnp.ones((1, 4, 2, 8))
    with pytest.raises(NotImplementedError, match=message):
        attend(q, q, q, mechanism, backend='jax_nn', **extra)

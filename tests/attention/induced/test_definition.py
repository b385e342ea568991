"""Tests that permuted tokens give permuted outputs of induced attention, and that its weights are a distribution."""

import jax
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.induced.definition import Induced
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.errors import InputError
from tests.attention.cells import drawn_operands, inputs
from tests.tolerances import assert_close

LEARNED = drawn_operands(Induced(5), 4, 8)


def test_tokens_in_another_order_give_the_outputs_in_that_order():
    q, k, v = map(np.asarray, inputs(12)[0])
    order = np.random.default_rng(0).permutation(12)
    run = jax.jit(lambda *x: attend(*x, Induced(5), learned=LEARNED))
    assert_close(run(*(x[:, order] for x in (q, k, v))), np.asarray(run(q, k, v))[:, order])


def test_weights_sum_to_one():
    q, k, _ = inputs(12)[0]
    weights = np.asarray(jax.jit(lambda q, k: attention_weights(q, k, Induced(5), learned=LEARNED))(q, k))
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)


def test_bad_texts_are_named():
    with pytest.raises(InputError, match='induced points is 0; it must be at least 1'):
        parse_mechanism('induced(0)')
    with pytest.raises(
        InputError, match='induced has no option causal; write another mechanism, as induced has no causal form'
    ):
        parse_mechanism('induced(8, causal=True)')

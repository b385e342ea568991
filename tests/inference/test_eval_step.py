"""Tests of an evaluation step: the model runs without dropout, and its memory goes to the next step."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.inference.evaluate import make_eval_step, make_output_step
from efficient_attention.objectives.fine_tuning import TERM, FineTuning
from tests.training.test_step import BATCH, OBJECTIVE, Line, Totals, batch_of, expected, graph_of, model

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = pytest.mark.lenient_promotion


def test_dropout_is_on_in_training_and_off_in_evaluation():
    eval_step = jax.jit(make_eval_step(model()[0], OBJECTIVE))
    (sums, weights), (again, _) = eval_step(model()[1], BATCH), eval_step(model()[1], BATCH)
    assert sums['masked_lm']['loss'] == again['masked_lm']['loss']
    assert abs(sums['masked_lm']['loss'] - expected()[0][1]['masked_lm']['loss']) > 0.1
    assert {name: float(value) for name, value in weights.items()} == {'masked_lm': 44, 'pair': 10}


def test_evaluation_hands_on_too():
    eval_step = jax.jit(make_eval_step(graph_of(Line()), Totals()))
    sums, weights, carry = eval_step({'slope': jnp.float32(2.0)}, batch_of(1.0, 2.0), jnp.asarray([5.0, 6.0]))
    assert (sums['root']['loss'], weights['root'], carry.tolist()) == (28, 2, [6, 8])


class Scaled(nnx.Module):
    """A model that returns a batch's logits times a parameter, and counts its calls."""

    asked = 0

    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.float32(1.0))

    def outputs(self, batch: dict, **_: object) -> dict:
        Scaled.asked += 1
        return {'logits': batch['x'] * self.scale[...]}


def test_sums_are_of_the_outputs_and_the_model_is_asked_once():
    x, label, weights = jnp.asarray([[2.0, 1.0], [0.0, 1.0]]), jnp.asarray([0, 0]), jnp.ones(2)
    batch, params = {'x': x, 'label': label, 'weights': weights}, {'scale': jnp.float32(3.0)}
    step = jax.jit(make_output_step(graph_of(Scaled()), FineTuning(HeadConfig(kind='sequence', outputs=2))))
    before = Scaled.asked
    sums, totals, outputs = step(params, batch)
    assert Scaled.asked == before + 1
    assert outputs['logits'].tolist() == [[6.0, 3.0], [0.0, 3.0]]
    assert (sums[TERM]['accuracy'], totals[TERM]) == (1, 2)
    assert make_output_step(graph_of(Scaled()))(params, {'x': x})[:2] == ({}, {})

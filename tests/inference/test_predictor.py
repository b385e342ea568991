"""Tests that rows of any length get outputs in their order, whatever the batches."""

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.inference.pipeline import Predictor
from efficient_attention.models.fine_tuning import FineTuningModel
from tests.inference.tiny_checkpoint import MODEL
from tests.models.drawn import drawn

HEAD = HeadConfig(kind='token', outputs=3)


def rows(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {'tokens': rng.integers(0, 20, length).astype(np.int32), 'token_types': np.zeros(length, np.int32)}
        | {'labels': np.full(length, 99, np.int32)}  # not looked at
        for length in lengths
    ]


def made(head: HeadConfig) -> FineTuningModel:
    return nnx.merge(*drawn(lambda: FineTuningModel(MODEL, head, rngs=nnx.Rngs(0))))


@pytest.fixture(scope='module')
def model() -> FineTuningModel:
    return made(HEAD)


@nnx.jit
def logits_of(model: FineTuningModel, batch: dict[str, jax.Array]) -> jax.Array:
    return model(batch)['logits']


@pytest.mark.parametrize('batch_size', [1, 3, 64])
def test_each_row_has_what_the_model_says_of_it_alone(model: FineTuningModel, batch_size: int):
    features = rows([5, 17, 2, 24])
    outputs = Predictor(model, length=24, pad=0, batch_size=batch_size)(features)
    for feature, output in zip(features, outputs, strict=True):
        length = len(feature['tokens'])
        batch = {name: feature[name][None] for name in ('tokens', 'token_types')}
        expected = logits_of(model, batch | {'segments': np.ones((1, length), np.int32)})
        assert output['logits'].shape == (length, 3)
        np.testing.assert_allclose(output['logits'], np.asarray(expected)[0], atol=2e-5)


def test_no_rows_no_outputs(model: FineTuningModel):
    assert Predictor(model, length=24, pad=0)([]) == []


def test_as_many_classes_as_tokens_are_not_taken_for_tokens():
    outputs = Predictor(made(HeadConfig(kind='sequence', outputs=8)), length=24, pad=0)(rows([3, 8, 5]))
    assert [output['logits'].shape for output in outputs] == [(8,)] * 3

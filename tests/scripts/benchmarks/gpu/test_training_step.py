"""Tests that the GPU benchmark trains the models of the config files: sizes, arrays of a batch, and operations."""

import dataclasses
import importlib

import jax
import pytest

from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.tasks.registry import task_type
from scripts.benchmarks.gpu import training_step as benchmark

IDS = [model.name for model in benchmark.MODELS]


def run_config(model: benchmark.TrainedModel) -> RunConfig:
    """Returns the config of the file that the model names."""
    path, _, size = model.config.partition(':')
    module = importlib.import_module(path.removesuffix('.py').replace('/', '.'))
    return from_dict((module.get_config(size) if size else module.get_config()).to_dict(), RunConfig)


@pytest.mark.parametrize('model', benchmark.MODELS, ids=IDS)
def test_the_model_is_that_of_its_config(model: benchmark.TrainedModel):
    assert ModelConfig(**model.fields) == run_config(model).model
    assert 'as configured' in model.variants and model.variants['as configured'] == {}
    for changes in model.variants.values():
        ModelConfig(**model.fields | changes)


@pytest.mark.parametrize('model', benchmark.MODELS, ids=IDS)
def test_batch_and_operations_are_those_of_the_task(model: benchmark.TrainedModel):
    config = run_config(model)
    train = dataclasses.replace(config.train, batch_size=model.rows)
    data = dataclasses.replace(config.data, length=model.length, **{'max_masked': model.masked} if model.masked else {})
    config = dataclasses.replace(config, train=train, data=data)
    task = task_type(config).without_data(config)
    batch = benchmark.random_batch(model, config.model)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        name: (x.shape, x.dtype) for name, x in task.batch_shapes().items()
    }
    assert benchmark.training_flops(model, config.model) == pytest.approx(task.training_flops())


def test_masked_positions_differ_within_a_row():
    model = benchmark.DRY_MODELS[1]
    batch = benchmark.random_batch(model, ModelConfig(**model.fields))
    for places in batch['masked_positions']:
        assert len(set(places)) == model.masked and sorted(places) == list(places)


@pytest.mark.parametrize('model', benchmark.MODELS[:2], ids=IDS[:2])
def test_the_parameters_are_those_of_the_size(model: benchmark.TrainedModel):
    _, first_state = benchmark.make_step(model, ModelConfig(**model.fields))
    count = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(first_state).params))
    expected = {'GPT-2 124M': 124_439_808, 'BERT-base': 109_482_240}[model.name]
    assert expected <= count <= 1.01 * expected  # BERT-base also has its pretraining heads

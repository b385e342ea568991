"""Tests that every config file gives a consistent run and a model that can be built, without any data."""

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from flax import nnx

from configs.lm.common import SMALL_DECODERS, small_decoder_config
from efficient_attention.config.dict_conversion import default_fields, from_dict
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.tasks.language_modelling import make_language_model
from efficient_attention.training.fill_config import with_placeholder_values

ROOT = Path(__file__).resolve().parents[1]
NAMES = [
    '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    for path in sorted((ROOT / 'configs').rglob('*.py'))
    if path.name not in ('common.py', '__init__.py')
]


def variants(name: str) -> list[str]:
    """Returns the arguments that a config file takes after its colon; [''] where it takes none."""
    module = importlib.import_module(name)
    if hasattr(module, 'small_decoder_config'):
        return ['', *SMALL_DECODERS]
    tables = ('MECHANISMS', 'SIZES', 'TASKS', 'FILES', 'SETS', 'METRICS', 'NOISES', 'ENCODERS')
    known = next((getattr(module, table) for table in tables if hasattr(module, table)), None)
    return list(known) if known and inspect.signature(module.get_config).parameters else ['']


def parameter_count(name: str, argument: str) -> int:
    """Returns the number of parameters of a config file's model at its full size."""
    get_config = importlib.import_module(name).get_config
    config = from_dict(filled((get_config(argument) if argument else get_config()).to_dict()), RunConfig)

    return parameters_of(config.task, config.model, config.head, has_pairs=config.data.pairs != 'none')


@functools.cache
def parameters_of(task: str, model: ModelConfig, head: HeadConfig, *, has_pairs: bool) -> int:
    """Returns the number of parameters of a model; configs that differ only in their data share the cached result."""

    def build() -> nnx.Module:
        rngs = nnx.Rngs(0)
        if task == 'language_modelling':
            return make_language_model(model, rngs)
        if task == 'text_to_text':
            return EncoderDecoder(model, rngs=rngs)
        if task == 'fine_tuning':
            return FineTuningModel(model, head, rngs=rngs)
        return PretrainingModel(model, has_pairs=has_pairs, rngs=rngs)

    return count(build)


def filled(values: dict) -> dict:
    """Returns the values of a config, with placeholders for fields that a checkpoint and data files would fill."""
    defaults = default_fields(RunConfig)
    # a user of this config has to name a teacher
    if values['distill'] != defaults['distill'] or values['train']['start_layers']:
        has_teacher = values['distill'] != defaults['distill']
        values['distill']['teacher'] = 'runs/teacher' if has_teacher else ''
        values['train']['start_from'] = 'runs/teacher'
    if values['task'] == 'text_to_text':
        model = defaults['model'] | {'token_types': 0, 'decoder_layers': 1}
        return with_placeholder_values(values, {'data': defaults['data'], 'pairs': defaults['pairs'], 'model': model})
    if values['task'] != 'fine_tuning':
        return values
    stand_ins = {name: defaults[name] for name in ('data', 'head')} | {'examples': {'has_global': False}}
    stand_ins['model'] = defaults['model'] | {'max_length': 4096}
    return with_placeholder_values(values, stand_ins | {'train': {'steps': 9}, 'optimizer': {'warmup_steps': 1}})


def count(build: Callable[[], nnx.Module]) -> int:
    """Returns the number of parameters of the model that `build` returns."""
    params = nnx.state(nnx.eval_shape(build), nnx.Param)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_small_decoders_have_equally_many_parameters():
    def count_of(mechanism: str) -> int:
        model = from_dict(small_decoder_config(mechanism).to_dict(), RunConfig).model
        return count(lambda: Decoder(model, rngs=nnx.Rngs(0)))

    assert {mechanism: count_of(mechanism) for mechanism in SMALL_DECODERS} == {
        mechanism: pytest.approx(count_of('full'), rel=1e-3) for mechanism in SMALL_DECODERS
    }


def test_a_student_begins_with_its_teacher_and_the_start_alone_names_none():
    for name, argument in (('glue', 'sst2_3x384'), ('distilbert', 'books')):
        get_config = importlib.import_module(f'configs.distill.{name}').get_config
        config = get_config(argument)
        config.distill.teacher = 'a'
        assert config.train.start_from == 'a'
        config.train.start_from = 'b'
        assert config.distill.teacher == 'a'
        alone = get_config(f'{argument}-alone')
        alone.train.start_from = 'b'
        assert alone.distill.to_dict() == default_fields(RunConfig)['distill'] and alone.train.start_layers

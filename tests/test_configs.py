"""Every config file makes a run that is consistent in itself and a model that can be built, without any data."""

import importlib
import inspect
from pathlib import Path

import jax
import pytest
from flax import nnx

from efficient_attention.models.decoder import Decoder
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.training.config import from_dict

ROOT = Path(__file__).resolve().parents[1]
NAMES = [
    '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    for path in sorted((ROOT / 'configs').rglob('*.py'))
    if path.name not in ('common.py', '__init__.py')
]


def variants(name: str) -> list[str]:
    """The arguments that a config file takes after its colon; '' where it takes none."""
    module = importlib.import_module(name)
    known = next((getattr(module, table) for table in ('MECHANISMS', 'SIZES') if hasattr(module, table)), None)
    return list(known) if known and inspect.signature(module.get_config).parameters else ['']


@pytest.mark.parametrize('name, argument', [(name, argument) for name in NAMES for argument in variants(name)])
def test_a_config_makes_a_model(name: str, argument: str):
    get_config = importlib.import_module(name).get_config
    config = from_dict((get_config(argument) if argument else get_config()).to_dict())

    def build() -> nnx.Module:
        rngs = nnx.Rngs(0)
        if config.task == 'language_modelling':
            return Decoder(config.model, rngs=rngs)
        return PretrainingModel(config.model, has_pairs=config.data.pairs != 'none', rngs=rngs)

    params = nnx.state(nnx.eval_shape(build), nnx.Param)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) > 10_000

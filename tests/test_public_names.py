"""Tests the public names of the package: what they need, and the line for a missing extra."""

import ast
import copy
import importlib
import inspect
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import efficient_attention as ea

ROOT = Path(__file__).resolve().parent.parent
LINE = "ea.pipeline needs: pip install 'efficient-attention[train]' (No module named 'PIL.Image')"


def test_each_public_name_is_the_object_of_its_module():
    assert {*dir(ea)} == {*ea.__all__, '__version__'}
    assert all(getattr(ea, name).__name__ == name for name in ea.__all__)
    assert not hasattr(ea, 'Transformer')
    with pytest.raises(AttributeError, match="no attribute 'Transformer'; public names: Block, "):
        _ = ea.Transformer


def test_type_checkers_see_the_same_names():
    """Checks that __init__.pyi imports each public name from the module that `_PUBLIC` gives."""
    tree = ast.parse((ROOT / 'efficient_attention' / '__init__.pyi').read_text(encoding='utf-8'))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = {one.asname: (node.module, one.name) for node in imports for one in node.names}
    assert found == {name: (f'efficient_attention.{module}', name) for name, module in ea._PUBLIC.items()}


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Makes every import of a public name's module fail with this error."""

    def import_module(*_: str) -> None:
        raise error

    monkeypatch.setattr(importlib, 'import_module', import_module)


def test_a_missing_package_of_the_extra_is_one_line(monkeypatch: pytest.MonkeyPatch):
    fail_with(monkeypatch, ModuleNotFoundError("No module named 'PIL.Image'", name='PIL.Image'))
    with pytest.raises(ImportError, match=f'^{re.escape(LINE)}$') as caught:
        _ = ea.pipeline
    copied = copy.copy(caught.value)  # copies by the same protocol as pickle
    assert (type(copied), str(copied), copied.name) == (type(caught.value), LINE, 'PIL.Image')


@pytest.mark.parametrize('name', ['efficient_attention.inference.pipelin', 'jax.none', None])
def test_another_import_error_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str | None):
    error = ModuleNotFoundError('No module', name=name)
    fail_with(monkeypatch, error)
    with pytest.raises(ModuleNotFoundError) as caught:
        _ = ea.pipeline
    assert caught.value is error


def test_names_whose_packages_are_missing_are_not_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None if name == 'sacrebleu' else name)
    assert {*ea.__all__} - {*dir(ea)} == {'evaluate', 'load', 'open_scorer', 'pipeline', 'train'}
    assert dict(inspect.getmembers(ea))['attend'] is ea.attend


def test_the_import_names_are_the_packages_of_the_extra():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
    extra = {re.split('[>=]', one)[0].lower().replace('_', '-') for one in project['optional-dependencies']['train']}
    known = packages_distributions()
    found = {distribution.lower().replace('_', '-') for name in ea._TRAIN for distribution in known[name]}
    assert extra <= found and all({one.lower().replace('_', '-') for one in known[name]} & extra for name in ea._TRAIN)


# ---- models ----

TOKENS = jnp.ones((2, 12), jnp.int32)
SIZES = {'vocab_size': 30, 'width': 16, 'heads': 2, 'feed_forward_width': 32}


def shape_of(model_class: type[nnx.Module], config: ea.ModelConfig, *inputs: jax.Array) -> tuple[int, ...]:
    """Returns the shape of a new model's output; the model is only traced."""
    return nnx.eval_shape(lambda: model_class(config, rngs=nnx.Rngs(0))(*inputs)).shape


def test_models_are_built_from_a_config():
    encoder = ea.ModelConfig(**SIZES, attention='window(4)')
    assert shape_of(ea.Encoder, encoder, TOKENS, TOKENS) == (2, 12, 16)
    decoder = ea.ModelConfig(**SIZES, attention='lsh(4, 2, causal=True)', shared_qk=True)
    assert shape_of(ea.Decoder, decoder, TOKENS, TOKENS) == (2, 12, 30)
    both = ea.ModelConfig(**SIZES, decoder_layers=2)
    assert shape_of(ea.EncoderDecoder, both, TOKENS, TOKENS, TOKENS[:, :5], TOKENS[:, :5]) == (2, 5, 30)


def test_a_wrong_model_is_one_line():
    with pytest.raises(ea.InputError, match="model.attention 'window\\(4\\)' is not causal"):
        ea.Decoder(ea.ModelConfig(**SIZES, attention='window(4)'), rngs=nnx.Rngs(0))

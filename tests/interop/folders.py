"""Stored checkpoints of transformers, written by scripts/make_fixtures, as folders and as arrays."""

import functools
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors.numpy import load_file, save_file

FIXTURES = Path(__file__).parent / 'fixtures'
ARRAYS = 'inputs_and_outputs.safetensors'
NAMES = sorted(path.name for path in FIXTURES.iterdir())
TEXT_TO_TEXT = Path(__file__).parent / 'text_to_text'  # fixtures of encoder-decoders
TEXT_TO_TEXT_NAMES = sorted(path.name for path in TEXT_TO_TEXT.iterdir())
BASES = {'big_bird': 'bert'}  # families whose tensor names have another prefix


def family_of(name: str) -> str:
    return name.rpartition('_')[0]


@functools.cache
def arrays_of(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays 'input/...', 'output/...' and 'plan/...' of an encoder's fixture."""
    return load_file(FIXTURES / name / ARRAYS)


@functools.cache
def text_to_text_arrays(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays 'input/...' and 'output/...' of an encoder-decoder's fixture."""
    return load_file(TEXT_TO_TEXT / name / ARRAYS)


@functools.cache
def classes_of(name: str) -> dict[str, dict]:
    """Returns a dict from the name endings of the classes with heads to the content of their config.json."""
    return json.loads((FIXTURES / name / 'classes.json').read_text())


def tensors_of(name: str, ending: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a class with a head, under the names that transformers writes into files."""
    prefix = BASES.get(family_of(name), family_of(name))
    base = load_file(FIXTURES / name / 'model.safetensors')
    heads = load_file(FIXTURES / name / 'heads.safetensors')
    added = {own.removeprefix(f'{ending}/'): heads[own] for own in heads if own.startswith(f'{ending}/')}
    return {f'{prefix}.{own}': base[own] for own in base} | added


def with_head(name: str, ending: str, folder: Path) -> Path:
    """Writes and returns a checkpoint folder of a class with a head."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors_of(name, ending), folder / 'model.safetensors')
    (folder / 'config.json').write_text(json.dumps(classes_of(name)[ending]))
    return folder


def copied(name: str, folder: Path) -> Path:
    """Writes and returns a copy of a bare model's folder, for tests that change it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ('config.json', 'model.safetensors'):
        shutil.copyfile(FIXTURES / name / file, folder / file)
    return folder


def batch_of(name: str, multiple: int = 1) -> dict[str, Array]:
    """Returns a fixture's inputs as a batch of our models, padded to a multiple of `multiple` positions."""
    inputs = {own.removeprefix('input/'): value for own, value in arrays_of(name).items() if own.startswith('input/')}
    extra = -inputs['input_ids'].shape[1] % multiple
    padded = {own: jnp.asarray(np.pad(value, ((0, 0), (0, extra)))) for own, value in inputs.items()}
    batch = {'tokens': padded['input_ids'], 'segments': padded['attention_mask']}
    batch['token_types'] = padded.get('token_type_ids', jnp.zeros_like(batch['tokens']))
    if 'global_attention_mask' in padded:
        batch['is_global'] = padded['global_attention_mask'] == 1
    return batch

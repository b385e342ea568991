"""Writes Hugging Face folders with random teachers for the data rows of tests/training/tiny_fine_tuning.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.sharding import path_name
from tests.training.tiny_fine_tuning import SPECIALS, WORDS

MODEL = {'width': 16, 'heads': 2, 'layers': 4, 'max_length': 16, 'vocab_size': 18, 'init_std': 0.5}
LABELS = ('good', 'bad')  # The training examples have the opposite order.


def write_teacher(
    folder: Path, *, labels: tuple[str, ...] = LABELS, seed: int = 7, words: list[str] = WORDS, **fields: Any
) -> Path:
    """Writes a folder with a classifier of these labels, or with a masked LM if there are no labels; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / 'vocab.txt'
    vocabulary.write_text('\n'.join([*SPECIALS, *words]) + '\n', encoding='utf-8')
    model = ModelConfig(**(MODEL | {'activation': 'gelu_erf'} | fields))
    head = HeadConfig(kind='sequence', outputs=len(labels)) if labels else HeadConfig()

    def make() -> nnx.Module:
        if labels:
            return FineTuningModel(model, head, rngs=nnx.Rngs(0))
        return PretrainingModel(model, has_pairs=False, rngs=nnx.Rngs(0))

    params = random_params(make, seed, model.init_std)
    problem = 'classification' if labels else 'fill_mask'
    made = Pretrained(model, head, labels, problem, 'bert', vocabulary, True, lambda: params)
    save_pretrained(folder / 'model', made)
    return folder / 'model'


def random_params(make: Callable[[], nnx.Module], seed: int, std: float) -> dict[str, Any]:
    """Returns random kernels and tables, biases of 0 and scales of 1.

    NumPy draws them, so that nothing is compiled.
    """
    rng = np.random.default_rng(seed)

    def array_of(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        constant = {'bias': 0.0, 'scale': 1.0}.get(path_name(path).split('/')[-1])
        drawn = std * rng.standard_normal(leaf.shape)
        return np.asarray(drawn if constant is None else np.full(leaf.shape, constant), leaf.dtype)

    return jax.tree_util.tree_map_with_path(array_of, nnx.to_pure_dict(nnx.state(nnx.eval_shape(make))))

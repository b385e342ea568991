"""Writes Hugging Face folders with small random models, for tests that start from a checkpoint."""

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

SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
WORDS = 'the a red old small river house dog king tree road falls sleeps runs sings waits near under over with'.split()
WORDS += ['.', ',']
MODEL = ModelConfig(
    width=16, heads=2, layers=1, vocab_size=len(SPECIALS + WORDS), max_length=24, init_std=0.5, activation='gelu_erf'
)
KINDS = {
    'question_answering': HeadConfig(kind='span'),
    'classification': HeadConfig(kind='sequence', outputs=3),
    'regression': HeadConfig(kind='sequence', outputs=1),
    'token_classification': HeadConfig(kind='token', outputs=3),
    'multiple_choice': HeadConfig(kind='choice'),
}
LABELS = {'classification': ('bad', 'fair', 'good'), 'token_classification': ('DET', 'NOUN', 'VERB')}


def random_text(words: int, seed: int = 0) -> str:
    """Returns a text of random words from the vocabulary."""
    return ' '.join(np.random.default_rng(seed).choice(WORDS, words))


def random_params(make: Callable[[], nnx.Module]) -> dict[str, Any]:
    """Returns random parameters, with norm scales around 1; NumPy draws them, since JAX would compile 40 programs.

    Args:
        make: makes the module; it is only traced.
    """
    rng = np.random.default_rng(7)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return (rng.normal(0.0, 0.5, leaf.shape) + (path[-1].key == 'scale')).astype(leaf.dtype)

    return jax.tree.map_with_path(draw, nnx.to_pure_dict(nnx.state(nnx.eval_shape(make))))


def write_checkpoint(folder: Path, problem: str, *, is_named: bool = True) -> Path:
    """Writes a checkpoint folder with a head for `problem`, or a masked-LM head for 'fill_mask'; returns the folder.

    Unless `is_named`, the labels are LABEL_0, LABEL_1, ...
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / 'vocab.txt'
    vocabulary.write_text('\n'.join([*SPECIALS, *WORDS]) + '\n', encoding='utf-8')
    head = KINDS.get(problem, HeadConfig())

    def make() -> nnx.Module:
        if problem == 'fill_mask':
            return PretrainingModel(MODEL, has_pairs=False, rngs=nnx.Rngs(0))
        return FineTuningModel(MODEL, head, rngs=nnx.Rngs(0))

    params = random_params(make)
    labels = LABELS.get(problem, ()) if is_named else ()
    made = Pretrained(MODEL, head, labels, problem, 'bert', vocabulary, True, lambda: params)
    save_pretrained(folder / 'model', made)
    return folder / 'model'

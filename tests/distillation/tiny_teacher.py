"""Hugging Face folders with random teachers for the rows of tiny_fine_tuning.py."""

from pathlib import Path
from typing import Any

from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.interop.folder_out import save_pretrained
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel
from tests.training.tiny_fine_tuning import SPECIALS, WORDS

MODEL = {'width': 16, 'heads': 2, 'layers': 4, 'max_length': 16, 'vocab_size': 18, 'init_std': 0.5}
LABELS = ('good', 'bad')  # the examples have them the other way round


def write_teacher(
    folder: Path, *, labels: tuple[str, ...] = LABELS, seed: int = 7, words: list[str] = WORDS, **fields: Any
) -> Path:
    """Writes a classifier with these labels, or a masked model without labels; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / 'vocab.txt'
    vocabulary.write_text('\n'.join([*SPECIALS, *words]) + '\n', encoding='utf-8')
    model, rngs = ModelConfig(**(MODEL | {'activation': 'gelu_erf'} | fields)), nnx.Rngs(seed)
    head = HeadConfig(kind='sequence', outputs=len(labels)) if labels else HeadConfig()
    module: nnx.Module = (
        FineTuningModel(model, head, rngs=rngs) if labels else PretrainingModel(model, has_pairs=False, rngs=rngs)
    )
    params = nnx.to_pure_dict(nnx.state(module))
    problem = 'classification' if labels else 'fill_mask'
    made = Pretrained(model, head, labels, problem, 'bert', vocabulary, True, lambda: params)
    save_pretrained(folder / 'model', made)
    return folder / 'model'

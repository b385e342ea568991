"""Hugging Face folders with small random models, for tests of what is built on checkpoints."""

from pathlib import Path

import numpy as np
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.interop.folder_out import save_pretrained
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel

SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
WORDS = 'the a red old small river house dog king tree road falls sleeps runs sings waits near under over with'.split()
WORDS += ['.', ',']
MODEL = ModelConfig(
    width=16, heads=2, layers=2, vocab_size=len(SPECIALS + WORDS), max_length=24, init_std=0.5, activation='gelu_erf'
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
    """A text of the vocabulary's words."""
    return ' '.join(np.random.default_rng(seed).choice(WORDS, words))


def write_checkpoint(folder: Path, problem: str, *, is_named: bool = True) -> Path:
    """Writes a folder with a head for `problem`, or a masked-LM head for 'fill_mask'; returns it.

    Unless `is_named`, the labels are LABEL_0, LABEL_1, ...
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / 'vocab.txt'
    vocabulary.write_text('\n'.join([*SPECIALS, *WORDS]) + '\n', encoding='utf-8')
    rngs = nnx.Rngs(7)  # no seed of a run, whose drawn parameters would be the same
    head = KINDS.get(problem, HeadConfig())
    model: nnx.Module
    if problem == 'fill_mask':
        model = PretrainingModel(MODEL, has_pairs=False, rngs=rngs)
    else:
        model = FineTuningModel(MODEL, head, rngs=rngs)
    params = nnx.to_pure_dict(nnx.state(model))
    labels = LABELS.get(problem, ()) if is_named else ()
    made = Pretrained(MODEL, head, labels, problem, 'bert', vocabulary, True, lambda: params)
    save_pretrained(folder / 'model', made)
    return folder / 'model'

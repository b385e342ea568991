"""A fine-tuning run that takes seconds: it classifies texts of a few words by whether they contain 'good' or 'bad'.

This is also a config file: python train.py --config tests/training/tiny_fine_tuning.py --config.examples.train=... ...
"""

from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs.finetune.common import fine_tuning_config
from efficient_attention.config.run import RunConfig
from efficient_attention.training.fill_config import fill_config

WORDS = 'good bad the a film was it and not very story we saw'.split()
SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
ROWS = {'train': 160, 'dev': 13}


def write_files(folder: Path) -> None:
    """Writes vocab.txt, train.tsv and dev.tsv."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'vocab.txt').write_text('\n'.join([*SPECIALS, *WORDS]) + '\n', encoding='utf-8')
    for split, rows in ROWS.items():
        rng = np.random.default_rng(len(split))
        lines = ['text\tlabel']
        for row in range(rows):
            words = [*rng.choice(WORDS[2:], rng.integers(1, 12)), WORDS[row % 2]]
            lines.append(f'{" ".join(rng.permutation(words))}\t{WORDS[row % 2]}')
        (folder / f'{split}.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')


def get_config() -> ConfigDict:
    """Returns the config of a classifier with some thousand parameters and two classes; the caller sets its files."""
    config = fine_tuning_config()
    config.examples.problem = 'classification'
    config.examples.epochs = 4.0
    config.examples.buckets = (8, 16)
    config.data.length = 16
    for name, value in {'width': 16, 'heads': 2, 'layers': 2, 'max_length': 16, 'vocab_size': 18}.items():
        config.model[name] = value
    for name, value in {'norm': 'pre', 'init_std': 0.3, 'dropout_rate': 0.0, 'attention_dropout_rate': 0.0}.items():
        config.model[name] = value
    config.head.dropout_rate = 0.0
    config.optimizer.learning_rate = 5e-3
    # Optax's bias correction raises Python floats to int32 counts, which strict promotion refuses
    config.optimizer.bias_correction = False
    config.train.batch_size = 8
    config.train.log_every_steps = 5
    config.checkpoint.every_steps = 40
    config.checkpoint.best_metric = 'accuracy'
    config.eval.every_steps = 40
    config.eval.batch_size = 8
    return config


def tiny_values(folder: Path, **fields: Any) -> dict[str, Any]:
    """Writes the files into `folder` and returns the config's values for them; `fields` are given by dotted name."""
    write_files(folder)
    config = get_config()
    config.examples.train, config.examples.dev = str(folder / 'train.tsv'), str(folder / 'dev.tsv')
    config.data.tokenizer = str(folder / 'vocab.txt')
    config.update_from_flattened_dict(fields)
    return config.to_dict()


def tiny_config(folder: Path, **fields: Any) -> RunConfig:
    """Writes the files into `folder` and returns the complete config for them."""
    return fill_config(tiny_values(folder, **fields)).config

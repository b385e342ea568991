"""A run of a hierarchical model on short reviews of a few sentences, labelled by whether they hold 'good' or 'bad'."""

from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from tests.training.tiny_fine_tuning import WORDS, tiny_values

FIELDS: dict[str, Any] = {
    'examples.sentences': 3,
    'examples.buckets': (4, 10),
    'data.length': 10,
    'model.cell': 'gru',
    'model.attention_dropout_rate': 0.1,
    'model.bidirectional': True,
    'model.feed_forward': False,
    'model.positions': 'none',
    'model.token_types': 0,
    'head.pooling': 'attention',
    'head.sentence_layers': 1,
    'train.steps': 2,
    'checkpoint.every_steps': 2,
    'eval.every_steps': 2,
}


def sentence_values(folder: Path, **fields: Any) -> dict[str, Any]:
    """A config file's values on reviews that are written to the folder; `fields` by dotted name."""
    values = tiny_values(folder, **FIELDS | fields)
    for split, rows in (('train', 40), ('dev', 7)):
        rng, lines = np.random.default_rng(rows), ['text\tlabel']
        for row in range(rows):
            parts = [' '.join(rng.choice(WORDS[2:], rng.integers(1, 9))) for _ in range(rng.integers(1, 4))]
            text = '. '.join(part.capitalize() for part in [*parts, f'it was {WORDS[row % 2]}'])
            lines.append(f'{text}.\t{WORDS[row % 2]}')
        (folder / f'{split}.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return values


def train_sentences(folder: Path, **fields: Any) -> Path:
    """The workdir of such a run, trained for two steps."""
    filled = fill_config(sentence_values(folder / 'files', **fields))
    train(filled.config, folder / 'run', examples=filled.examples)
    return folder / 'run'

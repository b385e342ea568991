"""A tiny run of a hierarchical model on short reviews, labelled by whether they contain 'good' or 'bad'."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.run import build_run
from tests.training.tiny_fine_tuning import WORDS, tiny_values
from tests.training.tiny_run import drawn_workdir

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
    """Writes review files to the folder and returns a config's values for them; `fields` have dotted names."""
    values = tiny_values(folder, **FIELDS | fields)
    for split, rows in (('train', 40), ('dev', 7)):
        rng, lines = np.random.default_rng(rows), ['text\tlabel']
        for row in range(rows):
            parts = [' '.join(rng.choice(WORDS[2:], rng.integers(1, 9))) for _ in range(rng.integers(1, 4))]
            text = '. '.join(part.capitalize() for part in [*parts, f'it was {WORDS[row % 2]}'])
            lines.append(f'{text}.\t{WORDS[row % 2]}')
        (folder / f'{split}.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return values


def drawn_sentences(folder: Path, **fields: Any) -> Path:
    """Returns the folder of such a run, with random parameters that differ from the initial ones."""
    filled = fill_config(sentence_values(folder / 'files', **fields))
    run, rng = build_run(filled.config, examples=filled.examples), np.random.default_rng(0)
    state = run.init_random_state()

    def moved(leaf: jax.Array) -> jax.Array:
        return jax.device_put(np.asarray(leaf) + rng.normal(0.0, 0.1, leaf.shape).astype(leaf.dtype), leaf.sharding)

    return drawn_workdir(run, folder / 'run', dataclasses.replace(state, params=jax.tree.map(moved, state.params)))

"""Trains on toy text-to-text problems: copy, reverse, sort or add up digits; no download needed.

    efficient-attention train --config configs/text_to_text/toy.py:reverse --workdir runs/reverse
    efficient-attention train --config configs/text_to_text/toy.py:reverse-rotary --workdir runs/reverse_rotary

The problem follows the colon. After a dash comes the encoding of positions: sinusoidal (the default), learned, t5 or
rotary. Or a recurrent cell: tanh, gru, lstm, sru1 or sru2, in two layers, with a decoder that attends after each step.
With -state after the cell, the decoder starts with the encoder's states and has no attention (`copy-gru-state`).

Training and held-out sources have 2 to 20 digits; `pairs.test` has 21 to 40, which no training pair has. Held-out
sources of 2 digits, and most of 3 digits, also occur in training.

Runs of 2026-11-24, jax 0.10.2, seed 0, one core of an AMD EPYC, some 6 minutes each, greedy search. Exact match on 500
held-out sources of 2 to 20 digits (sinusoidal, learned, t5, rotary):
- `copy`: 1.000, 0.976, 0.986, 0.996.
- `reverse`: 1.000, 0.994, 0.988, 1.000.
- `sort`: 1.000, 1.000, 1.000, 0.994.
- `sum`: 0.732, 0.652, 0.592, 0.526 (2026-11-25, with other load).

Share of right digits for sources of 31 to 40 digits, in the same order (up to 100 digits:
docs/results/text_to_text.md):
- `copy`: 0.550, 0.366, 0.135, 0.152.
- `reverse`: 0.064, 0.077, 0.208, 0.369.
- `sort`: 0.113, 0.252, 0.659, 0.335.

Recurrent cells, one to three minutes each (2026-11-25, docs/results/recurrent.md), share of right digits over all
cells:
- `copy`: 1.000 with attention, 0.81 to 0.92 without.
- `reverse`: 1.000 and 0.82 to 0.92.
- `sort`: 0.997 and 0.952 or more.
- `sum`: 0.81 to 0.94 and 0.87 to 0.96.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import text_to_text_config

PROBLEMS = ('copy', 'reverse', 'sort', 'sum')
POSITIONS: dict[str, dict[str, object]] = {
    'sinusoidal': {'positions': 'sinusoidal'},
    'learned': {'positions': 'learned'},
    't5': {'positions': 'none', 'relative': 't5'},
    'rotary': {'positions': 'none', 'rotary': True},
}
RECURRENT: dict[str, object] = {'bidirectional': True, 'state_width': 128, 'positions': 'none', 'feed_forward': False}
RECURRENT |= {'initial_state': 'map', 'embedding_scale': False, 'heads': 1}
ATTENDING: dict[str, object] = {'source_reading': 'after', 'attention_bias': False}
# Without attention, the heads and the attention dropout below have no effect.
BLIND: dict[str, object] = {'source_reading': 'state', 'heads': 2, 'attention_dropout_rate': 0.1}
for cell in ('tanh', 'gru', 'lstm', 'sru1', 'sru2'):
    POSITIONS[cell] = RECURRENT | {'cell': cell} | ATTENDING
    POSITIONS[f'{cell}-state'] = RECURRENT | {'cell': cell} | BLIND


def get_config(name: str = 'reverse') -> ConfigDict:
    """Returns the config of a small encoder-decoder on a toy problem, such as reversing digits.

    It has 2 + 2 layers of width 128 and, with attention, 0.9 M parameters.
    """
    problem, _, positions = name.partition('-')
    positions = positions or 'sinusoidal'
    if problem not in PROBLEMS or positions not in POSITIONS:
        known = f'{", ".join(PROBLEMS)}, each with -{", -".join(POSITIONS)}'
        raise ValueError(f"the config's argument is {name!r}; known: {known}")
    config = text_to_text_config()

    config.data.tokenizer = 'train:wordpiece'
    config.data.vocab_size = 32
    config.data.length = 128
    config.pairs.train = f'toy:{problem}:100000:2-20'
    config.pairs.held_out = f'toy:{problem}:500:2-20:1'
    config.pairs.test = f'toy:{problem}:500:21-40:2'
    config.pairs.target_length = 128

    set_fields(config.model, {'width': 128, 'heads': 4, 'layers': 2, 'decoder_layers': 2})
    set_fields(config.model, {'kernel_init': 'fan_in', 'init_std': 128**-0.5, 'embedding_scale': True})
    set_fields(config.model, {'dropout_rate': 0.0, 'attention_dropout_rate': 0.0, 'embedding_norm': False})
    set_fields(config.model, POSITIONS[positions])

    set_fields(config.optimizer, {'learning_rate': 1e-3, 'warmup_steps': 200, 'schedule': 'cosine', 'beta2': 0.98})
    config.train.steps = 2000
    config.train.batch_size = 64
    config.eval.every_steps = 500
    config.eval.batch_size = 64
    config.eval.beams = 1
    config.checkpoint.every_steps = 500
    return config

"""Compares mechanisms in small byte-level language models of the first 4 MB of enwik8, on a laptop CPU.

efficient-attention train --config configs/lm/enwik8_small.py:full --workdir runs/enwik8_full

The mechanism follows the colon: full (the baseline), window, fixed, lsh, reformer (lsh in a reversible stack, with
feed-forward and loss in chunks), favor, transformer_xl, compressive (transformer_xl with compressed older memory),
full_shared, or a recurrent cell: gru, lstm, sru. All have the same tokens and steps, and the same number of parameters
to 0.2 %.

Data: 4,154,399 bytes, the first 90 % for training, the next 5 % held out, the last 5 % for a test. This is 4 % of
enwik8, so bits per byte are only comparable among runs on this excerpt.

Runs of 2026-11-21, jax 0.10.2, one core of an AMD EPYC each with other load, 6 to 9 minutes (transformer_xl 16).
Held-out bits per byte: 2.518 (fixed), 2.550 (full), 2.570 (transformer_xl), 2.580 (reformer), 3.330 (favor). Runs of
2026-11-24, 4 minutes each: 2.348 (gru), 2.402 (lstm), 2.430 (sru). The others were not run to the end. An interpolated
5-gram model (scripts/ngram_baseline.py) scores 2.597. Protocols, contexts and curves:
docs/results/language_modelling.md. scripts/convert.py exports only encoders, so none of these models.
"""

from ml_collections import ConfigDict

from configs.lm.common import small_decoder_config


def get_config(mechanism: str = 'full') -> ConfigDict:
    """Returns the config of a byte-level decoder: 4 layers of width 128 with 4 heads, 0.8 M parameters.

    Each training step has 1,024 bytes.
    """
    config = small_decoder_config(mechanism)
    config.data.source = 'text:data/enwik8/enwik8_first_4154399_bytes'
    config.data.units = 'bytes'
    config.data.vocab_size = 256
    config.data.splitting = 'end'
    config.data.held_out = 0.05
    config.data.test = 0.05
    return config

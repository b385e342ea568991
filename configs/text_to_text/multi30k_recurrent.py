"""Multi30k, German to English: the recurrent encoder-decoders with and without attention, on raw text.

    python train.py --config=configs/text_to_text/multi30k_recurrent.py:bahdanau --workdir=runs/multi30k_bahdanau

After the colon, of 256 units each: `bahdanau` (arXiv 1409.0473: GRUs, both directions, additive scores, a maxout),
`no-attention` and `no-attention-reversed` (the same, but all that the decoder knows of the source is its first state),
`luong` and `luong-feeding` (arXiv 1508.04025: two layers of LSTMs, copied states, `general` scores; without and with
input feeding) and `sru` (arXiv 1709.02755: two layers with residual sums, in a decoder like `luong`'s). `-half` behind
any of them has half of each width and fewer steps, for what is compared by override, such as
`--config.model.cross_attention=sparsemax(full) --config.model.score=dot`.

The data, tokenizer, lengths and evaluation are those of multi30k.py. Where the papers have them otherwise: Adam in
place of Adadelta (`optimizer.name=adadelta`, `learning_rate=1`, `beta2=0.95`) and of gradient descent, pieces for
words, matrices for the values and the output of attention, one map of the joined annotations to the width.

No run is recorded yet. The steps are chosen for 50 minutes of one core, and 15 of `-half`: a gradient of 128 pairs of 20
and 20 tokens took 1.4 s of `bahdanau` and 1.0 s without attention.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.multi30k import get_config as multi30k_config

BOTH: dict[str, Any] = {'bidirectional': True, 'state_width': 256, 'readout': 'maxout', 'cell': 'gru'}
LUONG: dict[str, Any] = {'source_reading': 'after', 'layers': 2, 'decoder_layers': 2, 'score': 'general'}
SETS: dict[str, dict[str, Any]] = {
    'bahdanau': BOTH | {'source_reading': 'before', 'initial_state': 'map_backward', 'score': 'additive'},
    'no-attention': BOTH | {'source_reading': 'state', 'initial_state': 'map'},
    'no-attention-reversed': BOTH | {'source_reading': 'state', 'initial_state': 'map'},
    'luong': LUONG | {'cell': 'lstm', 'initial_state': 'copy'},
    'luong-feeding': LUONG | {'cell': 'lstm', 'initial_state': 'copy', 'input_feeding': True},
    'sru': LUONG | {'cell': 'sru2', 'bidirectional': True, 'residual': True, 'norm': 'pre'},
}


def get_config(name: str = 'bahdanau') -> ConfigDict:
    """The run; `name` as above."""
    kind, half = name.removesuffix('-half'), name.endswith('-half')
    if kind not in SETS:
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(SETS)}, each with -half")
    config = multi30k_config()
    width = 128 if half else 256
    fields = dict(
        width=width,
        heads=1,
        feed_forward=False,
        feed_forward_width=0,
        layers=1,
        decoder_layers=1,
        activation='gelu_tanh',
        positions='none',
        norm='none',
        residual=False,
        embedding_scale=False,
        init_std=0.1,  # of tables; kernels go by their inputs
        dropout_rate=0.3,
        attention_dropout_rate=0.0,
        attention_bias=False,
    )
    set_fields(config.model, fields | SETS[kind])
    if config.model.state_width:
        config.model.state_width = width
    if config.model.source_reading == 'state':
        config.model.heads, config.model.attention_bias, config.model.attention_dropout_rate = 2, True, 0.1  # unread
    config.pairs.reverse_source = kind == 'no-attention-reversed' or kind.startswith('luong')

    config.optimizer.learning_rate = 1e-3
    config.optimizer.beta2 = 0.999
    config.optimizer.eps = 1e-8
    config.optimizer.warmup_steps = 100
    config.train.steps = 1200 if half else 2000
    config.train.label_smoothing = 0.0
    config.eval.every_steps = 400 if half else 500
    config.checkpoint.every_steps = config.eval.every_steps
    return config

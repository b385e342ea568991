r"""Trains recurrent encoder-decoders with and without attention on Multi30k, German to English, on raw text.

    efficient-attention train --config=configs/text_to_text/multi30k_recurrent.py:bahdanau \
      --workdir=runs/multi30k_bahdanau

The model follows the colon, each with 256 units:
- `bahdanau` (arXiv 1409.0473): GRUs, bidirectional encoder, additive scores, a maxout.
- `no-attention` and `no-attention-reversed`: the same, but the decoder only gets the source as its first state.
- `luong` and `luong-feeding` (arXiv 1508.04025): two layers of LSTMs, copied states, `general` scores; without and with
  input feeding.
- `sru` (arXiv 1709.02755): two layers with residual sums, with a decoder like `luong`'s.

With the suffix `-half`, a model has half of each width and fewer steps. It is meant for comparisons by override, such
as `--config.model.cross_attention=sparsemax(full) --config.model.score=dot`.

Data, tokenizer, lengths and evaluation are the same as in multi30k.py. Differences from the papers: Adam instead of
Adadelta (`optimizer.name=adadelta`, `learning_rate=1`, `beta2=0.95`) and of gradient descent, pieces instead of words,
matrices for the values and the output of attention, one map of the joined annotations to the width.

Runs of 2026-11-24, jax 0.10.2, seed 0, one core of an AMD EPYC with other load. BLEU on test_2016_flickr (13a, mixed
case, 5 beams): 36.5 for `bahdanau` in 36 minutes, 16.0 for `no-attention` in 23. Runs of 2026-11-25: 34.9 for `sru` in
72 minutes (median 0.94 seconds per step), 26.8 for `luong-feeding` in 47, 26.6 for `luong` in 52, 15.8 for
`no-attention-reversed` in 57. docs/results/recurrent.md has lengths and alignments, docs/taxonomy.md results of
`-half`.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import text_to_text_config

BOTH: dict[str, object] = {'bidirectional': True, 'state_width': 256, 'readout': 'maxout', 'cell': 'gru'}
LUONG: dict[str, object] = {'source_reading': 'after', 'layers': 2, 'decoder_layers': 2, 'score': 'general'}
SETS: dict[str, dict[str, object]] = {
    'bahdanau': BOTH | {'source_reading': 'before', 'initial_state': 'map_backward', 'score': 'additive'},
    'no-attention': BOTH | {'source_reading': 'state', 'initial_state': 'map'},
    'no-attention-reversed': BOTH | {'source_reading': 'state', 'initial_state': 'map'},
    'luong': LUONG | {'cell': 'lstm', 'initial_state': 'copy'},
    'luong-feeding': LUONG | {'cell': 'lstm', 'initial_state': 'copy', 'input_feeding': True},
    'sru': LUONG | {'cell': 'sru2', 'bidirectional': True, 'residual': True, 'norm': 'pre'},
}


def get_config(name: str = 'bahdanau') -> ConfigDict:
    """Returns the config of a recurrent encoder-decoder that translates Multi30k, such as 'bahdanau' or 'luong'."""
    kind, half = name.removesuffix('-half'), name.endswith('-half')
    if kind not in SETS:
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(SETS)}, each with -half")
    config = text_to_text_config()

    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 8000
    config.data.length = 96
    for split, file in (('train', 'train'), ('held_out', 'val'), ('test', 'test_2016_flickr')):
        config.pairs[split] = f'lines:data/multi30k/raw/{file}.de.gz,data/multi30k/raw/{file}.en.gz'
    config.pairs.target_length = 96
    config.pairs.buckets = (12, 16, 20, 24, 28, 32, 40, 64)  # half of the pairs have at most 16 tokens per language
    config.pairs.reverse_source = kind == 'no-attention-reversed' or kind.startswith('luong')

    width = 128 if half else 256
    fields = dict(
        width=width,
        heads=1,
        feed_forward=False,
        feed_forward_width=0,
        layers=1,
        decoder_layers=1,
        positions='none',
        norm='none',
        residual=False,
        embedding_norm=False,
        kernel_init='fan_in',
        init_std=0.1,  # initial standard deviation of embedding tables; kernels are scaled by their number of inputs
        dropout_rate=0.3,
        attention_dropout_rate=0.0,
        attention_bias=False,
    )
    set_fields(config.model, fields | SETS[kind])
    if config.model.state_width:
        config.model.state_width = width
    if config.model.source_reading == 'state':
        config.model.heads, config.model.attention_bias, config.model.attention_dropout_rate = 2, True, 0.1  # not read

    recipe = dict(learning_rate=1e-3, schedule='cosine', warmup_steps=100, eps=1e-8, weight_decay=0.0)
    set_fields(config.optimizer, recipe | {'bias_correction': True})
    config.train.steps = 1200 if half else 2000
    config.train.batch_size = 128
    config.eval.every_steps = 400 if half else 500
    config.eval.batch_size = 64
    config.checkpoint.every_steps = 400 if half else 500
    config.checkpoint.keep = 5
    return config

"""T5 and T5 1.1 in all sizes, pretrained by span corruption of C4 (Raffel et al. 2019, arXiv 1910.10683).

    python train.py --config configs/text_to_text/t5.py:small --workdir runs/t5_small
    python train.py --config configs/text_to_text/t5.py:v1_1-base --workdir runs/t5_v1_1_base

`small` has 60,506,624 parameters, `v1_1-small` 76,961,152; tests/models/test_encoder_decoder_sizes.py has all. The
recipe is from sections 3.1.2 and 3.1.4 and the released code: 2^19 steps of 128 rows of 512 tokens, Adafactor with the
rate 0.01 * (10,000 / step)^0.5, and a loss of 1e-4 on the square of log z. Here the rate rises over the first 10,000
steps; in the paper it is 0.01 there. Version 1.1 has gates, a separate output matrix and no dropout.

Data: files of JSON lines with a field `text`, the published form of C4's English part. The 32,000 pieces are a
SentencePiece model in the paper, and a unigram model trained here (`--config.data.tokenizer=spiece.model` uses the
released one). Not run here at these sizes; books.py has a small one.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import text_to_text_config
from efficient_attention.models.encoder_decoder_sizes import T5_SIZES, T5_V1_1_SIZES, t5_fields, t5_v1_1_fields

SIZES = (*T5_SIZES, *(f'v1_1-{size}' for size in T5_V1_1_SIZES))
RATES = ('dropout_rate', 'attention_dropout_rate', 'feed_forward_dropout_rate')


def get_config(size: str = 'small') -> ConfigDict:
    """Returns the config of a T5 or T5 1.1 of the given size, pretrained as in the paper."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    config = text_to_text_config()

    config.data.source = 'jsonl:data/c4/en/c4-train.*.json.gz#text'
    config.data.held_out = 0.001
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 32_128  # 32,000 pieces and the sentinels, rounded up to a multiple of 128
    config.data.length = 512  # tokens per source, made from a text of 568 tokens
    config.pairs.target_length = 114
    config.noise.name = 'span_corruption'

    version, _, name = size.rpartition('-')
    # T5 1.1 was pretrained without dropout.
    set_fields(config.model, t5_v1_1_fields(name) | dict.fromkeys(RATES, 0.0) if version else t5_fields(name))
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'
    config.model.loss_chunk = 57  # positions, half of a target

    rule = {'name': 'adafactor', 'learning_rate': 1e-2, 'warmup_steps': 10_000, 'schedule': 'rsqrt'}
    set_fields(config.optimizer, rule | {'weight_decay': 0.0})
    config.train.steps = 2**19
    config.train.batch_size = 128  # rows
    config.train.z_loss = 1e-4
    config.train.log_every_steps = 100
    config.eval.every_steps = 5_000
    config.eval.batch_size = 128
    config.checkpoint.every_steps = 5_000
    return config

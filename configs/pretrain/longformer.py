"""Longformer-base, pretrained with masked LM on packed rows of 4,096 tokens, with a window of 513 keys.

efficient-attention train --config configs/pretrain/longformer.py --workdir runs/longformer

148,659,456 parameters with pooler and projections of global tokens (tests/models/test_encoder_sizes.py). This config
leaves out these projections, because tasks mark tokens as global, but pretraining does not. Sizes, batch (64 rows),
steps, rate and warm-up are from Beltagy et al. 2020 (arXiv 2004.05150, section 5). The paper continues from RoBERTa
with a polynomial decay; this config starts from scratch with a linear decay. Not run here at this size;
configs/pretrain/books_long.py has a small one.
"""

from ml_collections import ConfigDict

from configs.common import default_config, set_fields
from efficient_attention.models.encoder_sizes import longformer_fields


def get_config() -> ConfigDict:
    """Returns the config of a Longformer-base, pretrained with masked LM."""
    config = default_config()

    config.data.source = 'text:data/long_documents/*.txt'  # replace this by your own corpus, one document per file
    config.data.tokenizer = 'train:bpe'
    config.data.vocab_size = 50_265
    config.data.length = 4096  # tokens
    config.data.pairs = 'none'
    config.data.mask_unit = 'word'
    config.data.max_masked = 614
    config.data.workers = 8
    config.data.held_out = 0.005

    set_fields(config.model, longformer_fields('base'))
    config.model.global_tokens = 0  # fine-tuning tasks mark tokens as global, but pretraining does not
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.optimizer.learning_rate = 3e-5
    config.optimizer.warmup_steps = 500
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True

    config.train.steps = 65_000
    config.train.batch_size = 64  # rows
    config.train.micro_batches = 1  # increase this number if the rows of a batch do not fit into the memory of a device

    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 5_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 32
    return config

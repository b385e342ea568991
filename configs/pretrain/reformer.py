"""A Reformer encoder, pretrained with masked LM on packed rows of 8,192 tokens; local and LSH layers alternate.

efficient-attention train --config configs/pretrain/reformer.py --workdir runs/reformer

Shared-QK heads of 64, width 512. Every second layer is LSH with chunks of 64 and 4 rounds; the others have a window of
64. This follows the released configurations, whose sizes are for decoders (Kitaev et al. 2020, arXiv 2001.04451), but
without reversible layers. The recipe is our choice. Not run here at this size; configs/pretrain/books_long.py has a
small one.
"""

from ml_collections import ConfigDict

from configs.common import default_config


def get_config() -> ConfigDict:
    """Returns the config of a Reformer encoder: 6 layers of width 512 with 8 heads."""
    config = default_config()

    config.data.source = 'text:data/long_documents/*.txt'  # replace this by your own corpus, one document per file
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 32_768
    config.data.length = 8192  # tokens
    config.data.pairs = 'none'
    config.data.mask_unit = 'word'
    config.data.max_masked = 1229
    config.data.workers = 8
    config.data.held_out = 0.005

    config.model.width = 512
    config.model.heads = 8
    config.model.layers = 6
    config.model.max_length = 8192
    config.model.attention = 'window(64); lsh(64, 4)'
    config.model.shared_qk = True
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 10_000
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True

    config.train.steps = 200_000
    config.train.batch_size = 64  # rows
    config.train.micro_batches = 1  # increase this number if the rows of a batch do not fit into the memory of a device

    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 5_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 32
    return config

"""BigBird-base (ITC), pretrained with masked LM on rows of 4,096 tokens; window, global and random blocks of 64.

efficient-attention train --config configs/pretrain/bigbird.py --workdir runs/bigbird

127,468,800 parameters with pooler (tests/models/test_encoder_sizes.py). The recipe follows Zaheer et al. 2020 (arXiv
2007.14062, appendix E) as far as it is published: 256 rows, rate 1e-4, 10,000 steps of warm-up. The number of steps is
our choice. Unlike in the paper's code, attention dropout also acts on the sparse path, and random blocks are sampled
from all blocks at every length. Not run here at this size; configs/pretrain/books_long.py has a small one.
"""

from ml_collections import ConfigDict

from configs.common import default_config, set_fields
from efficient_attention.models.encoder_sizes import bigbird_fields


def get_config() -> ConfigDict:
    """Returns the config of a BigBird-base, pretrained with masked LM."""
    config = default_config()

    config.data.source = 'text:data/long_documents/*.txt'  # replace this by your own corpus, one document per file
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 50_358
    config.data.length = 4096  # tokens
    config.data.pairs = 'none'
    config.data.mask_unit = 'word'
    config.data.max_masked = 614
    config.data.workers = 8
    config.data.held_out = 0.005

    set_fields(config.model, bigbird_fields('base'))
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 10_000
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True

    config.train.steps = 500_000
    config.train.batch_size = 256  # rows
    config.train.micro_batches = 1  # increase this number if the rows of a batch do not fit into the memory of a device

    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 5_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 32
    return config

"""A Performer encoder, pretrained with masked LM on packed rows of 8,192 tokens; FAVOR+ with 256 features.

efficient-attention train --config configs/pretrain/performer.py --workdir runs/performer

Sizes are the "regular" ones of Choromanski et al. 2020 (arXiv 2009.14794, figure 3): 8 heads, 6 layers, feed-forward
width 2,048, width 512. Clipping at 0.5, weight decay 0.1, rate 1e-3 and dropout 0.1 are from its appendix A.2. FAVOR+
has no attention weights to drop. Features are resampled every 1,000 steps. Not run here at this size;
configs/pretrain/books_long.py has a small one.
"""

from ml_collections import ConfigDict

from configs.common import default_config


def get_config() -> ConfigDict:
    """Returns the config of a Performer encoder: 6 layers of width 512 with 8 heads."""
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
    config.model.attention = 'favor(256)'
    config.model.attention_redraw_steps = 1000
    config.model.attention_dropout_rate = 0.0
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 10_000
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True
    config.optimizer.clip_norm = 0.5
    config.optimizer.weight_decay = 0.1

    config.train.steps = 200_000
    config.train.batch_size = 64  # rows
    config.train.micro_batches = 1  # increase this number if the rows of a batch do not fit into the memory of a device

    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 5_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 32
    return config

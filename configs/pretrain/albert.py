"""ALBERT in its four published sizes, with the paper's recipe: n-gram masking, sentence order prediction, LAMB.

efficient-attention train --config configs/pretrain/albert.py:base --workdir runs/albert_base

The size follows the colon: base, large, xlarge, xxlarge. Parameter counts of encoder and pooler: 11,683,584,
17,683,968, 58,724,864 and 222,595,584 (tests/models/test_encoder_sizes.py). The recipe is from Lan et al. 2019 (arXiv
1909.11942, section 4.1) and its released code, except max_masked: the code's 20 predictions at length 512 would be 4 %
of the tokens, and 15 % are 77. Not run here: the paper used 64 to 512 TPU v3.
"""

from ml_collections import ConfigDict

from configs.common import default_config, set_fields
from efficient_attention.models.encoder_sizes import albert_fields


def get_config(size: str = 'base') -> ConfigDict:
    """Returns the config of an ALBERT of the given size, pretrained as in the paper."""
    config = default_config()

    config.data.source = 'text:data/books_and_wikipedia/*.txt'  # replace this by your own corpus, one document per file
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 30_000
    config.data.length = 512  # tokens
    config.data.pairs = 'sop'
    config.data.mask_unit = 'ngram'
    config.data.max_ngram = 3  # words
    config.data.max_masked = 77
    config.data.static_copies = 40  # after forty epochs, the random masks and sentence pairs repeat
    config.data.workers = 8
    config.data.held_out = 0.005

    set_fields(config.model, albert_fields(size))
    config.model.dtype = 'bfloat16'

    config.optimizer.name = 'lamb'
    config.optimizer.learning_rate = 1.76e-3
    config.optimizer.warmup_steps = 3_125
    config.optimizer.schedule = 'bert'
    config.optimizer.bias_correction = False

    config.train.steps = 125_000
    config.train.batch_size = 4096  # rows
    config.train.micro_batches = 1  # increase this number if the rows of a batch do not fit into the memory of a device
    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 5_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 512
    return config

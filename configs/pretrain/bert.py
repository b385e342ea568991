"""BERT in all its published sizes, with the paper's recipe: masked LM and next sentences on books and Wikipedia.

efficient-attention train --config configs/pretrain/bert.py:base --workdir runs/bert_base

The size follows the colon: base, large, tiny, mini, small, medium, or any of the 24 miniatures as <layers>x<width>,
such as 4x256. Parameter counts of encoder and pooler: base 109,482,240, large 335,141,888
(tests/models/test_encoder_sizes.py has all). The recipe is from Devlin et al. 2018 (arXiv 1810.04805, A.2) and its
released code. 90 % of the paper's steps run at length 128, the rest at 512. Not run here: a million steps take days on
a TPU pod.
"""

from ml_collections import ConfigDict

from configs.common import default_config, set_fields
from efficient_attention.models.encoder_sizes import bert_fields


def get_config(size: str = 'base') -> ConfigDict:
    """Returns the config of a BERT of the given size, pretrained as in the paper."""
    config = default_config()

    config.data.source = 'text:data/books_and_wikipedia/*.txt'  # replace this by your own corpus, one document per file
    config.data.tokenizer = 'data/tokenizers/bert-base-uncased-vocab.txt'
    config.data.vocab_size = 30_522
    config.data.length = 128  # tokens per row; in the paper, the last 10 % of steps have 512 tokens, with max_masked 77
    config.data.pairs = 'nsp'
    config.data.mask_unit = 'token'
    config.data.max_masked = 20
    config.data.static_copies = 10  # after ten epochs, the random masks and sentence pairs repeat
    config.data.workers = 8
    config.data.held_out = 0.005

    set_fields(config.model, bert_fields(size))
    config.model.dtype = 'bfloat16'
    config.model.remat = 'auto'  # on a GPU or TPU, 'dots' if it fits the memory

    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 10_000
    config.optimizer.schedule = 'bert'
    config.optimizer.bias_correction = False

    config.train.steps = 1_000_000
    config.train.batch_size = 256  # rows
    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 10_000
    config.eval.every_steps = 10_000
    config.eval.batch_size = 256
    return config

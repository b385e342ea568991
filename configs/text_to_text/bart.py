"""BART base and large, pretrained by infilling and sentence permutation (Lewis et al. 2019, arXiv 1910.13461).

    python train.py --config configs/text_to_text/bart.py:base --workdir runs/bart_base

139,420,416 and 406,291,456 parameters (tests/models/test_encoder_decoder_sizes.py). The recipe is section 5.1's for
large: one mask per span over 30 % of the words, sentences in random order, 500,000 steps of 8,000 texts. The paper
removes dropout in the last tenth of the steps; this config does not. The paper names no rate, warm-up, betas or length.
They are RoBERTa's (Liu et al. 2019, arXiv 1907.11692, table 9), with 512 tokens per text. The byte-pair vocabulary is
trained here. Not run here at these sizes; books.py has a small one.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import text_to_text_config
from efficient_attention.models.encoder_decoder_sizes import bart_fields

SIZES = {'base': 6e-4, 'large': 4e-4}  # {name of the size: learning rate}


def get_config(size: str = 'base') -> ConfigDict:
    """Returns the config of a BART of the given size, pretrained as in the paper."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    config = text_to_text_config()

    config.data.source = 'text:data/long_documents/*.txt'  # replace this by your own corpus, one document per file
    config.data.held_out = 0.005
    config.data.tokenizer = 'train:bpe'
    config.data.vocab_size = 50_265
    config.data.length = 512  # tokens
    config.pairs.target_length = 512
    config.noise.name = 'bart'

    set_fields(config.model, bart_fields(size) | {'norm': 'post'})
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'
    config.model.loss_chunk = 128  # positions

    recipe = {'learning_rate': SIZES[size], 'schedule': 'linear', 'warmup_steps': 30_000 if size == 'large' else 24_000}
    adam = {'beta2': 0.98, 'eps': 1e-6, 'weight_decay': 0.01, 'bias_correction': True}
    set_fields(config.optimizer, recipe | adam)
    config.train.steps = 500_000
    config.train.batch_size = 8_000  # texts per batch
    config.train.micro_batches = 1  # increase this number if a batch does not fit into the memory of a device
    config.train.log_every_steps = 100
    config.eval.every_steps = 5_000
    config.eval.batch_size = 64
    config.checkpoint.every_steps = 5_000
    return config

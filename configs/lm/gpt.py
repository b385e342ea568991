"""GPT-2 in its four sizes and the smallest GPT-3: decoders with full causal attention and a byte-level tokenizer.

efficient-attention train --config configs/lm/gpt.py:small --workdir runs/gpt2_small

The size follows the colon: small (124,439,808 parameters), medium (354,823,168), large (774,030,080), xl
(1,557,611,200) of GPT-2, and gpt3_small (125,226,240); tests/models/test_decoder_sizes.py.

Recipe: GPT-3's (Brown et al. 2020, arXiv 2005.14165, appendix B). Half a million tokens per step for 300 billion
tokens, Adam 0.9, 0.95, weight decay 0.1, clipping 1.0, a warm-up of 375 M tokens, and a cosine decay to a tenth. The
paper reaches this tenth at 260 billion tokens, this config at the end. The batch is constant, unlike the paper's.
GPT-2's published recipe only has the 512 rows, so its sizes use the rates of GPT-3 models of similar size. All layers
are dense; GPT-3's alternate with local bands. Paper: LAMBADA without examples, 42.7 % and a perplexity of 18.6
(gpt3_small); GPT-2 small 37.50 on WikiText-103. Not run here.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config
from efficient_attention.models.decoder_sizes import gpt2_fields, gpt3_fields

# This maps the name of a size to fields of `model`, tokens per row, and rows per batch.
SIZES = {name: (gpt2_fields(name), 1024, 512) for name in ('small', 'medium', 'large', 'xl')}
SIZES['gpt3_small'] = (gpt3_fields('small'), 2048, 244)


def get_config(size: str = 'small') -> ConfigDict:
    """Returns the config of a GPT-2 of the given size, or of the smallest GPT-3."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    fields, length, rows = SIZES[size]
    config = language_modelling_config()

    config.data.source = 'text:data/web_text/*.txt'  # replace this by your own corpus, one document per file
    config.data.tokenizer = 'train:bpe'
    config.data.vocab_size = 50_257
    config.data.lowercase = False
    config.data.held_out = 0.005
    config.data.length = length  # tokens

    set_fields(config.model, fields)
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'
    config.model.loss_chunk = 256  # positions

    config.optimizer.learning_rate = {'medium': 3e-4, 'large': 2.5e-4, 'xl': 2e-4}.get(size, 6e-4)
    config.optimizer.warmup_steps = 750
    config.optimizer.schedule = 'cosine'
    config.optimizer.end_learning_rate_ratio = 0.1
    config.optimizer.bias_correction = True
    config.optimizer.beta2 = 0.95
    config.optimizer.eps = 1e-8
    config.optimizer.weight_decay = 0.1

    config.train.steps = 600_000
    config.train.batch_size = rows
    config.train.micro_batches = 1  # increase this number if the rows of a batch do not fit into the memory of a device

    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 5_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 32
    return config

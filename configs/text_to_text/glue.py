r"""Fine-tunes on GLUE as text to text, from 'sst2 sentence: ...' to 'positive' (Raffel et al. 2019, arXiv 1910.10683).

    efficient-attention train --config configs/text_to_text/glue.py:sst2 --workdir runs/sst2_text
    efficient-attention train --config configs/text_to_text/glue.py:sst2-pretrained --workdir runs/sst2_t5 \
        --config.train.start_from=<checkpoint>

Trains a small model from scratch. With -pretrained, it takes sizes, tokenizer, symbols and parameters of an
encoder-decoder in a workdir or a Hugging Face folder. For comparison, --config.train.start_random=True initialises its
parameters randomly. `eval.py` prints the task's metrics. File names are the benchmark's own; each can be changed:
--config.pairs.train=...
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import leave_model_open, text_to_text_config

# This maps each GLUE task to its folder, its held-out files, and the number of its training rows.
TASKS = {
    'cola': ('CoLA', 'dev.tsv', 8_551),
    'sst2': ('SST-2', 'dev.tsv', 67_349),
    'mrpc': ('MRPC', 'dev.tsv', 3_668),
    'qqp': ('QQP', 'dev.tsv', 363_846),
    'stsb': ('STS-B', 'dev.tsv', 5_749),
    'mnli': ('MNLI', 'dev_matched.tsv,dev_mismatched.tsv', 392_702),
    'qnli': ('QNLI', 'dev.tsv', 104_743),
    'rte': ('RTE', 'dev.tsv', 2_490),
    'wnli': ('WNLI', 'dev.tsv', 635),
}


def get_config(name: str = 'sst2') -> ConfigDict:
    """Returns the config of a GLUE task as text to text: 3 epochs of batches of 32.

    Targets have at most 8 tokens. `name` is a task, or '<task>-pretrained'.
    """
    task, _, start = name.partition('-')
    if task not in TASKS or start not in ('', 'pretrained'):
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(TASKS)}, each with -pretrained")
    folder, held_out, rows = TASKS[task]
    config = text_to_text_config()

    files = ','.join(f'data/glue/{folder}/{file}' for file in held_out.split(','))
    config.pairs.train = f'glue:{task}:data/glue/{folder}/train.tsv'
    config.pairs.held_out = f'glue:{task}:{files}'
    config.pairs.target_length = 8
    config.data.length = 128  # maximum tokens of a source
    config.pairs.buckets = (16, 24, 32, 48, 64)  # most sentences of these tasks have 10 to 50 tokens
    if start:
        leave_model_open(config)
    else:
        config.data.tokenizer = 'train:unigram'
        config.data.vocab_size = 8000
        fields = {'width': 256, 'heads': 4, 'feed_forward_width': 512, 'layers': 4, 'decoder_layers': 4}
        fields |= {'positions': 'sinusoidal', 'embedding_norm': False, 'embedding_scale': True}
        set_fields(config.model, fields | {'kernel_init': 'fan_in', 'init_std': 256**-0.5})

    config.train.batch_size = 32
    config.train.steps = 3 * rows // config.train.batch_size
    recipe = {'learning_rate': 3e-4, 'schedule': 'linear', 'weight_decay': 0.0, 'bias_correction': True}
    set_fields(config.optimizer, recipe | {'warmup_steps': config.train.steps // 10})
    config.eval.every_steps = 250
    config.eval.batch_size = 64
    config.eval.beams = 1
    config.checkpoint.every_steps = 250
    return config

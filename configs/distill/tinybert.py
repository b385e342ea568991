r"""Distils TinyBERT on a corpus, and then in two stages on a task (Jiao et al. 2019, arXiv 1909.10351).

    efficient-attention train --config configs/distill/tinybert.py:general --workdir runs/tiny \
      --config.distill.teacher=<encoder>
    efficient-attention train --config configs/distill/tinybert.py:intermediate --workdir runs/tiny_inside \
      --config.train.start_from=runs/tiny --config.distill.teacher=runs/sst2
    efficient-attention train --config configs/distill/tinybert.py:prediction --workdir runs/tiny_sst2 \
      --config.train.start_from=runs/tiny_inside --config.distill.teacher=runs/sst2

Each stage starts from the previous stage. The first two stages learn the teacher's embeddings, hidden states after each
layer and attention logits, but no labels; their metric is the loss. The last stage learns the teacher's class
probabilities. A dash selects another GLUE task (`intermediate-stsb`). The student's 4 layers learn from layers 2, 3, 5
and 6 of a teacher with six layers. For BERT-base, --config.distill.layers=uniform maps them to layers 3, 6, 9 and 12. A
teacher with a number of heads other than 12 needs a student with the same number (--config.model.heads in the general
stage).

Differences from the paper: its corpus is Wikipedia, three passes in batches of 256. Its two stages on a task take 10 to
50 epochs and 3 epochs, on augmented rows.
"""

from ml_collections import ConfigDict

from configs.common import default_config, set_fields
from configs.finetune.common import GLUE_TASKS, glue_config
from efficient_attention.models.encoder_sizes import tinybert_fields

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'
STAGES = ('general', 'intermediate', 'prediction')
ARGUMENTS = ('general', *(f'{stage}-{task}' for stage in STAGES[1:] for task in GLUE_TASKS))
INSIDE = {'labels': 0.0, 'soft': 0.0, 'hidden': 1.0, 'embeddings': 1.0, 'attention': 1.0, 'layers': '2,3,5,6'}


def get_config(name: str = 'general') -> ConfigDict:
    """Returns the config of one stage of TinyBERT, whose student has 4 layers of width 312."""
    stage, _, task = name.partition('-')
    if stage not in STAGES or (task and (stage == 'general' or task not in GLUE_TASKS)):
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(ARGUMENTS)}")
    return general() if stage == 'general' else of_task(stage, task or 'sst2')


def general() -> ConfigDict:
    """Returns the config of TinyBERT's general stage, which trains only the encoder, on a corpus."""
    config = default_config()

    config.data.source = BOOKS
    config.data.tokenizer = 'checkpoints/minilm/tokenizer.json'
    config.data.vocab_size = 30_522
    config.data.length = 128  # tokens
    config.data.mask_rate = 0.0  # TinyBERT's released general models of version 2 were also trained without [MASK]

    set_fields(config.model, tinybert_fields('4'))
    config.model.activation = 'gelu_erf'
    config.model.dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0

    set_fields(config.distill, INSIDE)

    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True
    config.optimizer.warmup_steps = 300
    config.train.steps = 6_000
    config.train.batch_size = 32  # rows
    config.train.log_every_steps = 50
    config.checkpoint.best_metric = 'loss'
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 2_000
    config.eval.batch_size = 64
    return config


def of_task(stage: str, task: str) -> ConfigDict:
    """Returns the config of TinyBERT's intermediate or prediction stage on a GLUE task."""
    config = glue_config(task)
    config.data.length = 128  # tokens

    if stage == 'intermediate':
        set_fields(config.distill, INSIDE)
        config.checkpoint.best_metric, config.checkpoint.best_mode = 'loss', 'min'
    else:
        set_fields(config.distill, {'labels': 0.0, 'soft': 1.0})

    config.examples.epochs = 10.0 if stage == 'intermediate' else 3.0
    config.optimizer.learning_rate = 5e-5 if stage == 'intermediate' else 3e-5
    config.train.batch_size = 32  # rows
    config.eval.every_steps = 500
    config.checkpoint.every_steps = 500
    return config

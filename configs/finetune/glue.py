r"""Fine-tunes any checkpoint on one GLUE task (Wang et al. 2018, arXiv 1804.07461).

efficient-attention train --config configs/finetune/glue.py:sst2 --workdir runs/sst2 \
      --config.train.start_from=<checkpoint>

File names are the benchmark's own; each can be changed: --config.examples.train=... Results:
docs/results/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import GLUE_TASKS, glue_config

TASKS = GLUE_TASKS


def get_config(task: str = 'sst2') -> ConfigDict:
    """Returns the config of fine-tuning on a GLUE task: 3 epochs of batches of 32 rows of at most 128 tokens.

    The learning rate is from BERT's grid. The checkpoint with the best evaluation is kept.
    """
    if task not in TASKS:
        raise ValueError(f'unknown task {task!r}; known: {", ".join(TASKS)}')
    config = glue_config(task)

    config.examples.epochs = 3.0
    config.data.length = 128  # tokens

    config.optimizer.learning_rate = 5e-5
    config.train.batch_size = 32  # rows
    config.eval.every_steps = 250
    config.checkpoint.every_steps = 250
    return config

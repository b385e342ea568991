r"""Fine-tunes on GLUE tasks while pruning the layers' weights; starts from a pretrained or a fine-tuned model.

    efficient-attention train --config configs/prune/glue.py:sst2_movement_3 --workdir runs/pruned \
      --config.train.start_from=checkpoints/minilm

The argument is the task, the method and the percentage of weights that remain. Methods: `magnitude`, `movement` (arXiv
2005.07683) or `random`. With `third_` before the method, half of the heads and a quarter of the feed-forward units
remain, which is a third of the layers' weights (`sst2_third_movement`).

`soft_movement` and `l0` have no percentage; --config.prune.penalty determines it. Weights left after 1,500 steps by
`soft_movement`: 68 % with 400 (the default), 15 % with 2,000, 3 % with 4,500, 1 % with 8,000. By `l0`: 14 % with 125
(the default), 2.5 % with 500. More steps leave fewer weights, and the last evaluation is the best.

With a teacher: --config.distill.teacher=runs/sst2.

Six epochs: all weights for the first tenth of the run, the cubic schedule for seven tenths, and the final share for the
last two tenths. Only evaluations in the last two tenths compete for the best checkpoint. Results:
docs/results/compression.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import GLUE_TASKS, glue_config
from configs.prune.common import set_pruning


def get_config(name: str = 'sst2_movement_3') -> ConfigDict:
    """Returns the config of fine-tuning with pruning on a GLUE task: six epochs of batches of 32 rows of 128 tokens."""
    task, _, method = name.partition('_')
    config = glue_config(task) if task in GLUE_TASKS else None
    if config is None or not set_pruning(config, method):
        known = f'{", ".join(GLUE_TASKS)} with _magnitude_3, _movement_15, _random_50 or another percentage, '
        known += '_soft_movement, _l0, _third_magnitude, _third_movement, _third_random'
        raise ValueError(f"the config's argument is {name!r}; known: {known}")

    config.examples.epochs = 6.0
    config.data.length = 128  # tokens

    config.optimizer.learning_rate = 5e-5
    config.train.batch_size = 32  # rows
    config.eval.every_steps = 250
    config.checkpoint.every_steps = 250
    return config

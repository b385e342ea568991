"""GLUE's tasks while weights of the layers are pruned, from a checkpoint or a fine-tuned model.

    python train.py --config configs/prune/glue.py:sst2_movement_3 --workdir runs/pruned \
      --config.train.start_from=checkpoints/minilm

After the task come the method and the percentage of the weights that are left: `magnitude` or `movement` (arXiv
2005.07683), or `random`. `soft_movement` and `l0` have no percentage, --config.prune.penalty decides it: of
`soft_movement` in 1,500 steps 400 (the default) leaves 68 % of the weights, 2,000 15 %, 4,500 3 % and 8,000 1 %, of
`l0` 125 (the default) 14 % and 500 2.5 %; more steps leave less, and the last evaluation is the best. With `third_`
before the method half of the heads and a quarter of the feed-forward units are left, which is a third of the layers'
weights (`sst2_third_movement`). With a teacher: --config.distill.teacher=runs/sst2.

Six epochs: all weights for the first tenth of the run, the cubic schedule for seven tenths, the final share for the
last two, of which alone the best evaluation is kept. Figures: docs/results/compression.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import GLUE_TASKS, glue_config
from configs.prune.common import set_pruning


def get_config(name: str = 'sst2_movement_3') -> ConfigDict:
    """Six epochs of batches of 32 at 128 tokens."""
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

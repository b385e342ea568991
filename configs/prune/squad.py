r"""Fine-tunes on SQuAD 1.1 while pruning the layers' weights (Sanh et al. 2020, arXiv 2005.07683).

    efficient-attention train --config configs/prune/squad.py:magnitude_50 --workdir runs/pruned_squad \
      --config.train.start_from=checkpoints/minilm

The argument is the method and the percentage of weights that remain, as in glue.py; `dense` is the same run without
pruning. The paper: 10 epochs of batches of 16, all weights for the first tenth, the cubic schedule for seven tenths,
the final share for the last two tenths; learning rates 1e-2 for scores and 3e-5 for weights. In short runs,
`movement_15` ends up with a constant answer, so it is not the default: docs/compression.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import squad_config
from configs.prune.common import set_pruning


def get_config(method: str = 'magnitude_50') -> ConfigDict:
    """Returns the config of fine-tuning with pruning on SQuAD 1.1: 10 epochs, rows of 384 tokens."""
    config = squad_config('v1')
    if method != 'dense' and not set_pruning(config, method):
        known = 'dense, magnitude_3, movement_15, random_50 or another percentage, soft_movement, l0, third_magnitude, '
        raise ValueError(f"the config's argument is {method!r}; known: {known}third_movement, third_random")
    config.examples.epochs = 10.0
    return config

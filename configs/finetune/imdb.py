r"""Fine-tunes a classifier of IMDB reviews (Maas et al. 2011), cut at 512 tokens, or at 2,048 with a sparse pattern.

efficient-attention train --config configs/finetune/imdb.py:short --workdir runs/short \
      --config.train.start_from=<checkpoint>
efficient-attention convert --model <checkpoint> --output checkpoints/long --length 2048 \
  --pattern 'window(128) | global_tokens(1)'
efficient-attention train --config configs/finetune/imdb.py:long --workdir runs/long \
      --config.train.start_from=checkpoints/long

Each file is a review, and its folder is the label. Results: docs/results/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import fine_tuning_config

SETS = {'short': 512, 'long': 2048}  # {config argument: maximum tokens per review}


def get_config(name: str = 'short') -> ConfigDict:
    """Returns the config of fine-tuning on IMDB reviews: 2 epochs of batches of 16.

    Longer reviews are cut, and the run reports how many.
    """
    if name not in SETS:
        raise ValueError(f'unknown set {name!r}; known: {", ".join(SETS)}')
    config = fine_tuning_config()

    config.examples.problem = 'classification'
    config.examples.train = 'data/imdb/aclImdb/train/neg/*.txt,data/imdb/aclImdb/train/pos/*.txt'
    config.examples.dev = 'data/imdb/aclImdb/test/neg/*.txt,data/imdb/aclImdb/test/pos/*.txt'
    config.examples.overlong = 'truncate'
    config.examples.epochs = 2.0
    config.data.length = SETS[name]

    config.optimizer.learning_rate = 5e-5
    config.train.batch_size = 16  # rows
    config.eval.every_steps = 1_000
    config.eval.batch_size = 16
    config.checkpoint.every_steps = 1_000
    config.checkpoint.best_metric = 'accuracy'
    return config

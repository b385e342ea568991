r"""Fine-tunes any checkpoint on your own texts and labels from a CSV, TSV or JSONL file.

efficient-attention train --config configs/finetune/table.py --workdir runs/mine \
      --config.train.start_from=<checkpoint> \
  --config.examples.train=train.csv --config.examples.dev=dev.csv --config.examples.text=review

Columns: examples.text, examples.text_pair for pairs, examples.label. With the argument 'regression', labels are
numbers: --config configs/finetune/table.py:regression.
"""

from ml_collections import ConfigDict

from configs.finetune.common import fine_tuning_config

METRICS = {'classification': 'accuracy', 'regression': 'spearman'}


def get_config(problem: str = 'classification') -> ConfigDict:
    """Returns the config of fine-tuning on your own table of texts and labels: 3 epochs of batches of 32.

    Texts of more than 128 tokens are cut, and the run reports how many.
    """
    if problem not in METRICS:
        raise ValueError(f'unknown problem {problem!r}; known: {", ".join(METRICS)}')
    config = fine_tuning_config()

    config.examples.problem = problem
    config.examples.epochs = 3.0
    config.examples.overlong = 'truncate'
    config.data.length = 128  # tokens

    config.optimizer.learning_rate = 5e-5
    config.train.batch_size = 32  # rows
    config.eval.every_steps = 200
    config.checkpoint.every_steps = 200
    config.checkpoint.best_metric = METRICS[problem]
    return config

"""GLUE's tasks (Wang et al. 2018, arXiv 1804.07461), one by one, from any checkpoint.

python train.py --config configs/finetune/glue.py:sst2 --workdir runs/sst2 --config.train.start_from=<checkpoint>

Files are named as the benchmark's own; each can be set: --config.examples.train=... Results: docs/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.common import fine_tuning_config

# task: problem, folder, train file, dev files, test files, metric that picks the best checkpoint
TASKS = {
    'cola': ('classification', 'CoLA', 'train.tsv', 'dev.tsv', 'test.tsv', 'matthews'),
    'sst2': ('classification', 'SST-2', 'train.tsv', 'dev.tsv', 'test.tsv', 'accuracy'),
    'mrpc': ('classification', 'MRPC', 'train.tsv', 'dev.tsv', 'test.tsv', 'f1'),
    'qqp': ('classification', 'QQP', 'train.tsv', 'dev.tsv', 'test.tsv', 'f1'),
    'stsb': ('regression', 'STS-B', 'train.tsv', 'dev.tsv', 'test.tsv', 'spearman'),
    'mnli': (
        'classification',
        'MNLI',
        'train.tsv',
        'dev_matched.tsv,dev_mismatched.tsv',
        'test_matched.tsv,test_mismatched.tsv,diagnostic/diagnostic.tsv',
        'accuracy_matched',
    ),
    'qnli': ('classification', 'QNLI', 'train.tsv', 'dev.tsv', 'test.tsv', 'accuracy'),
    'rte': ('classification', 'RTE', 'train.tsv', 'dev.tsv', 'test.tsv', 'accuracy'),
    'wnli': ('classification', 'WNLI', 'train.tsv', 'dev.tsv', 'test.tsv', 'accuracy'),
}


def get_config(task: str = 'sst2') -> ConfigDict:
    """3 epochs of batches of 32 at 128 tokens, a learning rate of BERT's grid; the best evaluation is kept."""
    if task not in TASKS:
        raise ValueError(f'unknown task {task!r}; known: {", ".join(TASKS)}')
    problem, folder, train, dev, test, metric = TASKS[task]
    config = fine_tuning_config()

    config.examples.problem = problem
    config.examples.format = 'glue'
    config.examples.name = task
    for split, names in (('train', train), ('dev', dev), ('test', test)):
        paths = [name if '/' in name else f'{folder}/{name}' for name in names.split(',')]
        config.examples[split] = ','.join(f'data/glue/{path}' for path in paths)
    config.examples.epochs = 3.0
    config.data.length = 128  # tokens

    config.optimizer.learning_rate = 5e-5
    config.train.batch_size = 32  # rows
    config.eval.every_steps = 250
    config.checkpoint.every_steps = 250
    config.checkpoint.best_metric = metric
    return config

r"""Fine-tunes any checkpoint on multiple-choice questions: SWAG, CODAH's five folds, or RACE.

efficient-attention train --config configs/finetune/choice.py:swag --workdir runs/swag \
      --config.train.start_from=<checkpoint>

SWAG: Zellers et al. 2018, arXiv 1808.05326. CODAH: Chen et al. 2019, arXiv 1904.04365; 'codah_0' to 'codah_4' are its
folds. RACE: Lai et al. 2017, arXiv 1704.04683. Results: docs/results/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import fine_tuning_config

# This maps each dataset to its file format, the maximum tokens per row, and the files of each split.
SETS = {
    'swag': ('swag', 80, {split: f'data/swag/{split}.csv' for split in ('train', 'val', 'test')}),
    'race': ('race', 512, {split: f'data/race/{split}/*/*.txt' for split in ('train', 'dev', 'test')}),
} | {
    f'codah_{fold}': (
        'swag',
        80,
        {split: f'data/codah/cv_split/fold_{fold}/{split}.tsv' for split in ('train', 'dev', 'test')},
    )
    for fold in range(5)
}


def get_config(name: str = 'swag') -> ConfigDict:
    """Returns the config of multiple-choice fine-tuning: 3 epochs of batches of 16 questions.

    Each choice is a separate row after its context.
    """
    if name not in SETS:
        raise ValueError(f'unknown set {name!r}; known: {", ".join(SETS)}')
    config = fine_tuning_config()

    config.examples.problem = 'multiple_choice'
    config.examples.format, config.data.length, files = SETS[name]
    for split, path in files.items():
        config.examples[{'val': 'dev'}.get(split, split)] = path
    config.examples.epochs = 3.0

    config.optimizer.learning_rate = 5e-5
    config.train.batch_size = 16  # questions
    config.eval.every_steps = 500
    config.checkpoint.every_steps = 500
    config.checkpoint.best_metric = 'accuracy'
    return config

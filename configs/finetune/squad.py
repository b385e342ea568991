"""SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250; 2018, arXiv 1806.03822) from any checkpoint.

python train.py --config configs/finetune/squad.py:v1 --workdir runs/squad --config.train.start_from=<checkpoint>

'v1' has an answer to every question; 'v2' lets the model say that there is none. Results: docs/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.common import fine_tuning_config

FILES = {  # version: train files, dev files
    'v1': ('data/squad/train-v1.1.json', 'data/squad/dev-v1.1.json'),
    'v2': ('data/squad/train-v2.0.json', 'data/squad/dev-v2.0.json'),
}


def get_config(version: str = 'v1') -> ConfigDict:
    """BERT's recipe: 2 epochs at 384 tokens, windows that move on by 128, answers of at most 30 tokens."""
    if version not in FILES:
        raise ValueError(f'unknown version {version!r}; known: {", ".join(FILES)}')
    config = fine_tuning_config()

    config.examples.problem = 'question_answering'
    config.examples.format = 'squad'
    config.examples.train, config.examples.dev = FILES[version]
    config.examples.overlong = 'windows'
    config.examples.has_no_answer = version == 'v2'
    config.examples.epochs = 2.0
    config.data.length = 384  # tokens, question and special tokens included

    config.optimizer.learning_rate = 3e-5
    config.train.batch_size = 16  # rows
    config.eval.every_steps = 2_000
    config.checkpoint.every_steps = 1_000
    config.checkpoint.best_metric = 'f1'
    return config

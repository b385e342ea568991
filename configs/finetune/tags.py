r"""Fine-tunes any checkpoint to label words: entities (WNUT-17) or parts of speech (Universal Dependencies).

efficient-attention train --config configs/finetune/tags.py:wnut17 --workdir runs/wnut17 \
      --config.train.start_from=<checkpoint>

Your own CoNLL files: --config.examples.train=... --config.examples.dev=... Results: docs/results/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import fine_tuning_config

# This maps each dataset to its training, dev and test files, and the metric that selects the best checkpoint.
SETS = {
    'wnut17': (
        'data/wnut17/wnut17train.conll',
        'data/wnut17/emerging.dev.conll',
        'data/wnut17/emerging.test.annotated',
        'f1',
    ),
    'ud_english': (
        'data/ud_english_ewt/en_ewt-ud-train.conllu',
        'data/ud_english_ewt/en_ewt-ud-dev.conllu',
        'data/ud_english_ewt/en_ewt-ud-test.conllu',
        'accuracy',
    ),
}


def get_config(name: str = 'wnut17') -> ConfigDict:
    """Returns the config of fine-tuning a word tagger: 4 epochs of batches of 32.

    A sentence of more than 128 tokens is split into windows.
    """
    if name not in SETS:
        raise ValueError(f'unknown set {name!r}; known: {", ".join(SETS)}')
    config = fine_tuning_config()

    config.examples.problem = 'token_classification'
    config.examples.format = 'conll'
    config.examples.train, config.examples.dev, config.examples.test, metric = SETS[name]
    config.examples.overlong = 'windows'
    config.examples.epochs = 4.0
    config.data.length = 128  # tokens

    config.optimizer.learning_rate = 5e-5
    config.train.batch_size = 32  # rows
    config.eval.every_steps = 200
    config.checkpoint.every_steps = 200
    config.checkpoint.best_metric = metric
    return config

r"""Fine-tunes any checkpoint on SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250; 2018, arXiv 1806.03822).

efficient-attention train --config configs/finetune/squad.py:v1 --workdir runs/squad \
      --config.train.start_from=<checkpoint>

'v1' has an answer to every question; 'v2' also has questions without an answer. Results: docs/results/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import squad_config

SETS = ('v1', 'v2')


def get_config(version: str = 'v1') -> ConfigDict:
    """Returns the config of fine-tuning on SQuAD with BERT's recipe: 2 epochs, rows of 384 tokens.

    Long paragraphs are split into windows 128 tokens apart, and answers have at most 30 tokens.
    """
    if version not in SETS:
        raise ValueError(f'unknown version {version!r}; known: {", ".join(SETS)}')
    config = squad_config(version)
    config.examples.epochs = 2.0
    return config

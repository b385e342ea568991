r"""Fine-tunes on HotpotQA (Yang et al. 2018, arXiv 1809.09600): a question and all its paragraphs in one long row.

efficient-attention convert --model <checkpoint> --output checkpoints/long --length 2048 --pattern 'window(128)'
efficient-attention train --config configs/finetune/hotpotqa.py --workdir runs/hotpotqa \
      --config.train.start_from=checkpoints/long

The question's tokens are global, as in Longformer (Beltagy et al. 2020, arXiv 2004.05150, section 6.2). Results:
docs/results/finetuning.md.
"""

from ml_collections import ConfigDict

from configs.finetune.common import fine_tuning_config


def get_config() -> ConfigDict:
    """Returns the config of fine-tuning on HotpotQA: 5 epochs of batches of 8 rows of at most 2,048 tokens.

    The model predicts answers and supporting sentences.
    """
    config = fine_tuning_config()

    config.examples.problem = 'multi_hop'
    config.examples.format = 'hotpotqa'
    config.examples.train = 'data/hotpotqa/hotpot_train_v1.1.json'
    config.examples.dev = 'data/hotpotqa/hotpot_dev_distractor_v1.json'
    config.examples.overlong = 'truncate'
    config.examples.epochs = 5.0
    config.data.length = 2048  # tokens per row, including the question and special tokens
    config.model.global_tokens = 192  # maximum tokens of a question plus the markers of titles and sentences

    config.optimizer.learning_rate = 3e-5
    config.train.batch_size = 8  # rows
    config.eval.every_steps = 1_000
    config.eval.batch_size = 8
    config.checkpoint.every_steps = 1_000
    config.checkpoint.best_metric = 'joint_f1'
    return config

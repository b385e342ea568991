r"""Distils a BERT into a student with half of its layers, by three losses (Sanh et al. 2019, arXiv 1910.01108).

    efficient-attention train --config configs/distill/distilbert.py:books --workdir runs/distil_books \
      --config.distill.teacher=runs/books_bert

The student starts with some of the teacher's layers, including the first and the last. Its loss has three parts: the
teacher's soft targets at masked positions (weight 5, temperature 2), the masked words (2), and the direction of the
last hidden states (1). `books` halves the BERT of configs/pretrain/books_bert.py. `base` has the published sizes, for a
BERT-base as teacher. With the suffix -alone, the student has the same start without a teacher, from
--config.train.start_from.

Differences from the paper: the paper has soft targets at all positions of a row, but its released code can restrict
them to masked positions, as here. It also has more masks on rare words and batches of up to 4,000 rows.
"""

from ml_collections import ConfigDict

from configs.common import default_config, set_fields
from efficient_attention.models.encoder_sizes import distilbert_fields

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'
ALONE = '-alone'
SETS = tuple(f'{name}{end}' for name in ('books', 'base') for end in ('', ALONE))


def get_config(name: str = 'books') -> ConfigDict:
    """Returns the config of a DistilBERT student, trained on the corpus of its masked-LM teacher."""
    if name not in SETS:
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(SETS)}")
    kind = name.removesuffix(ALONE)
    config = default_config()

    config.data.source = BOOKS
    config.data.length = 128  # tokens
    config.data.mask_unit = 'word'
    config.data.max_masked = 20

    if kind == 'books':
        config.data.tokenizer = 'train:wordpiece'
        config.data.vocab_size = 8192
        set_fields(config.model, {'width': 256, 'heads': 4, 'layers': 2, 'norm': 'pre', 'rotary': True})
        set_fields(config.model, {'positions': 'none', 'init_std': 0.05, 'scan_unroll': 2})
        set_fields(config.model, {'dropout_rate': 0.0, 'attention_dropout_rate': 0.0})
        config.train.start_layers = '1,4'
    else:
        config.data.tokenizer = 'checkpoints/bert/tokenizer.json'
        config.data.vocab_size = 30_522
        config.data.length = 512  # tokens
        config.data.max_masked = 77  # 15 %
        set_fields(config.model, distilbert_fields('base') | {'activation': 'gelu_erf'})
        config.train.start_layers = '1,3,5,8,10,12'
    if not name.endswith(ALONE):
        config.train.start_from = config.distill.get_oneway_ref('teacher')
        set_fields(config.distill, {'temperature': 2.0, 'soft': 5.0, 'labels': 2.0, 'cosine': 1.0})

    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 100
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True
    config.train.steps = 2_400
    config.train.batch_size = 32  # rows per batch, 4,096 tokens in total
    config.train.log_every_steps = 50
    config.checkpoint.every_steps = 400
    config.eval.every_steps = 800
    config.eval.batch_size = 64
    return config

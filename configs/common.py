"""What every config starts from: all fields with their defaults, as a ConfigDict, and the papers' named sizes."""

from typing import Any

from ml_collections import ConfigDict, config_dict

from efficient_attention.config.nested_dicts import default_fields
from efficient_attention.config.run import RunConfig
from efficient_attention.models.arena_sizes import ARENA_SIZES, arena_fields
from efficient_attention.models.decoder_sizes import (
    gpt2_fields,
    gpt3_fields,
    performer_fields,
    reformer_fields,
    sparse_fields,
    transformer_xl_fields,
)
from efficient_attention.models.sizes import (
    albert_fields,
    bert_fields,
    bigbird_fields,
    distilbert_fields,
    longformer_fields,
    tinybert_fields,
)
from efficient_attention.models.text_to_text_sizes import (
    T5_SIZES,
    T5_V1_1_SIZES,
    bart_fields,
    t5_fields,
    t5_v1_1_fields,
    vaswani_fields,
)

__all__ = [
    'ARENA_SIZES',
    'GLUE_TASKS',
    'T5_SIZES',
    'T5_V1_1_SIZES',
    'albert_fields',
    'arena_fields',
    'bart_fields',
    'bert_fields',
    'bigbird_fields',
    'default_config',
    'distilbert_fields',
    'fine_tuning_config',
    'glue_config',
    'gpt2_fields',
    'gpt3_fields',
    'language_modelling_config',
    'longformer_fields',
    'performer_fields',
    'reformer_fields',
    'set_fields',
    'set_pruning',
    'small_decoder_config',
    'sparse_fields',
    'squad_config',
    't5_fields',
    't5_v1_1_fields',
    'text_to_text_config',
    'tinybert_fields',
    'transformer_xl_fields',
    'vaswani_fields',
]


def default_config() -> ConfigDict:
    """Every field of a run with its default value; `model.vocab_size` follows `data.vocab_size`."""
    config = ConfigDict(default_fields(RunConfig))
    config.model.vocab_size = config.data.get_ref('vocab_size')
    config.checkpoint.keep_best = 1
    config.checkpoint.best_metric = 'masked_lm_loss'
    return config


def language_modelling_config() -> ConfigDict:
    """Every field of a language model's run: the defaults, pre-norm layers, causal attention, no token types."""
    config = default_config()
    config.task = 'language_modelling'
    config.model.attention = 'causal'
    config.model.norm = 'pre'
    config.model.norm_epsilon = 1e-5
    config.model.token_types = 0
    config.checkpoint.best_metric = 'causal_lm_loss'
    return config


def text_to_text_config() -> ConfigDict:
    """Every field of a run from text to text: the defaults, and pre-norm layers without token types."""
    config = default_config()
    config.task = 'text_to_text'
    config.data.lowercase = False
    config.model.norm = 'pre'
    config.model.norm_epsilon = 1e-5
    config.model.token_types = 0
    config.model.target_vocab_size = config.pairs.get_ref('target_vocab_size')
    config.checkpoint.best_metric = 'target_loss'
    return config


def leave_model_open(config: ConfigDict) -> None:
    """Leaves open what a run from text to text takes from the checkpoint of `train.start_from`."""
    config.model = ConfigDict({name: config_dict.placeholder(type(value)) for name, value in config.model.items()})
    config.data.tokenizer = config_dict.placeholder(str)
    config.data.vocab_size = config_dict.placeholder(int)
    config.pairs.target_tokenizer = config_dict.placeholder(str)
    config.pairs.begin = config_dict.placeholder(str)
    config.pairs.start = config_dict.placeholder(str)


def fine_tuning_config() -> ConfigDict:
    """Every field of a fine-tuning run; those that are None are filled in when the run starts.

    `model` and `head` follow the checkpoint `train.start_from`, its tokenizer too; `train.steps` and
    `optimizer.warmup_steps` follow `examples.epochs` and `examples.warmup_share`. A field that is set stays.
    """
    config = default_config()
    config.task = 'fine_tuning'
    config.data = ConfigDict(default_fields(RunConfig)['data'])
    config.data.tokenizer = config_dict.placeholder(str)
    for group in ('model', 'head'):
        values = default_fields(RunConfig)[group]
        open_fields = {name: config_dict.placeholder(type(value)) for name, value in values.items()}
        config[group] = ConfigDict(open_fields)
    config.examples.has_global = config_dict.placeholder(bool)  # as the model has places for global tokens
    config.train.steps = config_dict.placeholder(int)
    config.optimizer.warmup_steps = config_dict.placeholder(int)
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True  # fine-tuning is short: Mosbach et al. 2020, arXiv 2006.04884, section 5
    config.train.log_every_steps = 50
    config.checkpoint.best_mode = 'max'
    config.checkpoint.keep = 1
    config.checkpoint.save_best = True
    config.eval.batch_size = 64
    return config


# task of GLUE (Wang et al. 2018, arXiv 1804.07461): problem, folder, train file, dev files, test files, metric that
# picks the best checkpoint
GLUE_TASKS = {
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


def glue_config(task: str) -> ConfigDict:
    """Every field of a fine-tuning run on a task of GLUE, with its files named as the benchmark's own."""
    problem, folder, train, dev, test, metric = GLUE_TASKS[task]
    config = fine_tuning_config()
    config.examples.problem = problem
    config.examples.format = 'glue'
    config.examples.name = task
    for split, names in (('train', train), ('dev', dev), ('test', test)):
        paths = [name if '/' in name else f'{folder}/{name}' for name in names.split(',')]
        config.examples[split] = ','.join(f'data/glue/{path}' for path in paths)
    config.checkpoint.best_metric = metric
    return config


THIRD: dict[str, Any] = {'attention': 'head', 'keep_attention': 0.5, 'feed_forward': 'unit', 'keep': 0.25}
# The rate of L0's scores is that of Sanh et al. 2020, arXiv 2005.07683.
OF_PENALTIES: dict[str, dict[str, float]] = {
    'soft_movement': {'penalty': 400.0},
    'l0': {'penalty': 125.0, 'learning_rate': 1e-1},
}


def set_pruning(config: ConfigDict, method: str) -> bool:
    """Sets what a name such as 'movement_15', 'third_magnitude' or 'l0' says; False where there is no such name."""
    name, _, percentage = method.rpartition('_')
    if method in OF_PENALTIES:
        set_fields(config.prune, {'method': method, **OF_PENALTIES[method]})
    elif name == 'third' and percentage in ('magnitude', 'movement', 'random'):
        set_fields(config.prune, {'method': percentage, **THIRD})
    elif name in ('magnitude', 'movement', 'random') and percentage.isdecimal() and 0 < int(percentage) < 100:
        set_fields(config.prune, {'method': name, 'keep': int(percentage) / 100})
    else:
        return False
    return True


def squad_config(version: str) -> ConfigDict:
    """Every field of a fine-tuning run on SQuAD 'v1' or 'v2', at BERT's 384 tokens, question and special ones too."""
    number = {'v1': '1.1', 'v2': '2.0'}[version]
    config = fine_tuning_config()
    config.examples.problem = 'question_answering'
    config.examples.format = 'squad'
    config.examples.train, config.examples.dev = (f'data/squad/{split}-v{number}.json' for split in ('train', 'dev'))
    config.examples.overlong = 'windows'
    config.examples.has_no_answer = version == 'v2'
    config.data.length = 384
    config.optimizer.learning_rate = 3e-5
    config.train.batch_size = 16  # rows
    config.eval.every_steps = 2_000
    config.checkpoint.every_steps = 1_000
    config.checkpoint.best_metric = 'f1'
    return config


def set_fields(group: ConfigDict, fields: dict[str, Any]) -> None:
    """Sets several fields of a group; a vocabulary size that follows another field keeps following it."""
    for name, value in fields.items():
        if group[name] != value:
            group[name] = value


# name: the fields of `model` that make a small decoder's mechanism, equal in parameters to 0.2 %: the width of the
# feed-forward layer makes up for what a mechanism's projections cost or save.
SMALL_DECODERS: dict[str, dict[str, Any]] = {
    'full': {'attention': 'causal'},
    'window': {'attention': 'causal & window(64)'},
    'fixed': {'attention': 'sparse_fixed(64, 8)'},
    'lsh': {'attention': 'lsh(64, 4, causal=True)', 'shared_qk': True, 'feed_forward_width': 576},
    'reformer': {
        'attention': 'lsh(64, 4, causal=True)',
        'shared_qk': True,
        'feed_forward_width': 576,
        'stack': 'reversible',
        'feed_forward_chunk': 128,  # positions
        'loss_chunk': 128,  # positions
    },
    'favor': {'attention': 'favor(128, causal=True)'},
    'transformer_xl': {
        'relative': 'transformer_xl',
        'rotary': False,
        'memory_length': 512,  # tokens
        'feed_forward_width': 448,
    },
    'compressive': {
        'relative': 'transformer_xl',
        'rotary': False,
        'memory_length': 256,  # tokens
        'compression': 'convolution',
        'compressed_length': 256,  # slots of 4 tokens
        'reconstruction_weight': 1.0,
        'feed_forward_width': 192,
    },
    'full_shared': {'attention': 'causal', 'shared_qk': True, 'feed_forward_width': 576},  # the yardstick of `lsh`
    'gru': {'cell': 'gru', 'rotary': False, 'feed_forward_width': 384},
    'lstm': {'cell': 'lstm', 'rotary': False, 'feed_forward_width': 256},
    'sru': {'cell': 'sru2', 'rotary': False, 'feed_forward_width': 576},
}


def small_decoder_config(mechanism: str) -> ConfigDict:
    """A decoder of 4 layers of 128 with 4 heads, trained on 1,024 tokens a step for 2,500 steps.

    They are 2 rows of 512, or with memory 8 streams of 128. So small a batch learns more from as many tokens than a
    larger one, and a CPU loses no speed by it.
    """
    if mechanism not in SMALL_DECODERS:
        raise ValueError(f'unknown mechanism {mechanism!r}; known: {", ".join(SMALL_DECODERS)}')
    config = language_modelling_config()
    config.data.length = 512  # tokens
    config.model.width = 128
    config.model.layers = 4
    config.model.rotary = True
    config.model.positions = 'none'
    config.model.init_std = 0.05
    config.model.dropout_rate = 0.0  # less than one pass over the text
    config.model.scan_unroll = 4
    if 'cell' not in SMALL_DECODERS[mechanism]:  # a cell has no heads, and no weights to drop
        set_fields(config.model, {'heads': 4, 'attention_dropout_rate': 0.0})
    set_fields(config.model, SMALL_DECODERS[mechanism])

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.schedule = 'cosine'
    config.optimizer.bias_correction = True

    config.train.steps = 2500
    config.train.batch_size = 2  # rows, 1,024 tokens
    config.train.log_every_steps = 25
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 500
    config.eval.batch_size = 16
    if config.model.memory_length:
        config.data.batches = 'streams'  # each row goes on where it was
        config.data.length = 128  # tokens; 8 short segments of as many places in the text teach more than 2 long ones
        config.train.batch_size = 8
        config.eval.batch_size = 4  # streams, each of which begins without memory
    return config

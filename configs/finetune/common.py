"""Makes the common base of the fine-tuning configs: their default values, and the files of GLUE and SQuAD.

A field that depends on the checkpoint or the data is None until a run starts and fills it in.
"""

from ml_collections import ConfigDict, config_dict

from configs.common import default_config
from efficient_attention.config.dict_conversion import default_fields
from efficient_attention.config.run import RunConfig


def fine_tuning_config() -> ConfigDict:
    """Returns the base config of fine-tuning; fields that are None are filled in when the run starts.

    `model`, `head` and the tokenizer are taken from the checkpoint `train.start_from`. `train.steps` and
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
    # `examples.has_global` is None until a run starts; it becomes True if the model has global tokens.
    config.examples.has_global = config_dict.placeholder(bool)
    config.train.steps = config_dict.placeholder(int)
    config.optimizer.warmup_steps = config_dict.placeholder(int)
    config.optimizer.schedule = 'linear'
    # Short runs need the bias correction (Mosbach et al. 2020, arXiv 2006.04884, section 5).
    config.optimizer.bias_correction = True
    config.train.log_every_steps = 50
    config.checkpoint.best_mode = 'max'
    config.checkpoint.keep = 1
    config.checkpoint.save_best = True
    config.eval.batch_size = 64
    return config


# GLUE task (Wang et al. 2018, arXiv 1804.07461) -> its problem, folder, and training, dev and test files.
# The last entry of each task is the metric that selects the best checkpoint.
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
    """Returns the base config of fine-tuning on a GLUE task, with the benchmark's own file names."""
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


def squad_config(version: str) -> ConfigDict:
    """Returns the base config of fine-tuning on SQuAD 'v1' or 'v2', with BERT's row length of 384 tokens in all."""
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

"""Makes every config file small, on small data of its kind, so that its first steps take seconds."""

import importlib
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from configs.common import default_config
from configs.text_to_text.common import text_to_text_config
from efficient_attention.config.run import RunConfig
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.run import build_run
from tests.tasks.letters import letters
from tests.tasks.test_one_step import PROBLEMS, ROWS, WORDS
from tests.training.tiny_run import drawn_workdir, one_by_one, write_corpus

LENGTH, LONG = 64, 128  # tokens of a row; LONG where the rows of the original config have thousands
# Large weights raise a mechanism's effect on the loss far above the tolerance; the rate shows in the next loss.
MODEL = {'width': 16, 'heads': 2, 'head_width': 0, 'feed_forward_width': 32, 'scan_unroll': 1, 'init_std': 0.3}
MODEL |= {'dtype': 'float32', 'max_length': LONG + 2}
OPTIMIZER = {'learning_rate': 3e-3, 'warmup_steps': 0}
TRAIN = {'steps': 4, 'batch_size': 2, 'micro_batches': 1}
SMALLEST_BPE = 300  # vocabulary pieces; 256 of them are the single bytes
DATA = {'vocab_size': 70, 'held_out': 0.2, 'max_masked': 16, 'min_count': 1, 'workers': 0}


def shrunk_config(name: str, argument: str, folder: Path) -> RunConfig:
    """Returns the shrunk config `name` of configs/ with its argument ('' = none), on data that it writes into
    `folder`.
    """
    get_config = importlib.import_module(name).get_config
    config = get_config(argument) if argument else get_config()
    config.optimizer.update(ConfigDict(OPTIMIZER))
    config.train.update(ConfigDict(TRAIN))
    config.eval.batch_size = TRAIN['batch_size']
    kinds = {'fine_tuning': shrink_fine_tuning, 'text_to_text': shrink_text_to_text}
    kinds.get(config.task, shrink)(config, folder)
    if config.distill.to_dict() != default_config().distill.to_dict():
        name_teacher(config, folder / 'teacher')
    return fill_config(config.to_dict()).config


def name_teacher(config: ConfigDict, workdir: Path) -> None:
    """Gives a distillation config a randomly initialized teacher of 6 layers for the same data."""
    values = config.to_dict()
    values['distill'], values['model']['layers'] = default_config().distill.to_dict(), 6
    values['train'] |= {'start_from': '', 'start_layers': '', 'steps': 1}
    values['checkpoint'] |= {'best_metric': '', 'save_best': False, 'keep_best': 0}
    filled = fill_config(values)
    run = build_run(filled.config, jax.devices()[:1], examples=filled.examples)
    drawn_workdir(run, workdir, one_by_one(run))
    config.distill.teacher = str(workdir)
    if ',' in config.distill.layers:
        config.model.layers = len(config.distill.layers.split(','))


def shrink(config: ConfigDict, folder: Path) -> None:
    """Makes the data and the model of a pretraining or language modelling config small."""
    data, model = config.data, config.model
    is_text = data.units != 'pixels'
    data.source = write_corpus(folder) if is_text else write_images(folder)
    data.cache = str(folder / 'cache')
    if is_text:
        data.length = LONG if data.length >= 4096 and config.task == 'pretraining' else LENGTH
        data.tokenizer = data.tokenizer if ':' in data.tokenizer else 'train:wordpiece'
    else:
        data.image_shape, data.length = (4, 4, 3), 48
    read = ['held_out'] if data.units in ('bytes', 'characters', 'pixels') else ['held_out', 'vocab_size']
    read += ['max_masked', 'workers'] if config.task == 'pretraining' else []
    read += ['min_count'] if data.units == 'words' else []
    for field in read:
        data[field] = DATA[field]
    if data.tokenizer == 'train:bpe':
        data.vocab_size = SMALLEST_BPE
    for field, value in (MODEL | small_model(model.to_dict(), data.length)).items():
        model[field] = value
    if data.units not in ('bytes', 'characters', 'pixels'):
        model.vocab_size = data.vocab_size


def shrink_text_to_text(config: ConfigDict, folder: Path) -> None:
    """Makes the data and the model of a text-to-text config small; without noise its pairs are digits and their
    reversal.
    """
    if config.noise.name == 'none':
        config.pairs.update({'train': 'toy:reverse:40:2-20', 'held_out': 'toy:reverse:8:2-20:1', 'test': ''})
        config.pairs.buckets = (LENGTH,)
    else:
        config.data.update({'source': write_corpus(folder), 'cache': str(folder / 'cache'), 'held_out': 0.2})
    config.pairs.target_length = LENGTH
    for group, defaults in text_to_text_config().items():  # a field that is None would come from a checkpoint
        if isinstance(defaults, ConfigDict):
            config[group].update({name: defaults[name] for name, value in config[group].items() if value is None})
    size = SMALLEST_BPE if config.data.tokenizer == 'train:bpe' else DATA['vocab_size']
    config.data.update({'length': LENGTH, 'vocab_size': size})
    small = MODEL | {'layers': 2, 'decoder_layers': 2}
    small |= {'state_width': 16} if config.model.state_width else {}
    small |= {} if config.model.feed_forward else {'feed_forward_width': 0}  # this model has no feed-forward layers
    config.model.update(ConfigDict(small))


def small_model(model: dict[str, Any], length: int) -> dict[str, Any]:
    """Returns small values for those model fields whose size depends on the other fields of the config."""
    attention = re.sub(r'\d+', lambda number: shorter(int(number[0])), model['attention'])
    small: dict[str, Any] = {'attention': attention, 'layers': max(2, attention.count(';') + 1)}
    small |= {name: 16 for name in ('feed_forward_chunk', 'loss_chunk') if model[name]}
    small |= {name: length for name in ('memory_length', 'compressed_length') if model[name]}
    small |= {'embedding_width': 8} if model['embedding_width'] else {}
    small |= {'adaptive_divisor': min(model['adaptive_divisor'], 2)}
    small |= {'adaptive_cutoffs': tuple(16 * (1 + tail) for tail in range(len(model['adaptive_cutoffs'])))}
    small |= {} if model['feed_forward'] else {'feed_forward_width': 0}
    if model['positions'] == 'axial':
        small['axial_shape'] = (8, 8) if length == LENGTH else (4, 4, 3)
        widths = (8, 8) if length == LENGTH else (8, 4, 4)
        small['axial_widths'] = () if model['axial_sum'] else widths
    return small


def shorter(number: int) -> str:
    """Returns a smaller number for a mechanism's argument; a number up to 4, such as a number of rounds, stays as it
    is.
    """
    return str(number if number <= 4 else number // 8)


def write_images(folder: Path) -> str:
    """Writes PNG images of 4 by 4 random pixels, which PNG keeps exactly; returns the value of `data.source` for
    them.
    """
    rng = np.random.default_rng(0)
    (folder / 'images').mkdir(exist_ok=True)
    for number in range(20):
        pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / 'images' / f'{number}.png')
    return f'images:{folder}/images/*.png'


# ---- fine-tuning: twelve rows with letters as tokens ----


def shrink_fine_tuning(config: ConfigDict, folder: Path) -> None:
    """Gives a fine-tuning config twelve examples and a small model; the fields of `head` follow from the examples."""
    make_row, ending, _, _ = PROBLEMS[config.examples.problem]
    if config.examples.format == 'arena':
        shrink_arena(config, folder)
        return
    if config.examples.format == 'glue':
        config.examples.train = config.examples.dev = write_glue(folder, config.examples.name)
    elif config.examples.train.endswith('.txt'):
        sentences = min(config.examples.sentences, 4)
        config.examples.sentences = sentences
        config.examples.train = config.examples.dev = write_folders(folder, sentences=sentences)
    else:
        config.examples.train = config.examples.dev = str(folder / f'rows.{ending}')
        Path(config.examples.train).write_text('\n'.join(map(make_row, range(ROWS))) + '\n', encoding='utf-8')
    letters().tokenizer.save(str(folder / 'tokenizer.json'))
    config.data.tokenizer, config.data.length, config.examples.buckets = (
        str(folder / 'tokenizer.json'),
        LENGTH,
        (LENGTH,),
    )
    config.examples.question_length = 8 if config.examples.problem in ('question_answering', 'multi_hop') else 64
    wide = {'feed_forward_width': 0} if config.model.feed_forward is False else {}
    for field, value in (MODEL | wide | {'vocab_size': letters().size}).items():
        config.model[field] = value
    if config.model.global_tokens:
        config.model.global_tokens, config.model.attention = 16, 'window(8)'


def shrink_arena(config: ConfigDict, folder: Path) -> None:
    """Gives a long-range config twelve examples and a small model; its vocabulary stays as it is."""
    kind = config.examples.train.partition(':')[0]
    for number in range(40):  # enough documents for each split to get some
        (folder / f'document_{number}.txt').write_text(f'{WORDS[number % 4]} {number} ran. ' * LENGTH, encoding='utf-8')
    source = f'text:{folder}/document_*.txt'
    sizes = {'listops': f'length=8-{LENGTH}', 'passages': f'length={LENGTH}:source={source}'}
    config.examples.train = config.examples.dev = f'{kind}:rows={ROWS}:{sizes[kind]}'
    config.examples.test, config.examples.cache = '', str(folder / 'cache')
    config.data.length, config.examples.buckets = LENGTH, (LENGTH,)
    config.model.update(ConfigDict(MODEL))


def write_glue(folder: Path, task: str) -> str:
    """Writes a file in GLUE's format for 'cola', 'sst2' or 'stsb'; returns its path."""
    path = folder / f'{task}.tsv'
    lines = {
        'cola': [f'x\t{row % 2}\t\t{WORDS[row % 4]} ran' for row in range(ROWS)],
        'sst2': ['sentence\tlabel', *(f'{WORDS[row % 4]} ran\t{row % 2}' for row in range(ROWS))],
        'stsb': ['sentence1\tsentence2\tscore', *(f'{WORDS[row % 4]}\tran\t{row % 4}' for row in range(ROWS))],
    }
    path.write_text('\n'.join(lines[task]) + '\n', encoding='utf-8')
    return str(path)


def write_folders(folder: Path, *, sentences: int = 0) -> str:
    """Writes one file for each text, in a folder for each label; returns the glob pattern of their paths.

    `sentences`: 0 = each text is one sentence without a full stop; otherwise each text has two sentences.
    """
    for row in range(ROWS):
        path = folder / 'reviews' / ('neg', 'pos')[row % 2] / f'{row}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f'{WORDS[row % 4]} ran. We saw {WORDS[row % 3]}.' if sentences else f'{WORDS[row % 4]} ran'
        path.write_text(f'{text}\n', encoding='utf-8')
    return f'{folder}/reviews/*/*.txt'

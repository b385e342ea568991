"""Defines the small training runs that `scripts/stress/soak.py` kills: their input files and their commands.

Each run takes a few seconds. It is a small version of a config of `configs/` on artificial text. It uses random numbers
wherever the project can: dropout, masks, order of rows, FAVOR+ features, LSH hashes.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from efficient_attention.processes.child_process import command_tied_to_parent

ROOT = Path(__file__).resolve().parents[2]
WORDS = 'the a red old small river house dog king tree road falls sleeps runs sings waits near under over with'.split()
GOOD, BAD = 'good', 'bad'
SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
MODEL = ['model.width=16', 'model.heads=2', 'model.layers=2', 'model.scan_unroll=1', 'model.dropout_rate=0.1']
INTERVALS = ['train.log_every_steps=2', 'checkpoint.every_steps=5', 'checkpoint.keep=2', 'eval.every_steps=10']
ROWS = ['train.batch_size=8', 'eval.batch_size=8', 'optimizer.warmup_steps=5']


class SmallTrainingRun(NamedTuple):
    """A small training run: a function that writes its input files, and a function that returns its command."""

    write_files: Callable[[Path], None]  # writes the input files to the given folder
    command: Callable[[Path, Path], list[str]]  # returns the command for an input folder and a workdir
    # True: after a kill, the command resumes its workdir. False: output that exists after a kill must be complete.
    goes_on: bool = True


def write_text_corpus(folder: Path) -> None:
    """Writes the text corpus of a small run, text.txt, with 200 paragraphs of artificial sentences."""
    rng = np.random.default_rng(0)
    sentences = [' '.join(rng.choice(WORDS, rng.integers(4, 9))).capitalize() + '.' for _ in range(1600)]
    paragraphs = [' '.join(sentences[first : first + 8]) for first in range(0, len(sentences), 8)]
    (folder / 'text.txt').write_text('\n\n'.join(paragraphs) + '\n', encoding='utf-8')


def write_labelled_table(folder: Path) -> None:
    """Writes the vocabulary and labelled texts of a small classifier; the label is one of the words of its text.

    The files are vocab.txt, train.tsv and dev.tsv.
    """
    rng = np.random.default_rng(0)
    (folder / 'vocab.txt').write_text('\n'.join([*SPECIALS, *WORDS, GOOD, BAD]) + '\n', encoding='utf-8')
    for split, count in {'train': 160, 'dev': 24}.items():
        lines = ['text\tlabel']
        for row in range(count):
            label = (GOOD, BAD)[row % 2]
            lines.append(f'{" ".join(rng.permutation([*rng.choice(WORDS, rng.integers(1, 12)), label]))}\t{label}')
        (folder / f'{split}.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')


def pretraining_command(folder: Path, workdir: Path) -> list[str]:
    """Returns the command of a small pretraining run with FAVOR+ attention, masked LM and next-sentence prediction.

    The random features of FAVOR+ are resampled every 7 steps.
    """
    fields = [f'data.source=text:{folder}/text.txt#paragraphs', f'data.cache={workdir}/cache', 'data.held_out=0.2']
    fields += ['data.tokenizer=train:wordpiece', 'data.vocab_size=80', 'data.length=32', 'data.pairs=nsp']
    fields += ['data.max_masked=5', 'model.attention=favor(16)', 'model.attention_redraw_steps=7', 'train.steps=40']
    return training_command('configs/quickstart.py', workdir, [*fields, *MODEL, *ROWS, *INTERVALS])


def memory_model_command(folder: Path, workdir: Path) -> list[str]:
    """Returns the command of a small byte language model with segment memory, which checkpoints must include."""
    return language_model_command(folder, workdir, ['model.memory_length=16', 'data.length=16'], 'transformer_xl')


def lsh_command(folder: Path, workdir: Path) -> list[str]:
    """Returns the command of a small byte language model with LSH attention, which draws new hashes in each step."""
    fields = ['model.attention=lsh(8, 2, causal=True)', 'data.length=32', 'eval.context=16']
    return language_model_command(folder, workdir, fields, 'lsh')


def language_model_command(folder: Path, workdir: Path, fields: list[str], mechanism: str) -> list[str]:
    """Returns the command of a small byte language model on the artificial text, with the given mechanism."""
    fields = [f'data.source=text:{folder}/text.txt#paragraphs', f'data.cache={workdir}/cache', *fields]
    fields += ['data.held_out=0.1', 'data.test=0', 'train.steps=40', 'checkpoint.keep_best=1']
    config = f'configs/lm/enwik8_small.py:{mechanism}'
    return training_command(config, workdir, [*fields, *MODEL, *ROWS, *INTERVALS])


def fine_tuning_command(folder: Path, workdir: Path) -> list[str]:
    """Returns the command that fine-tunes a small classifier with two seeds.

    Each run stops early after two evaluations without improvement, and keeps the best checkpoint.
    """
    fields = [*classifier_fields(folder), 'train.early_stop=2', 'checkpoint.keep_best=1']
    command = training_command('configs/finetune/table.py', workdir, fields)
    return [command[0], 'scripts/train_seeds.py', '--seeds=0,1', *command[2:]]


def classifier_fields(folder: Path) -> list[str]:
    """Returns the config fields of a small classifier of artificial labelled texts."""
    fields = [f'examples.train={folder}/train.tsv', f'examples.dev={folder}/dev.tsv', 'examples.epochs=2']
    fields += [f'data.tokenizer={folder}/vocab.txt', 'data.length=16', 'model.vocab_size=27', 'model.max_length=16']
    fields += ['optimizer.learning_rate=5e-3', 'examples.buckets=(8, 16)']
    return [*fields, *MODEL, *ROWS, *INTERVALS]


def train_small_model(folder: Path) -> None:
    """Trains a small classifier for one step, so that the subfolder `model` has a checkpoint to export."""
    write_labelled_table(folder)
    command = training_command(
        'configs/finetune/table.py', folder / 'model', [*classifier_fields(folder), 'train.steps=1']
    )
    subprocess.run(command_tied_to_parent(command), cwd=ROOT, check=True, capture_output=True)


def export_command(folder: Path, output: Path) -> list[str]:
    """Returns the command that exports the small classifier to a Hugging Face folder."""
    return [sys.executable, 'scripts/convert.py', f'--model={folder}/model', f'--output={output}']


def training_command(config: str, workdir: Path, fields: list[str]) -> list[str]:
    """Returns the command that trains a config with the given config fields in a workdir."""
    return [
        sys.executable,
        'train.py',
        f'--config={config}',
        f'--workdir={workdir}',
        *(f'--config.{field}' for field in fields),
    ]


RUNS = {
    'pretraining': SmallTrainingRun(write_text_corpus, pretraining_command),
    'memory': SmallTrainingRun(write_text_corpus, memory_model_command),
    'lsh': SmallTrainingRun(write_text_corpus, lsh_command),
    'fine_tuning': SmallTrainingRun(write_labelled_table, fine_tuning_command),
    'export': SmallTrainingRun(train_small_model, export_command, goes_on=False),
}

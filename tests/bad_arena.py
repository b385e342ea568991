"""Bad inputs of long-range tasks, two-tower models and grids of runs; they extend the table of tests/bad_inputs.py."""

import json
from pathlib import Path

from PIL import Image

from configs.arena import get_config
from tests.bad_inputs import BadInput, tune


def arena(rows: str, line: str, vocabulary: str = 'fixed:listops') -> BadInput:
    """Returns the refused input of a fine-tuning run on a set of long-range examples."""
    sets = ' '.join(f'examples.{split}={rows}' for split in ('train', 'dev'))
    return tune(f'examples.format=arena {sets} data.tokenizer={vocabulary} examples.cache={{here}}/cache', line)


def grid(words: str, line: str) -> BadInput:
    """Returns the refused input of scripts/train_grid.py, which trains a table of runs."""
    return BadInput(
        f'scripts/train_grid.py --config=configs/arena.py --columns=full --workdir={{here}}/grid {words}', line
    )


def make_images(folder: Path, _: Path) -> None:
    """Writes a folder of two classes with one image each, half as high as CIFAR-10's images."""
    for name in ('cat', 'dog'):
        (folder / name).mkdir(parents=True)
        Image.new('RGB', (32, 16)).save(folder / name / '0.png')


def make_reviews(folder: Path, _: Path) -> None:
    """Writes one review for each of the labels 'neg' and 'pos'."""
    for name in ('neg', 'pos'):
        (folder / name).mkdir(parents=True)
        (folder / name / '0_1.txt').write_text(f'{name} film')


def make_cell(folder: Path, _: Path) -> None:
    """Writes the folder of a grid's row with one cell that has been trained."""
    (folder / 'full').mkdir(parents=True)
    (folder / 'full' / 'values.json').write_text(json.dumps(get_config(f'{folder.name},full').to_dict()))
    (folder / 'full' / 'cell.json').write_text('{}')


BAD_ARENA = {
    'arena unknown': arena(
        'chess:rows=2', "examples.train is 'chess:rows=2'; known kinds of rows: listops, pathfinder"
    ),
    'arena size': arena(
        'pathfinder:rows=2:size=48', "examples.train is 'pathfinder:rows=2:size=48'; size must be one of"
    ),
    'arena without reviews': arena('imdb:folder={here}', '{here}/train: no file matches', 'fixed:bytes'),
    'arena without pairs': arena(
        'aan:folder={here}', "{here}/new_aan_pairs.train.tsv: no such file; AAN's pairs may not", 'fixed:bytes'
    ),
    'arena without released rows': arena(
        'listops:folder={here}', '{here}/basic_train.tsv: no such file; the folder must hold basic_train.tsv, basic_val'
    ),
    'arena without released pictures': arena(
        'pathfinder:folder={here}', "{here}/metadata: no file matches '*.npy'; the folder must hold", 'fixed:grey'
    ),
    'arena of another vocabulary': arena(
        'listops:rows=2:length=8-40', 'data.tokenizer has another vocabulary than the rows of listops', 'fixed:bytes'
    ),
    'arena of an unknown vocabulary': arena(
        'listops:rows=2:length=8-40', 'tokenizer fixed:letters: known fixed vocabularies: fixed:bytes', 'fixed:letters'
    ),
    'arena of several kinds': tune(
        'examples.format=arena examples.train=listops:rows=2:length=8-40 examples.dev=recall:rows=2:length=9:pairs=2 '
        'data.tokenizer=fixed:listops examples.cache={here}/cache',
        "examples.dev is 'recall:rows=2:length=9:pairs=2'; its rows must have the same kind and the same",
    ),
    'towers of one text': tune('examples.towers=True', 'examples.towers is True; a row here has one text'),
    'towers without an activation': tune(
        'head.kind=towers head.transform=none', "head.transform is 'none'; it must be an activation with head.kind"
    ),
    'a cache that nothing reads': tune('examples.cache=x', "examples.cache is 'x'; it must be 'cache' without"),
    'training on the test split': tune('eval.split=test', "eval.split is 'test'; examples.dev chooses the checkpoint"),
    'grid of an unknown task': grid(
        '--rows=chess',
        "chess,full: the config's argument is 'chess,full'; the task 'chess' is unknown; known: listops, ",
    ),
    'arena of a misshapen image': tune(
        'examples.format=arena examples.train=cifar10:folder={here} examples.dev=cifar10:folder={here} '
        'data.tokenizer=fixed:grey examples.cache={here}/cache',
        '{here}/train/cat/0.png: the image is 16 x 32 (height x width); this task reads 32 x 32',
        train=make_images,
    ),
    'arena of absent training rows': tune(
        'examples.format=arena examples.train=imdb:folder={here}/no examples.dev=imdb:folder={here} '
        'data.tokenizer=fixed:bytes examples.cache={here}/cache',
        '{here}/no/train: no file matches',
        train=make_reviews,
    ),
    'arena of an unknown size': BadInput(
        'train.py --config=configs/arena.py:recall,full,huge --workdir={here}/new',
        "flag --config=configs/arena.py:recall,full,huge: the config's a",
    ),
    'arena masked in a released size': grid(
        '--rows=listops --size=code,masked',
        "listops,full: the config's argument is 'listops,full,code,masked'; masked pretraining needs the size small",
    ),
    'grid of another config': BadInput(
        'scripts/train_grid.py --config=configs/arena.py --rows=recall --columns=full --workdir={here} '
        '--config.train.steps=7',
        '{here}/recall/full was made with train.steps = 2000, now it is 7; name a new --workdir, or give the old value',
        {'recall': make_cell},
    ),
    'a run within a grid': BadInput(
        'train.py --config=configs/arena.py:recall,full --workdir={here}/recall/full/seed_1',
        "{here}/recall/full/seed_1 lies in the folder of a grid's cell ({here}/recall/full/values.json); name another",
        {'recall': make_cell},
    ),
    'seeds within a grid': BadInput(
        'scripts/train_seeds.py --config=configs/arena.py:recall,full --workdir={here}/recall',
        "{here}/recall is the folder of a grid's row (full/values.json is in it); name a new --workdir",
        {'recall': make_cell},
    ),
    'grid of a seed': grid(
        '--rows=recall --config.train.seed=7', '--config.train.seed is 7, which --seeds names; leave it out'
    ),
    'grid of one task by several names': grid(
        '--rows=recall,text --config.examples.train=imdb:folder=x',
        "--config.examples.train is 'imdb:folder=x' in the rows recall and text, which would train the sa",
    ),
    'grid of one cell': BadInput(
        'scripts/train_grid.py --config=configs/arena.py:text,full --rows=text --workdir={here}/grid',
        "--config has 'text,full' after the file; cells are named by --rows, --columns and --size",
    ),
    'grid of rates that are none': grid(
        '--rows=recall --rates=0', "--rates is '0'; it must be different numbers above 0"
    ),
}

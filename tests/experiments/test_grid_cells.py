"""Tests the cells made from a config file, the learning rates read from a flag, and the baselines of a grid's rows."""

import json
from pathlib import Path

import pytest

from configs.arena import get_config
from efficient_attention.errors import InputError
from efficient_attention.experiments.grid_cells import (
    compute_baselines,
    effective_overrides,
    make_cells,
    parse_learning_rates,
)

FILE = 'configs/arena.py'


def test_cells_are_the_files_configs():
    cells = make_cells(FILE, {'train.steps': 7}, ['listops_short', 'text'], ['full', 'linear'])
    assert list(cells) == [(row, column) for row in ('listops_short', 'text') for column in ('full', 'linear')]
    assert {values['train']['steps'] for values in cells.values()} == {7}
    assert cells['text', 'linear']['model']['attention'] == 'linear()'
    assert make_cells(FILE, {}, ['image'], ['full'], 'code')['image', 'full']['model']['width'] == 128


def test_overrides_that_change_something():
    overrides = {'train.steps': 2_000, 'model.attention': 'linear()', 'examples.buckets': (128,), 'model.layers': 3}
    own, cells = (make_cells(FILE, given, ['recall'], ['linear']) for given in ({}, overrides))
    assert effective_overrides(overrides, own, cells) == {'examples.buckets': (128,), 'model.layers': 3}
    assert effective_overrides({}, own, own) == {}


def test_overrides_may_name_the_cell():
    overrides = {'train.start_from': 'runs/masked/{row}/{column}', 'train.steps': 7}
    cells = make_cells(FILE, overrides, ['recall'], ['full', 'linear'])
    starts = [values['train']['start_from'] for values in cells.values()]
    assert starts == ['runs/masked/recall/full', 'runs/masked/recall/linear']
    assert overrides['train.start_from'] == 'runs/masked/{row}/{column}'


@pytest.mark.parametrize(
    'name, value, columns', [('examples.train', 'imdb:folder=x', ['full']), ('examples.test', 'x', ['full', 'linear'])]
)
def test_rows_that_an_override_makes_the_same(name: str, value: str, columns: list):
    with pytest.raises(InputError) as error:
        make_cells(FILE, {name: value}, ['listops', 'text'], columns)
    line = f'--config.{name} is {value!r} in the rows listops and text, which would train the same under two names; '
    assert str(error.value).startswith(line)
    group, field = name.split('.')
    assert make_cells(FILE, {name: value}, ['listops'], columns)['listops', 'full'][group][field] == value


def test_a_column_that_an_override_makes_another_mechanism():
    with pytest.raises(InputError) as error:
        make_cells(FILE, {'model.attention': 'linear()'}, ['text'], ['linear', 'full'])
    line = "--config.model.attention is 'linear()', which the column full is not; give it a column"
    assert str(error.value).startswith(line)
    assert make_cells(FILE, {'model.attention': 'linear()'}, ['text'], ['linear'])


def test_an_override_that_is_different_in_each_row():
    cells = make_cells(FILE, {'examples.train': 'aan:folder={row}'}, ['retrieval', 'text'], ['full', 'linear'])
    assert cells['text', 'linear']['examples']['train'] == 'aan:folder=text'


@pytest.mark.parametrize(
    'file, rows, columns, line',
    [
        (FILE, ['listops', 'listops'], ['full'], "--rows is 'listops,listops'; it must be different names"),
        (FILE, ['listops'], [], "--columns is ''; it must be different names"),
        (
            FILE,
            ['chess'],
            ['full'],
            "chess,full: the config's argument is 'chess,full'; the task 'chess' is unknown; known: listops, ",
        ),
        (FILE, ['listops'], ['magic'], "listops,magic: the config's argument is"),
        (
            f'{FILE}:listops,full,code',
            ['listops'],
            ['full'],
            "--config has 'listops,full,code' after the file; cells are",
        ),
        ('README.md', ['listops'], ['full'], '--config README.md: not a Python file'),
        ('configs/quickstart.py', ['a'], ['full'], '--config configs/quickstart.py: its get_config takes no argument'),
        ('nowhere.py', ['listops'], ['full'], '--config nowhere.py: cannot be read'),
    ],
)
def test_cells_that_there_are_not(file: str, rows: list, columns: list, line: str):
    with pytest.raises(InputError) as error:
        make_cells(file, {}, rows, columns)
    assert str(error.value).startswith(line)


def test_rates():
    assert parse_learning_rates(['1e-3', '3e-3']) == (1e-3, 3e-3) and parse_learning_rates([]) == ()
    for words in (['fast'], ['0'], ['1e-3', '0.001'], ['1e-3', '0.001000001'], ['-1'], ['inf']):
        with pytest.raises(InputError, match=r'^--rates is .*; it must be different numbers above 0 with commas$'):
            parse_learning_rates(words)


def test_baselines_are_kept_in_the_folder(tmp_path: Path):
    fields = {f'examples.{split}': 'listops:rows=40:length=8-30' for split in ('train', 'dev', 'test')}
    cells = make_cells(
        FILE, fields | {'examples.cache': str(tmp_path / 'cache')}, ['listops_short'], ['full', 'linear']
    )
    found = compute_baselines(cells, tmp_path)
    assert list(found) == ['listops_short'] and list(found['listops_short']) == ['majority', 'root', 'root_digits']
    [(identity, scores)] = json.loads((tmp_path / 'yardsticks.json').read_text()).items()
    assert scores == found['listops_short']
    (tmp_path / 'yardsticks.json').write_text(json.dumps({identity: {'known': 0.5}}))
    assert compute_baselines(cells, tmp_path) == {'listops_short': {'known': 0.5}}
    cells['listops_short', 'full']['data']['length'] = 4  # the baselines, too, then read only 4 tokens
    assert compute_baselines(cells, tmp_path)['listops_short'] != found['listops_short']
    # baselines of other data are computed anew
    cells['listops_short', 'full']['examples']['test'] = 'listops:rows=30:length=8-30'
    assert list(compute_baselines(cells, tmp_path)['listops_short']) == ['majority', 'root', 'root_digits']


@pytest.mark.parametrize(
    'cell, sizes, decay, pooling',
    [
        ('image,full,code', (1, 128, 8, 8), 0.0, 'first'),
        ('image,lra_local,code', (1, 128, 2, 32), 0.0, 'mean'),
        ('image,sinkhorn,code', (1, 32, 1, 32), 0.7, 'first'),
        ('image,sinkhorn,paper', (3, 64, 4, 16), 0.0, 'first'),
        ('pathfinder_hard,synthesizer_random,code', (2, 64, 4, 8), 0.0, 'mean'),
        ('pathfinder_hard,sparse,code', (1, 32, 8, 2), 0.0, 'mean'),
    ],
)
def test_the_released_settings_of_a_mechanism_are_its_own(
    cell: str, sizes: tuple[int, ...], decay: float, pooling: str
):
    config = get_config(cell)
    model = config.model
    assert (model.layers, model.width, model.heads, model.head_width) == sizes
    assert (config.optimizer.weight_decay, config.head.pooling) == (decay, pooling)
    # all cells of a grid's row read the same data
    assert config.data.tokenizer.endswith(':cls') == cell.startswith('image')

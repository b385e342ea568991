"""Tests which fields of cells' configs may differ, within a grid's row and between two commands on one folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.arena import get_config
from efficient_attention.errors import InputError
from efficient_attention.experiments.grid_configs import (
    add_cell_metadata,
    check_cells_unchanged,
    check_has_test_split,
    check_row_cells_comparable,
    check_sweep_unchanged,
    config_differences,
    different_overrides,
    flatten_with_defaults,
    has_result_or_run,
    read_started_cell_configs,
    read_sweep_choice,
    shared_fields,
    step_fields,
    write_cell_configs,
)


def cells_of(*names: str, **fields: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for name in names:
        config = get_config(name)
        config.update_from_flattened_dict(fields)
        found[name.split(',')[0], name.split(',')[1]] = config.to_dict()
    return found


def begin(workdir: Path, cells: dict, size: str = '') -> None:
    """Writes a folder in which all cells have a result but no run, as if somebody had removed the checkpoints."""
    write_cell_configs(workdir, add_cell_metadata(cells, size))
    for row, column in cells:
        (workdir / row / column / 'cell.json').write_text('{}')


def test_the_workdir_of_a_single_run_is_refused(tmp_path: Path):
    (tmp_path / 'config.json').write_text('{}')
    with pytest.raises(InputError, match=f'^{tmp_path} is the folder of a single run'):
        check_cells_unchanged(tmp_path, add_cell_metadata(cells_of('recall,full'), ''))


def test_what_changes_a_step_and_no_number():
    [values] = cells_of('recall,full', **{'train.micro_batches': 4}).values()
    assert step_fields(values) == {'train.micro_batches': 4, 'model.remat': 'none', 'model.scan_unroll': 2}


def test_differences_of_configs():
    first, second = {'a': {'b': 1, 'c': (1, 2)}, 'd': 3}, {'a': {'b': 2, 'c': [1, 2]}, 'e': 3}
    assert list(config_differences(first, second)) == [('a.b', (1, 2)), ('d', (3, None)), ('e', (None, 3))]


def test_a_field_that_is_not_given_has_its_default():
    values = add_cell_metadata(cells_of('image,full'), '')['image', 'full']
    older = json.loads(json.dumps(values))
    del older['model']['scan_unroll'], older['size']
    assert list(config_differences(older, values)) == [('model.scan_unroll', (1, 2))]
    assert values['model']['remat'] is None and flatten_with_defaults(values)['model.remat'] == 'none'
    started = values | {'train': values['train'] | {'start_from': 'runs/a'}}
    # None: the value comes from the run that it starts from
    assert flatten_with_defaults(started)['model.remat'] is None


@pytest.mark.parametrize('name, value', [('examples.cache', 'elsewhere'), ('train.log_every_steps', 7)])
def test_what_changes_no_figure_may_change(tmp_path: Path, name: str, value: Any):
    begin(tmp_path, cells_of('recall,full'))
    changed = add_cell_metadata(cells_of('recall,full', **{name: value}), '')
    check_cells_unchanged(tmp_path, changed)
    check_row_cells_comparable(
        read_started_cell_configs(tmp_path, {'recall'})
        | add_cell_metadata(cells_of('recall,linear', **{name: value}), '')
    )


@pytest.mark.parametrize('name, value', [('train.steps', 9), ('model.scan_unroll', 1), ('eval.every_steps', 10)])
def test_a_result_without_its_runs_stays_that_of_its_config(tmp_path: Path, name: str, value: Any):
    begin(tmp_path, cells_of('recall,full'))
    assert has_result_or_run(tmp_path / 'recall/full')
    with pytest.raises(InputError, match=f'recall/full was made with {name} = .*, now it is {value}; name a new'):
        check_cells_unchanged(tmp_path, add_cell_metadata(cells_of('recall,full', **{name: value}), ''))


@pytest.mark.parametrize(
    'first, second, fields, field',
    [
        ('text,full', 'text,linear', {'model.layers': 6}, 'model.layers'),
        ('text,full', 'text,linear', {'optimizer.weight_decay': 0.5}, 'optimizer.weight_decay'),
        (
            'image,full,code',
            'image,linear,paper',
            {},
            'model.feed_forward_width|model.head_width|model.heads|model.layers',
        ),
    ],
)
def test_cells_of_a_row_have_equal_sizes(first: str, second: str, fields: dict, field: str):
    cells = add_cell_metadata(cells_of(first), '') | add_cell_metadata(cells_of(second, **fields), '')
    with pytest.raises(InputError, match=f'({field}) differs between the columns full and linear; all cells'):
        check_row_cells_comparable(cells)


STARTED = {'train.start_from': 'runs/{row}/{column}'}


@pytest.mark.parametrize(
    'first, second, field',
    [
        ({}, {'model.dtype': 'bfloat16'}, 'model.dtype'),
        ({'head.pooling': 'first'}, {}, 'head.pooling'),
        ({'model.positions': 'rotary'}, {'model.positions': 'sinusoidal'}, 'model.positions'),
        (STARTED, {}, 'train.start_from'),
        (STARTED, {'train.start_from': '/elsewhere/{row}_{column}'}, ''),  # each cell starts from its own run
        ({'model.attention_backend': 'reference'}, {}, ''),
        ({'train.micro_batches': 2}, {}, ''),  # the table of the grid reports it
        ({'optimizer.learning_rate': 0.5}, {}, ''),
        ({'examples.cache': 'elsewhere'}, {}, ''),
        ({'mesh.data': 1}, {'mesh.tensor': 1}, ''),  # the mesh may differ: it is recorded for each cell
    ],
)
def test_what_one_command_changes_another_changes_too(first: dict, second: dict, field: str):
    cells = {}
    for column, overrides in (('full', first), ('linear', second)):
        own = {
            name: text.format(row='recall', column=column) if name in STARTED else text
            for name, text in overrides.items()
        }
        cells |= add_cell_metadata(cells_of(f'recall,{column}', **own), '', overrides)
    fields = map(shared_fields, cells.values())
    if not field:
        check_row_cells_comparable(cells)
        assert next(fields) == next(fields)
        return
    with pytest.raises(InputError, match=f'^recall: {field} differs between the columns full and linear; all cells of'):
        check_row_cells_comparable(cells)
    assert next(fields) != next(fields)
    older = cells['recall', 'full'] | {'model': cells['recall', 'full']['model'] | {'attention': 'bigbird(3)'}}
    del older['overrides']
    with pytest.raises(InputError, match=f'^recall: ({field}|examples.has_global) differs'):
        check_row_cells_comparable({('recall', 'bigbird'): older} | cells)
    del cells['recall', 'full']['overrides']  # grids of earlier versions have no entry `overrides`
    assert different_overrides(*cells.values()) == []


def test_rows_whose_content_has_changed_are_other_rows(tmp_path: Path):
    (tmp_path / 'a.txt').write_text('some words ' * 30)
    rows = f'passages:rows=9:length=20:source=text:{tmp_path}/*.txt'
    fields = {f'examples.{split}': rows for split in ('train', 'dev', 'test')}
    begin(tmp_path / 'grid', cells_of('passages,full', **fields))
    before = add_cell_metadata(cells_of('passages,full', **fields), '')
    check_cells_unchanged(tmp_path / 'grid', before)
    (tmp_path / 'a.txt').write_text('other words ' * 30)
    now = add_cell_metadata(cells_of('passages,full', 'passages,linear', **fields), '')
    with pytest.raises(InputError, match=r'grid/passages/full was made before the content of examples\.dev changed;'):
        check_cells_unchanged(tmp_path / 'grid', now)
    linear = {('passages', 'linear'): now['passages', 'linear']}
    line = r'^passages: the content of examples\.dev differs between the columns full and linear;'
    with pytest.raises(InputError, match=line):
        check_row_cells_comparable(before | linear)
    first, second = shared_fields(before['passages', 'full']), shared_fields(now['passages', 'full'])
    assert {name for name in first if first[name] != second[name]} == {'rows.train', 'rows.dev', 'rows.test'}
    del before['passages', 'full']['rows']  # grids of earlier versions have no entry `rows`
    check_row_cells_comparable(before | linear)


def test_cells_train_as_many_steps():
    with pytest.raises(InputError, match=r'^recall,full: train\.early_stop is 2; all cells train as many steps'):
        check_has_test_split(cells_of('recall,full', **{'train.early_stop': 2}))


def test_cells_may_have_rates_of_their_own():
    check_row_cells_comparable(
        add_cell_metadata(cells_of('text,full'), '')
        | add_cell_metadata(cells_of('text,linear', **{'optimizer.learning_rate': 0.5}), '')
    )


def test_released_sizes_are_a_mechanisms_own_and_mix_with_no_others():
    """All mechanisms read the same images, with a [CLS] token in front, whatever pooling their released settings
    use.
    """
    released = add_cell_metadata(cells_of('image,full,code', 'image,lra_local,code', 'image,sinkhorn,code'), 'code')
    check_row_cells_comparable(released, has_own_sizes=True)
    with pytest.raises(InputError, match='image: size differs between the columns full and linear'):
        check_row_cells_comparable(
            released | add_cell_metadata(cells_of('image,linear,paper'), 'paper'), has_own_sizes=True
        )


def test_the_fields_that_a_row_shares_are_of_no_mechanism_rate_or_machine():
    cells = add_cell_metadata(cells_of('text,full', 'text,linear', **{'optimizer.learning_rate': 0.5}), '')
    first, second = map(shared_fields, cells.values())
    assert first == second and first['examples.train'] == 'imdb' and first['model.width'] == 64
    own = shared_fields(cells['text', 'full'], has_own_sizes=True)
    assert 'model.width' not in own and first['data.length'] == own['data.length'] == 1_000
    assert not {name for name in first if name.startswith(('model.attention', 'optimizer.learning_rate'))}


def test_pilots_that_have_begun_have_their_steps(tmp_path: Path):
    cells = cells_of('recall,full')
    begin(tmp_path, cells)
    pilot = tmp_path / 'recall/full/pilot_0.001'
    pilot.mkdir()
    (tmp_path / 'recall/full/cell.json').unlink()
    (pilot / 'config.json').write_text('{"train": {"steps": 10}}')
    for rates, steps in (((1e-3, 1e-2), 10), ((), 12)):
        check_sweep_unchanged(tmp_path, cells, rates, steps)
    with pytest.raises(
        InputError, match='full: the trial runs before were some in 10 steps, now .* say 0.001 in 12 steps;'
    ):
        check_sweep_unchanged(tmp_path, cells, (1e-3,), 12)


@pytest.mark.parametrize('text', ['[', '{"pilots": {"0.1": 2.0}}', '{"pilots": {"x": 1}, "learning_rate": 0.1}'])
def test_a_damaged_choice_is_one_line(text: str, tmp_path: Path):
    (tmp_path / 'choice.json').write_text(text)
    with pytest.raises(InputError, match='choice.json: '):
        read_sweep_choice(tmp_path)


def test_a_damaged_file_of_a_cell_is_one_line(tmp_path: Path):
    cells = cells_of('recall,full')
    begin(tmp_path, cells)
    (tmp_path / 'recall/full/values.json').write_text('x')
    with pytest.raises(InputError, match=r'recall/full/values.json: not a JSON object that can be read \(a '):
        check_cells_unchanged(tmp_path, add_cell_metadata(cells, ''))

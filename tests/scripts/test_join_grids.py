"""Tests the joining of several folders' grids into one table."""

import json
import re
import sys
from pathlib import Path

import pytest

from configs.arena import mechanisms
from efficient_attention.errors import InputError
from efficient_attention.experiments.grid_report import grid_picture, grid_table
from scripts.join_grids import main, merge_grids, select_rows
from tests.experiments.test_grid_report import cell

ROOT = Path(__file__).resolve().parent.parent.parent


def write(path: Path, columns: dict, yardsticks: dict, row: str = 'listops') -> Path:
    cells = {row: {name: one | {'steps': 10} if 'steps' not in one else one for name, one in columns.items()}}
    path.write_text(json.dumps({'cells': cells, 'yardsticks': {row: yardsticks}}))
    return path


def test_later_cells_take_the_place_of_earlier_ones(tmp_path: Path, monkeypatch, capsys):
    first = write(tmp_path / 'a.json', {'full': cell({'0': 0.4}), 'linear': cell({'0': 0.2})}, {'majority': 0.1})
    second = write(tmp_path / 'b.json', {'linear': cell({'0': 0.3}), 'lsh': {'error': 'no room'}}, {'root': 0.36})
    third = write(tmp_path / 'c.json', {'full': cell({'0': 0.5})}, {}, row='recall')
    third.write_text(third.read_text().replace('"yardsticks": {', '"yardsticks": {"text": {"trigrams": 0.8}, '))
    cells, yardsticks = merge_grids([first, second, third])
    assert {name: one.get('mean') for name, one in cells['listops'].items()} == {
        'full': {'accuracy': 0.4},
        'linear': {'accuracy': 0.3},
        'lsh': None,
    }
    assert yardsticks == {'listops': {'majority': 0.1, 'root': 0.36}, 'recall': {}, 'text': {'trigrams': 0.8}}
    assert list(cells) == ['listops', 'recall']

    output, picture = tmp_path / 'all.json', tmp_path / 'all.svg'
    words = ['join_grids.py', *map(str, (first, second, third)), '--output', str(output), '--picture', str(picture)]
    monkeypatch.setattr(sys, 'argv', words)
    main()
    assert capsys.readouterr().out.rstrip('\n') == grid_table(cells, yardsticks).rstrip('\n')
    assert (
        merge_grids([output]) == (cells, yardsticks)
        and '<!-- recall: accuracy on the test rows, % -->' in picture.read_text()
    )


@pytest.mark.parametrize(
    'words, message',
    [
        (['absent.json'], 'absent.json: cannot be read (No such file or directory)'),
        (['other.json'], "other.json: not a grid.json of scripts/train_grid.py: 'cells' is missing"),
        (
            ['part.json', '--output', 'all.json'],
            "part.json: not a grid.json of scripts/train_grid.py: 'seeds' is missing",
        ),
        (
            ['odd.json'],
            'odd.json: not a grid.json of scripts/train_grid.py: the cells have the wrong form',
        ),
        (
            ['empty.json', '--output', 'all.json'],
            'empty.json: not a grid.json of scripts/train_grid.py: the cells have the wrong form (it has no cells)',
        ),
        (['ten.json', 'twenty.json'], 'twenty.json: the cells of listops have different steps and cannot be'),
        (['ten.json', '--output', 'all.md'], '--output is all.md; it must end in .json'),
        (['ten.json', '--picture', 'all.png'], '--picture is all.png; it must end in .svg'),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'other.json').write_text('{}')
    (tmp_path / 'empty.json').write_text('{"cells": {}, "yardsticks": {}}')
    part = {'steps': 3, 'mean': {'accuracy': 0.5}, 'metric': 'accuracy'}
    (tmp_path / 'part.json').write_text(json.dumps({'cells': {'a': {'full': part}}, 'yardsticks': {}}))
    write(tmp_path / 'odd.json', {'full': cell({'0': 0.4}) | {'shared_fields': 'all'}}, {})
    write(tmp_path / 'ten.json', {'full': cell({'0': 0.4})}, {})
    write(tmp_path / 'twenty.json', {'linear': cell({'0': 0.4}) | {'steps': 20}}, {})
    monkeypatch.setattr(sys, 'argv', ['join_grids.py', *words])
    with pytest.raises(InputError) as caught:
        main()
    assert message in str(caught.value) and not list(tmp_path.glob('all*'))


def test_cells_of_other_rows_or_sizes_are_not_joined(tmp_path: Path):
    fields = {'size': 'code', 'examples.train': 'recall:rows=9'}
    one, other = (
        cell({'0': 0.4}) | {'shared_fields': given} for given in (fields, {'examples.train': 'recall:rows=8'})
    )
    older = write(tmp_path / 'a.json', {'full': cell({'0': 0.4})}, {})
    first = write(tmp_path / 'b.json', {'linear': one}, {})
    assert merge_grids([older, first, write(tmp_path / 'c.json', {'lsh': one}, {})])[0]['listops'].keys() == {
        'full',
        'linear',
        'lsh',
    }
    last = write(tmp_path / 'd.json', {'lsh': other}, {})
    fault = "examples.train is 'recall:rows=9' of linear and 'recall:rows=8' of lsh"
    with pytest.raises(InputError, match=f'd.json: listops has cells that cannot be compared: {fault}$'):
        merge_grids([older, first, last])
    last = write(tmp_path / 'd.json', {'lsh': other | {'shared_fields': {'examples.train': 'recall:rows=9'}}}, {})
    with pytest.raises(InputError, match="size is 'code' of linear and 'the default' of lsh$"):
        merge_grids([older, first, last])


def test_a_cell_that_failed_elsewhere_takes_the_place_of_no_result(tmp_path: Path):
    first = write(tmp_path / 'a.json', {'full': cell({'0': 0.4}), 'lsh': {'error': 'once'}}, {})
    second = write(tmp_path / 'b.json', {'full': {'error': 'no room'}, 'lsh': {'error': 'twice'}}, {})
    [columns] = merge_grids([first, second])[0].values()
    assert columns['full']['mean'] == {'accuracy': 0.4} and columns['lsh']['error'] == 'twice'
    assert merge_grids([second, first])[0]['listops']['full']['mean'] == {'accuracy': 0.4}


def test_cells_of_other_content_or_other_overrides_are_not_joined(tmp_path: Path):
    older = {'full': cell({'0': 0.4}) | {'shared_fields': {'examples.train': 'passages:rows=9'}}}

    def of(name: str, rows: str, **overrides: str) -> Path:
        fields = {'examples.train': 'passages:rows=9', 'rows.train': rows}
        fields |= {f'overrides.{field}': value for field, value in overrides.items()}
        return write(tmp_path / f'{name}.json', {name: cell({'0': 0.4}) | {'shared_fields': fields}}, {})

    before = [write(tmp_path / 'a.json', older, {}), of('linear', 'abc')]
    # older cells lack the fields that could differ
    assert len(merge_grids([*before, of('lsh', 'abc')])[0]['listops']) == 3
    with pytest.raises(
        InputError, match="cannot be compared: the content of examples.train is 'abc' of linear and 'def' of lsh$"
    ):
        merge_grids([*before, of('lsh', 'def')])
    with pytest.raises(InputError, match="overrides.dtype is 'the default' of linear and 'bfloat16' of lsh$"):
        merge_grids([*before, of('lsh', 'abc', dtype='bfloat16')])


def test_rows_that_are_named_are_printed_and_drawn(tmp_path: Path, monkeypatch, capsys):
    path = write(tmp_path / 'a.json', {'full': cell({'0': 0.4})}, {})
    path.write_text(
        json.dumps({'cells': dict.fromkeys('abc', {'full': cell({'0': 0.4}) | {'steps': 10}}), 'yardsticks': {}})
    )
    output, picture = tmp_path / 'all.json', tmp_path / 'all.svg'
    monkeypatch.setattr(
        sys, 'argv', ['join_grids.py', str(path), '--rows=c,a', f'--output={output}', f'--picture={picture}']
    )
    main()
    assert re.findall('^### (.*)$', capsys.readouterr().out, re.MULTILINE) == ['c', 'a']
    assert list(merge_grids([output])[0]) == ['a', 'b', 'c']
    assert '<!-- b: ' not in picture.read_text() and '<!-- c: ' in picture.read_text()
    monkeypatch.setattr(sys, 'argv', ['join_grids.py', str(path), '--rows=d'])
    with pytest.raises(InputError, match="--rows names 'd'; the files have a, b, c$"):
        main()


SHOWN = {'arena': ('recall', 'pathfinder'), 'arena_masked': ('pathfinder',), 'arena_h100': ('image', 'listops')}
SHOWN |= {'arena_recall': ('recall',)}


@pytest.mark.parametrize(
    'name, with_speed', [('arena', True), ('arena_masked', True), ('arena_recall', True), ('arena_h100', False)]
)
def test_the_page_shows_the_tables_of_its_file_and_no_other(name: str, with_speed: bool):
    cells, yardsticks = merge_grids([ROOT / f'docs/results/data/{name}.json'])
    cells = select_rows(cells, SHOWN[name])
    page = (ROOT / 'docs/results/arena.md').read_text(encoding='utf-8')
    [shown] = [
        part for part in re.split('^## ', page, flags=re.MULTILINE) if f' docs/results/data/{name}.json ' in part
    ]
    table = re.sub('^### (.*)$', r'`\1`:', grid_table(cells, yardsticks, with_speed=with_speed), flags=re.MULTILINE)
    assert shown.count(table.strip()) == 1
    assert re.findall('^`(.*)`:$', shown, flags=re.MULTILINE) == list(SHOWN[name])
    assert len(re.findall('^`(.*)`:$', page, flags=re.MULTILINE)) == sum(map(len, SHOWN.values()))
    assert (ROOT / f'docs/images/{name}.svg').read_text(encoding='utf-8') == grid_picture(cells, yardsticks)


def test_the_guide_says_what_its_columns_are():
    lines = (ROOT / 'docs/arena.md').read_text(encoding='utf-8').splitlines()
    for column, fields in mechanisms(1_000).items():
        text = str(fields['attention']).replace('|', '\\|')
        assert [line for line in lines if line.startswith(f'| `{column}` | `{text}` |')], column


def test_the_page_shows_the_baselines_of_its_file():
    lines = (ROOT / 'docs/results/arena.md').read_text(encoding='utf-8').splitlines()
    for row, found in merge_grids([ROOT / 'docs/results/data/arena.json'])[1].items():
        most, *others = (f'{100 * value:.1f}' for value in found.values())
        ends = f'| `{row}` | {most} |', f' | {"; ".join(others)} |'
        assert [line for line in lines if line.startswith(ends[0]) and line.endswith(ends[1])], row

"""Tests the table and the picture of a grid."""

import json
from pathlib import Path

from efficient_attention.experiments.grid_report import grid_picture, grid_table, read_known_baselines, write_grid


def cell(scores: dict[str, float], parameters: int = 100, speed: float = 2.0) -> dict:
    mean = sum(scores.values()) / len(scores)
    seeds = {seed: {'dev': {'accuracy': score + 0.01}, 'test': {'accuracy': score}} for seed, score in scores.items()}
    return {
        'seeds': seeds,
        'mean': {'accuracy': mean},
        'deviation': {'accuracy': 0.02},
        'metric': 'accuracy',
        'learning_rate': 1e-3,
        'parameters': parameters,
        'steps_per_second': speed,
        'seconds': 120.0,
        'temporary_bytes': 2**22,
    }


CELLS = {
    'listops': {
        'full': cell({'0': 0.40}),
        'linear': cell({'0': 0.30, '1': 0.32}, parameters=120, speed=5.0),
        'lsh': {'error': 'no room'},
    }
}
YARDSTICKS = {'listops': {'majority': 0.171, 'root': 0.36}}


def test_the_table_marks_what_a_reader_has_to_know():
    lines = grid_table(CELLS, YARDSTICKS).splitlines()
    assert lines[0] == '### listops'
    assert lines[4] == '| full | 40.0 | 41.0 | 2.00, 1.00 | 4, 1.00 | 100 | 2.0 | 0.001 |'
    assert lines[5] == '| linear | 31.0 ± 2.0 < | 32.0 | 5.00, 2.50 | 4, 1.00 | 120 + | 2.0 | 0.001 |'
    assert lines[6] == '| lsh | failed: no room | | | | | | |'
    assert lines[7:9] == ['| *baseline: majority* | 17.1 | | | | | | |', '| *baseline: root* | 36.0 | | | | | | |']
    assert {line.count('|') for line in lines[2:9]} == {9}


def test_a_further_seed_that_failed_is_named_below_the_result():
    table = grid_table({'listops': {'full': cell({'0': 0.4}) | {'failed_seed': 'OSError: a | b'}}}, {})
    assert '| full | 40.0 | 41.0 |' in table and '\n| full | a further seed failed: OSError: a / b | | |' in table


def test_the_minutes_of_pilots_stand_beside_those_of_training():
    table = grid_table({'listops': {'full': cell({'0': 0.4}) | {'pilot_seconds': 45.0}}}, {})
    assert '| full | 40.0 | 41.0 | 2.00, 1.00 | 4, 1.00 | 100 | 2.0 + 0.8 | 0.001 |' in table


def test_speed_is_compared_on_one_machine_alone_and_machines_are_named():
    columns = {
        'full': cell({'0': 0.4}) | {'machine': 'EPYC, jax 1', 'pilot_seconds': 240.0},
        'linear': cell({'0': 0.3, '1': 0.3}, speed=5.0) | {'machine': 'EPYC, jax 1'},
        'lsh': cell({'0': 0.2}, speed=3.0) | {'machine': 'Xeon, jax 1'},
    }
    table = grid_table({'listops': columns}, {})
    assert '| linear | 30.0 ± 2.0 | 31.0 | 5.00, 2.50 |' in table and '| lsh | 20.0 | 21.0 | 3.00 | 4, 1.00 |' in table
    assert (
        '\nThe seeds are: linear: 0, 1; the others: 0. Trained on: lsh: Xeon, jax 1; the others: EPYC, jax 1. All'
        in table
    )
    assert '\nTrained on: EPYC, jax 1. All' in grid_table({'listops': {'full': columns['full']}}, {})


def test_memory_is_compared_between_steps_of_one_kind_alone():
    whole = {'train.micro_batches': 1, 'model.remat': 'none'}
    parts = whole | {'train.micro_batches': 4}
    columns = {
        'full': cell({'0': 0.4}) | {'step_fields': whole},
        'linear': cell({'0': 0.3}) | {'step_fields': parts},
        'lsh': cell({'0': 0.2}) | {'step_fields': whole},
    }
    table = grid_table({'listops': columns}, {})
    assert (
        '| linear | 30.0 | 31.0 | 2.00, 1.00 | 4 |' in table and '| lsh | 20.0 | 21.0 | 2.00, 1.00 | 4, 1.00 |' in table
    )


def test_steps_rows_and_other_seeds_stand_below_the_table():
    rows = {'steps': 1_500, 'shared_fields': {'examples.train': 'listops:rows=9'}}
    columns = {name: cell({'0': 0.4}) | rows for name in ('full', 'cos')}
    assert (
        '\nEach mechanism trained for 1,500 steps on rows of `listops:rows=9`. All runs of this table took 0.1 hours.\n'
        in grid_table({'a': columns}, {})
    )
    columns |= {'linear': cell({'0': 0.3, '1': 0.3}) | rows}
    assert '`. The seeds are: linear: 0, 1; the others: 0. All runs' in grid_table({'a': columns}, {})


def test_a_table_without_speed():
    table = grid_table(CELLS, YARDSTICKS, with_speed=False)
    assert (
        '| mechanism | accuracy | validation | temporary MiB, share of full | parameters | minutes | rate |\n' in table
    )
    assert '|---|---|---|---|---|---|---|\n| full | 40.0 | 41.0 | 4, 1.00 | 100 | 2.0 | 0.001 |\n' in table
    assert '| lsh | failed: no room | | | | | |\n| *baseline: majority* | 17.1 | | | | | |\n' in table
    assert 'Steps per second' not in table and 'minutes gives' in table


def test_a_row_without_full_attention_has_no_shares():
    table = grid_table({'listops': {'linear': CELLS['listops']['linear']}}, {})
    assert '| linear | 31.0 ± 2.0 | 32.0 | 5.00 | 4 | 120 | 2.0 | 0.001 |' in table


def test_a_metric_that_is_no_share_of_one_is_shown_as_it_is_the_least_first():
    columns = {
        name: cell({'0': loss}) | {'mode': 'min', 'metric': 'loss', 'mean': {'loss': loss}, 'deviation': {'loss': 0.1}}
        for name, loss in (('full', 2.5), ('linear', 2.25))
    }
    for one in columns.values():
        one['seeds'] = {'0': {'dev': one['mean'], 'test': one['mean']}}
    lines = grid_table({'books': columns}, {'books': {'majority': 9.0}}).splitlines()
    assert lines[4].startswith('| linear | 2.250 | 2.250 | ') and lines[5].startswith('| full | 2.500 | 2.500 | ')
    assert '<!-- books: loss on the test rows -->' in grid_picture({'books': columns}, {})


def test_the_picture_has_a_bar_for_each_cell_and_is_the_same_each_time():
    picture = grid_picture(CELLS, YARDSTICKS)
    assert picture == grid_picture(CELLS, YARDSTICKS) and '<svg' in picture
    for word in ('full', 'linear', 'majority', 'root', 'listops: accuracy on the test rows'):
        assert f'<!-- {word}' in picture
    assert '<!-- lsh' not in picture
    assert '<svg' in grid_picture({'listops': {'lsh': {'error': 'no room'}}}, {})  # no cell has a result to draw


def test_all_three_are_written(tmp_path: Path):
    paths = write_grid(CELLS, YARDSTICKS, tmp_path)
    assert [path.name for path in paths] == ['grid.json', 'grid.md', 'grid.svg'] and all(
        path.is_file() for path in paths
    )
    assert json.loads(paths[0].read_text()) == {'cells': CELLS, 'yardsticks': YARDSTICKS}


def test_a_rate_that_was_chosen_from_others_is_marked():
    chosen = cell({'0': 0.4}) | {'pilots': {'0.001': 2.0, '0.003': 2.1}, 'pilot_steps': 150}
    others = chosen | {'pilots': {'0.001': 2.0}}, chosen | {'pilot_steps': 30}, cell({'0': 0.4})
    columns = {'full': chosen, 'same': chosen} | {f'other_{number}': other for number, other in enumerate(others)}
    lines = grid_table({'listops': columns}, {}).splitlines()
    assert [line.split('|')[1].strip() for line in lines if line.endswith(' * |')] == ['other_2', 'other_1', 'other_0']


def test_baselines_of_a_folder_are_read_again(tmp_path: Path):
    assert read_known_baselines(tmp_path) == {}
    write_grid(CELLS, YARDSTICKS, tmp_path)
    assert read_known_baselines(tmp_path) == YARDSTICKS

"""Tests the table and the page of a sweep, and its SLURM script."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from efficient_attention.experiments.search_space import SearchedField
from efficient_attention.experiments.sweep import Sweep
from efficient_attention.experiments.sweep_report import slurm_script, sweep_table, write_sweep_report
from tests.workdir.test_report import Page, draw

SEARCH = (
    SearchedField('optimizer.learning_rate', 'log', (1e-4, 1e-1)),
    SearchedField('model.attention', 'choice', ('full', 'window(8) | global_tokens(1)')),
)


def result(number: int, rate: float, attention: int, value: float) -> dict:
    fields = {'optimizer.learning_rate': rate, 'model.attention': SEARCH[1].values[attention]}
    return {
        'number': number,
        'fields': fields,
        'value': value,
        'deviation': {'loss': 0.25},
        'seeds': {'0': {}, '1': {}},
    }


RESULTS = [result(0, 1e-3, 0, 2.5), result(1, 1e-2, 1, 2.0)]
RESULTS += [{'number': 2, 'fields': RESULTS[0]['fields'], 'error': 'RunError: <the loss> is infinite'}]


def sweep_in(workdir: Path) -> Sweep:
    return Sweep({}, SEARCH, workdir, ('0', '1'), 'random', 4, 'loss', 'min')


def test_the_best_trial_comes_first_and_failures_last(tmp_path: Path):
    lines = sweep_table(sweep_in(tmp_path), RESULTS).splitlines()
    assert lines[0] == '| trial | optimizer.learning_rate | model.attention | loss (min) |'
    assert lines[2] == '| 1 | 0.01 | window(8) / global_tokens(1) | 2.0000 ± 0.2500 |'
    assert lines[3].startswith('| 0 | 0.001 | full | 2.5000') and 'failed: RunError' in lines[4]
    assert '2 of 4 trials are finished (random search)' in lines[-1]
    drawn = sweep_table(sweep_in(tmp_path), [result(0, 0.00043821810803624584, 0, 2.5)])
    assert '| 0 | 0.0004382 | full |' in drawn


def test_the_page_has_the_best_flags_and_a_chart_per_field(tmp_path: Path):
    assert [path.name for path in write_sweep_report(sweep_in(tmp_path), RESULTS)] == [
        'trials.json',
        'sweep.md',
        'sweep.html',
    ]
    page = Page((tmp_path / 'sweep.html').read_text())
    assert "'--config.model.attention=window(8) | global_tokens(1)'" in page.text
    assert page.text.count('--config.optimizer.learning_rate=0.01') == 1
    assert '<the loss> is infinite' in page.text and {'style', 'script', 'data'} <= page.code.keys()
    assert list(page.charts) == ['loss by optimizer.learning_rate', 'loss by model.attention']
    rate, attention = page.charts.values()
    assert rate['axis']['is_log'] and rate['lines'][0]['steps'] == [0.01, 0.001]
    assert rate['lines'][0]['values'] == [2.0, 2.5] and rate['lines'][0]['names'][0] == 'trial 1, 0.01'
    assert attention['lines'][0]['steps'] == [1, 0] and attention['axis']['names'] == list(SEARCH[1].values)
    assert len(json.loads((tmp_path / 'trials.json').read_text())['trials']) == 3
    write_sweep_report(sweep_in(tmp_path), RESULTS[2:])
    assert not Page((tmp_path / 'sweep.html').read_text()).code.get('data')


@pytest.mark.skipif(not shutil.which('node'), reason='no node')
@pytest.mark.parametrize('results', [RESULTS, RESULTS[:1]])
def test_the_script_of_all_pages_draws_the_trials(tmp_path: Path, results: list[dict]):
    write_sweep_report(sweep_in(tmp_path), results)
    page = Page((tmp_path / 'sweep.html').read_text())
    drawn, used = (draw(page, tmp_path, *words) for words in ((), ('used',)))
    trials = len([one for one in results if 'value' in one])
    assert (drawn['svg'], drawn['circle'], drawn.get('path')) == (2, 2 * trials, None)
    assert used['circle'] > drawn['circle']  # the pointer marks a trial of each chart


def test_the_slurm_script_trains_one_trial_per_task(tmp_path: Path):
    script = slurm_script(sweep_in(tmp_path / 'a b'), ['echo', 'sweep', '--search', 'model.layers=1,2 3'], tmp_path)
    assert '#SBATCH --array=0-3' in script
    environment = {'SLURM_ARRAY_TASK_ID': '3', 'PATH': '/usr/bin:/bin'}
    done = subprocess.run(['bash'], input=script, env=environment, text=True, capture_output=True, check=True)
    assert done.stdout == 'sweep --search model.layers=1,2 3 --trial 3\n'
    assert script.splitlines()[-1] == "# echo sweep --search 'model.layers=1,2 3' --table"

"""Tests sweeps: a stopped sweep ends like an unbroken one, failed trials are named, and the sampler learns."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.errors import InputError, RunStopped
from efficient_attention.experiments import sweep as module
from efficient_attention.experiments.search_space import parse_search
from efficient_attention.experiments.sweep import Sweep, make_sweep, read_results, run_sweep
from tests.training.tiny_run import get_config, write_corpus

RATE, LAYERS = 'optimizer.learning_rate=log(1e-4,1e-1)', 'model.layers=1,2'


def sweep_of(workdir: Path, *search: str, **options: Any) -> Sweep:
    values = get_config().to_dict()
    options = {'objective': ('loss', 'min'), **options}
    return make_sweep(values, parse_search(search or (RATE, LAYERS), values), workdir, **options)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Returns a function that replaces training by a formula: the loss is smallest at the learning rate 1e-2.

    `fail` maps a trial's folder name to the error that its training raises.
    """
    folders: list[Path] = []

    def train(values: dict[str, Any], folder: Path, seeds: tuple[str, ...]) -> dict[str, Any]:
        folders.append(folder)
        if error := train.fail.get(folder.name):
            raise error
        assert (values['checkpoint']['best_metric'], values['checkpoint']['best_mode']) == ('loss', 'min')
        loss = abs(values['optimizer']['learning_rate'] - 1e-2) + values['model']['layers']
        for seed in seeds:
            (folder / f'seed_{seed}').mkdir(parents=True)
            (folder / f'seed_{seed}' / 'config.json').touch()
        runs = {seed: {'loss': loss + int(seed)} for seed in seeds}
        return {'seeds': runs, 'mean': {'loss': loss}, 'deviation': {'loss': 0.5}}

    def replace(**fail: Exception) -> list[Path]:
        train.fail = fail
        folders.clear()
        return folders

    monkeypatch.setattr(module, 'train_seeds', train)
    return replace


@pytest.mark.parametrize('sampler', ['random', 'tpe'])
def test_a_stopped_sweep_ends_like_an_unbroken_one(tmp_path: Path, trained, sampler: str):
    trained()
    whole = run_sweep(sweep_of(tmp_path / 'whole', trials=5, sampler=sampler, seeds=('0', '3')))
    assert len({one['fields']['optimizer.learning_rate'] for one in whole}) == 5
    trained(trial_003=RunStopped())
    with pytest.raises(RunStopped):
        run_sweep(sweep_of(tmp_path / 'stopped', trials=5, sampler=sampler, seeds=('0', '3')))
    again = trained()
    resumed = run_sweep(sweep_of(tmp_path / 'stopped', trials=5, sampler=sampler, seeds=('0', '3')))
    assert [path.name for path in again] == ['trial_003', 'trial_004']
    assert resumed == whole
    assert len(run_sweep(sweep_of(tmp_path / 'stopped', trials=6, sampler=sampler, seeds=('0', '3')))) == 6


def test_tpe_learns_from_earlier_trials(tmp_path: Path, trained):
    trained()
    results = run_sweep(sweep_of(tmp_path, trials=24, sampler='tpe'))
    layers = [one['fields']['model.layers'] for one in results]
    assert layers[12:].count(1) > 9 > layers[:10].count(1)  # the first ten trials are random


def test_a_failed_trial_is_named_and_trained_again(tmp_path: Path, trained, capsys: pytest.CaptureFixture):
    trained(trial_001=InputError('model.heads is 3; it must divide 16'))
    for sampler in ('grid', 'tpe'):
        sweep = sweep_of(tmp_path / sampler, LAYERS, trials=2, sampler=sampler)
        first, second = run_sweep(sweep)
        assert 'value' in first and second['error'] == 'InputError: model.heads is 3; it must divide 16'
        assert 'error: trial 1: model.heads is 3' in capsys.readouterr().err
    again = trained()
    second = run_sweep(sweep)[1]
    assert 'value' in second and [path.name for path in again] == ['trial_001']
    import optuna

    backend = optuna.storages.journal.JournalFileBackend(str(sweep.workdir / module.HISTORY))
    study = optuna.load_study(storage=optuna.storages.JournalStorage(backend), study_name='sweep')
    assert study.trials[1].value == second['value'], 'the sampler learns the result'


def test_results_are_read_without_training(tmp_path: Path, trained):
    sweep = sweep_of(tmp_path / 'sweep', LAYERS, 'model.heads=1,2', sampler='grid')
    with pytest.raises(InputError, match=r'no sweep there \(sweep\.json is missing\)'):
        read_results(sweep)
    trained(trial_001=InputError('model.heads is 3'))
    run_sweep(sweep, only=0)
    run_sweep(sweep, only=1)
    before, again = sorted(sweep.workdir.rglob('*')), trained()
    ok, failed = read_results(sweep)
    assert ok['value'] == pytest.approx(1.0 + abs(sweep.values['optimizer']['learning_rate'] - 1e-2)) and not again
    assert failed['number'] == 1 and 'error' in failed and sorted(sweep.workdir.rglob('*')) == before
    with pytest.raises(InputError, match="has a sweep with mode 'min', now 'max'"):
        read_results(dataclasses.replace(sweep, mode='max'))


def test_one_trial_of_a_grid_is_trained_by_its_number(tmp_path: Path, trained):
    folders = trained()
    sweep = sweep_of(tmp_path, LAYERS, 'model.heads=1,2', sampler='grid')
    assert sweep.trials == 4
    [result] = run_sweep(sweep, only=2)
    assert (result['number'], result['fields']) == (2, {'model.layers': 2, 'model.heads': 1})
    assert [one['number'] for one in run_sweep(sweep, only=0)] == [0, 2] and len(folders) == 2
    with pytest.raises(InputError, match='--trial is 4; the sweep has the trials 0 to 3'):
        run_sweep(sweep, only=4)


def test_a_folder_belongs_to_one_sweep(tmp_path: Path, trained):
    trained()
    sweep = sweep_of(tmp_path, LAYERS, trials=1)
    other = dataclasses.replace(sweep, mode='max')
    (tmp_path / 'sweep.json').write_text(json.dumps(other.plan()))  # of a sweep that has trained nothing
    run_sweep(sweep)
    with pytest.raises(InputError, match="has a sweep with mode 'min', now 'max'; name a new --workdir"):
        run_sweep(other)


def test_a_metric_that_no_evaluation_has_ends_the_sweep(tmp_path: Path, trained):
    trained(trial_000=InputError("checkpoint.best_metric is 'los'; known: loss"))
    with pytest.raises(InputError, match="--metric is loss: checkpoint.best_metric is 'los'; known: loss"):
        run_sweep(sweep_of(tmp_path / 'sweep', LAYERS, trials=1))
    assert not (tmp_path / 'sweep').exists()


def test_missing_choices_are_named(tmp_path: Path):
    for options, line in (
        ({}, '--trials is missing; --sampler random needs'),
        ({'trials': 3, 'sampler': 'grid'}, '--trials is 3; the grid has 2 points'),
        ({'trials': 1, 'objective': ('accuracy', '')}, '--mode is missing'),
        ({'trials': 1, 'seeds': ('0', '0')}, '--seeds is'),
    ):
        with pytest.raises(InputError, match=line):
            sweep_of(tmp_path, LAYERS, **options)
    by_config = sweep_of(tmp_path, LAYERS, trials=1, objective=('', ''))
    assert (by_config.metric, by_config.mode) == ('masked_lm_loss', 'min')
    with pytest.raises(InputError, match='--metric is missing, and the config has no checkpoint.best_metric'):
        make_sweep({'checkpoint': {'best_metric': ''}}, by_config.search, tmp_path, trials=1)


@pytest.mark.slow
@pytest.mark.lenient_promotion
def test_trials_are_trained(tmp_path: Path):
    config = get_config()
    config.data.source, config.data.cache = write_corpus(tmp_path), str(tmp_path / 'cache')
    config.train.steps = 4
    values = config.to_dict()
    search = parse_search(['optimizer.learning_rate=1e-3,1e-2'], values)
    sweep = make_sweep(values, search, tmp_path / 'sweep', sampler='grid', objective=('masked_lm_loss', 'min'))
    first, second = run_sweep(sweep)
    assert first['value'] != second['value'] and (tmp_path / 'sweep' / 'trial_001' / 'seed_0' / 'report.html').is_file()
    assert run_sweep(sweep) == [first, second]

"""Tests the spread of a result over seeds: the choice of the evaluation, and the arithmetic."""

import contextlib
import signal
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from ml_collections import ConfigDict

from configs.common import default_config
from configs.lm.common import language_modelling_config
from efficient_attention.commands.command_line import run_command
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, RunStopped
from efficient_attention.experiments import multi_seed_runs as module
from efficient_attention.experiments.multi_seed_runs import (
    check_no_seed_override,
    mean_and_deviation,
    seeds_table,
    train_seeds,
)
from efficient_attention.processes import signal_thread
from efficient_attention.processes.graceful_stop import GracefulStop
from efficient_attention.processes.signal_thread import StopSignalThread
from tests.processes.test_signal_thread import Left, left, watch  # noqa: F401  fixtures among them


def test_mean_and_deviation():
    runs = [{'step': 5, 'f1': 0.5}, {'step': 9, 'f1': 0.7}, {'step': 2, 'f1': 0.9}]
    found = mean_and_deviation(runs)
    assert found['mean'] == pytest.approx({'f1': 0.7})
    assert found['deviation'] == pytest.approx({'f1': statistics.stdev([0.5, 0.7, 0.9])})
    assert mean_and_deviation(runs[:1])['deviation'] == {'f1': 0.0}
    lines = seeds_table({'seeds': dict(zip('012', runs, strict=True)), **found}).splitlines()
    assert lines[0].split() == 'metric seed 0 seed 1 seed 2 mean deviation'.split()
    assert lines[1].split() == ['f1', '0.5000', '0.7000', '0.9000', '0.7000', '0.2000']


@pytest.mark.parametrize('seeds', [[], ['0', '0'], ['one'], ['-1'], ['0', '00'], ['٣'], ['2147483649'], ['9' * 5000]])
def test_seeds_that_are_none(tmp_path: Path, seeds: list):
    with pytest.raises(
        InputError,
        match='^--seeds is .*; it must be different whole numbers from 0 to 2147483648 with commas, as 0,1,10$',
    ):
        train_seeds(default_config().to_dict(), tmp_path, seeds)


def test_a_seed_that_the_config_is_given_is_refused():
    check_no_seed_override({'train.steps': 7})
    with pytest.raises(InputError, match=r'^--config\.train\.seed is 7, which --seeds names; leave it out$'):
        check_no_seed_override({'train.seed': 7})


def test_seeds_need_held_out_text_to_be_compared_by(tmp_path: Path):
    config = default_config()
    config.data.held_out = 0.0
    with pytest.raises(InputError, match=r'^no text is held out \(data\.held_out=0\), and seeds are compared by'):
        train_seeds(config.to_dict(), tmp_path, ['0'])


def config_with_a_test_split() -> ConfigDict:
    """Returns the config of a run that is evaluated on the test split, because no text is held out."""
    config = language_modelling_config()
    config.data.update({'held_out': 0.0, 'test': 0.1, 'splitting': 'end', 'units': 'bytes'})
    config.eval.split = 'test'
    return config


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns the folder of compiled programs, next to the workdirs that tests make."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.chdir(tmp_path)
    jax.config.update('jax_compilation_cache_dir', None)
    yield tmp_path / 'cache' / 'programs'
    jax.config.update('jax_compilation_cache_dir', before)


def test_programs_are_kept_where_only_the_user_writes(programs: Path):
    programs.mkdir(parents=True, mode=0o777)
    module.enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(programs) and programs.stat().st_mode & 0o777 == 0o700
    jax.config.update('jax_compilation_cache_dir', '/elsewhere')  # as if the environment named the folder
    module.enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == '/elsewhere'


def test_a_folder_of_programs_that_cannot_be_made_is_named(programs: Path):
    programs.parent.write_text('a file')
    with pytest.raises(InputError, match=f'^{programs}: cannot be written'):
        module.enable_compilation_cache()


@pytest.mark.usefixtures('programs')
@pytest.mark.parametrize('config_of', [default_config, config_with_a_test_split])
def test_a_stopped_seed_is_the_last_and_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config_of: Callable
):
    values, trained = config_of().to_dict(), []

    def train(config: RunConfig, workdir: Path, **opened: object) -> dict[str, float]:
        assert opened == {'examples': None, 'pretrained': None}  # only fine-tuning runs open them
        trained.append((config.train.seed, workdir.name))
        if len(trained) == 2:
            raise RunStopped
        return {'loss': 1.0}

    monkeypatch.setattr(module, 'train', train)
    monkeypatch.setattr(module, 'read_best_evaluation', lambda *_: {'loss': 1.0})
    with pytest.raises(RunStopped):
        train_seeds(values, tmp_path, ['3', '4', '5'])
    assert trained == [(3, 'seed_3'), (4, 'seed_4')]
    # the stop leaves no table of results
    assert [path.name for path in tmp_path.iterdir()] == ['cache']


@pytest.mark.usefixtures('programs')
@pytest.mark.parametrize('number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=['SIGINT', 'SIGTERM'])
def test_a_stop_at_the_end_of_a_seed_is_said_by_the_next_with_its_line_and_code(
    watch: StopSignalThread,  # noqa: F811
    left: Left,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd,
    number: int,
    code: int,
):
    """The seed has taken and saved its last step, so it ends as usual. The stop prevents the next seed from
    starting.
    """
    trained = []

    def train(config: RunConfig, workdir: Path, **opened: object) -> dict[str, float]:
        del workdir, opened
        with GracefulStop() as stop:
            stop.enable_graceful_stop()
            trained.append(config.train.seed)
            signal.raise_signal(number)
            while not watch.number:  # waits until the signal thread has seen the signal
                pass
        return {'loss': 1.0}

    monkeypatch.setattr(signal_thread, '_watches', [watch])
    monkeypatch.setattr(module, 'train', train)
    monkeypatch.setattr(module, 'read_best_evaluation', lambda *_: {'loss': 1.0})
    values = default_config().to_dict()
    with contextlib.suppress(SystemExit):
        run_command(lambda: print(train_seeds(values, tmp_path, ['3', '4'])))
    name = 'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'
    assert (left.code, trained) == (code, [3])
    assert capfd.readouterr() == ('', f'stopped by {name}; there was nothing to save\n')

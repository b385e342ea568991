"""Tests that missing packages and keys are named, and that no tracker stops a run."""

import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from efficient_attention.config.train import TRACKERS
from efficient_attention.errors import InputError, RunStopped
from efficient_attention.workdir.trackers.all_trackers import OWN, Trackers, check_trackers, open_trackers
from efficient_attention.workdir.trackers.child_process import make_tracker
from efficient_attention.workdir.trackers.tracker import TrackedRun


def recorder(calls: list, *, fails_in: str = '') -> SimpleNamespace:
    """Returns a tracker that appends its calls to a list; one of its methods may raise an error."""

    def method(name: str) -> Callable:
        def call(*arguments):
            calls.append((name, *arguments))
            if name == fails_in:
                raise OSError(28, 'No space\nleft')
            return ''

        return call

    return SimpleNamespace(start=method('start'), log=method('log'), finish=method('finish'))


def test_trackers_get_finite_numbers_under_the_name_of_their_split():
    calls: list = []
    with Trackers({'a': recorder(calls)}, print) as trackers:
        trackers.log(3, 'train', {'loss': 0.5, 'rate': math.nan})
        trackers.log(3, 'held_out', {'loss': math.inf})
    assert calls == [('start',), ('log', 3, {'train/loss': 0.5}), ('finish', 'finished')]


@pytest.mark.parametrize('error, end', [(RunStopped(), 'stopped'), (ValueError(), 'failed')])
def test_trackers_learn_how_a_run_ended(error: Exception, end: str):
    calls: list = []
    with pytest.raises(type(error)), Trackers({'a': recorder(calls)}, print) as trackers:
        trackers.start()
        raise error
    assert calls[-1] == ('finish', end)


@pytest.mark.parametrize('name', ['start', 'log', 'finish'])
def test_a_tracker_that_fails_is_off_and_the_others_go_on(name: str):
    good, bad, lines = [], [], []
    with Trackers({'bad': recorder(bad, fails_in=name), 'good': recorder(good)}, lines.append) as trackers:
        trackers.log(1, 'train', {'loss': 1.0})
        trackers.log(2, 'train', {'loss': 1.0})
    assert lines == ['tracker bad is off: [Errno 28] No space left']
    assert [call[0] for call in good] == ['start', 'log', 'log', 'finish'] and bad[-1][0] == name


def test_trackers_that_were_never_used_are_not_finished():
    calls: list = []
    with Trackers({'a': recorder(calls)}, print):
        pass
    assert calls == []


@pytest.mark.parametrize('name', ['wandb', 'trackio', 'mlflow'])
@pytest.mark.parametrize('is_folder', [False, True])
def test_a_missing_package_is_named_with_the_command_that_installs_it(name: str, is_folder: bool, monkeypatch):
    """A folder with the name of the package, such as wandb's ./wandb, is no package."""
    found = SimpleNamespace(origin=None) if is_folder else None
    monkeypatch.setattr(importlib.util, 'find_spec', lambda _: found)
    command = r"pip install 'efficient-attention\[trackers\]'"
    with pytest.raises(InputError, match=rf'^train\.trackers={name} needs: {command}$'):
        check_trackers(('tensorboard', 'csv', name))


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    """Removes all keys of wandb, and makes `tmp_path` the home folder."""
    for name in ('WANDB_API_KEY', 'WANDB_IDENTITY_TOKEN_FILE', 'WANDB_MODE', 'WANDB_CONFIG_DIR', 'NETRC'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures('no_login')
def test_a_missing_key_of_wandb_is_named_before_training(tmp_path, monkeypatch):
    def is_refused() -> bool:
        try:
            check_trackers(('wandb',))
        except InputError as error:
            assert str(error).startswith("train.trackers has 'wandb', which finds no key: run `wandb login`")
            return True
        return False

    netrc, settings = tmp_path / '.netrc', tmp_path / '.config' / 'wandb' / 'settings'
    settings.parent.mkdir(parents=True)
    for text, refused in (('machine else.org login a password b', True), ('machine api.wandb.ai', True)):
        netrc.write_text(f'{text}\n')
        assert is_refused() is refused
    netrc.write_text('machine api.wandb.ai login user password secret\n')
    assert not is_refused()
    monkeypatch.setenv('WANDB_BASE_URL', 'https://my.server.org:8080')
    assert is_refused()
    for text, refused in (
        ('no settings', True),
        ('[default]\nproject = x\n', True),
        ('[default]\nmode = offline\n', False),
    ):
        settings.write_text(text)
        assert is_refused() is refused
    settings.unlink()
    for name, value in (('WANDB_MODE', 'offline'), ('WANDB_API_KEY', 'x' * 40)):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not is_refused()


def test_every_tracker_of_the_config_can_be_opened(tmp_path):
    run = TrackedRun(tmp_path, {}, 0)
    assert [*open_trackers(TRACKERS, run, print)._trackers] == [*TRACKERS]
    packages = [name for name in TRACKERS if name not in OWN]
    assert [make_tracker(name)(run, 'id').__module__.rpartition('.')[2] for name in packages] == [
        f'{name}_tracker' for name in packages
    ]


def test_an_entry_of_a_seed_is_named_after_all_seeds(tmp_path):
    names = [TrackedRun(tmp_path / 'sst2' / name, {}, 0).name for name in ('seed_3', 'long')]
    assert names == ['sst2-seed_3', 'long']


def test_nothing_is_imported_for_trackers_that_are_not_asked_for(tmp_path):
    assert open_trackers((), TrackedRun(tmp_path, {}, 0), print)._trackers == {}
    program = 'import sys, efficient_attention.workdir.trackers.all_trackers; print(*sys.modules)'
    loaded = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True).stdout.split()
    assert not {'wandb', 'trackio', 'mlflow', 'tensorboardX', 'jax'} & {*loaded}

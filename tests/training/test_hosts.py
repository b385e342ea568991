"""A run of two processes: the same numbers as one process with two devices, and a stop that both agree on."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from absl import flags

from efficient_attention.errors import InputError
from efficient_attention.training import hosts
from efficient_attention.training.hosts import join_hosts
from efficient_attention.training.metrics_log import read_metrics
from tests.training.tiny_fine_tuning import write_files
from tests.training.tiny_run import write_corpus

ROOT = Path(__file__).resolve().parent.parent.parent
Config = Callable[[Path], list[str]]  # writes what a run reads into a folder; its arguments
RATES = {'steps_per_second', 'tokens_per_second', 'waiting_share'}


def pretraining(folder: Path) -> list[str]:
    data = [f'--config.data.source={write_corpus(folder)}', f'--config.data.cache={folder / "cache"}']
    return ['--config=tests/training/tiny_run.py', *data]


def fine_tuning(folder: Path) -> list[str]:
    write_files(folder)
    files = [f'--config.examples.{split}={folder / split}.tsv' for split in ('train', 'dev')]
    return ['--config=tests/training/tiny_fine_tuning.py', f'--config.data.tokenizer={folder / "vocab.txt"}', *files]


def launch(
    folder: Path, workdir: Path, *arguments: str, devices: int = 1, config: Config = pretraining
) -> subprocess.Popen:
    command = [sys.executable, 'train.py', *config(folder), f'--workdir={workdir}']
    environment = os.environ | {
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
        'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
    }
    return subprocess.Popen([*command, *arguments], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def launch_pair(folder: Path, workdir: Path, *arguments: str, config: Config = pretraining) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(('localhost', 0))
        address = f'localhost:{probe.getsockname()[1]}'
    extra = ['--distributed', f'--coordinator={address}', '--process_count=2']
    return [launch(folder, workdir, *arguments, *extra, f'--process_id={number}', config=config) for number in range(2)]


def finish(process: subprocess.Popen) -> str:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return err


@pytest.mark.parametrize('config', [pretraining, fine_tuning])
def test_two_processes_train_like_one_with_two_devices(tmp_path: Path, config: Config):
    """The held-out numbers too: of fine-tuning from the outputs of all rows, whichever process has them."""
    arguments = '--config.train.steps=4', '--config.train.log_every_steps=1'
    finish(launch(tmp_path, tmp_path / 'one', *arguments, devices=2, config=config))
    for process in launch_pair(tmp_path, tmp_path / 'two', *arguments, config=config):
        finish(process)
    one, two = read_metrics(tmp_path / 'one'), read_metrics(tmp_path / 'two')
    assert [(line['step'], line['split']) for line in one] == [(line['step'], line['split']) for line in two]
    for line, other in zip(one, two, strict=True):
        for name in line.keys() - RATES - {'split'}:
            assert other[name] == pytest.approx(line[name], rel=1e-5), (line['step'], name)


def test_sigterm_to_one_process_stops_both_after_the_same_step(tmp_path: Path):
    pair = launch_pair(tmp_path, tmp_path / 'run', '--config.train.steps=1000000')
    for line in pair[0].stderr:
        if line.startswith('step 8/'):
            break
    pair[1].send_signal(signal.SIGTERM)
    said = [finish(process) for process in pair]
    (step,) = re.findall(r'stopped after step (\d+), which is saved', said[0])
    assert (tmp_path / 'run' / 'checkpoints' / step).is_dir()


def test_what_jax_cannot_find_out_is_named():
    with pytest.raises(InputError, match='--distributed: .*--coordinator, --process_count, --process_id'):
        join_hosts(None, None, None)


def test_a_flag_for_hosts_without_distributed_is_refused(monkeypatch: pytest.MonkeyPatch):
    values = flags.FlagValues()
    monkeypatch.setattr(hosts.flags, 'FLAGS', values)
    for name, kind in (('coordinator', flags.DEFINE_string), ('process_count', flags.DEFINE_integer)):
        kind(name, None, '', flag_values=values)
    flags.DEFINE_integer('process_id', None, '', flag_values=values)
    flags.DEFINE_bool('distributed', False, '', flag_values=values)
    values(['program', '--process_count=2'])
    with pytest.raises(InputError, match='--process_count needs --distributed'):
        hosts.join_hosts_of_flags()

"""Tests that evaluations print and store samples, equally in a run that was resumed, and show them in the report."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.evaluation_samples import Sampler
from efficient_attention.training.loop import Trainer, train
from efficient_attention.workdir.samples_log import read_samples
from tests.training.shared_programs import shared_programs  # noqa: F401
from tests.training.tiny_run import tiny_config

pytestmark = [pytest.mark.lenient_promotion, pytest.mark.usefixtures('shared_programs'), pytest.mark.devices(2)]
FIELDS = {
    'train.steps': 2,
    'eval.samples': 2,
    'eval.every_steps': 2,
    'checkpoint.every_steps': 2,
    'train.log_every_steps': 2,
}
FIELDS |= {'optimizer.schedule': 'constant', 'optimizer.warmup_steps': 1}


def test_an_evaluation_prints_stores_and_reports_samples(tmp_path: Path, capfd):
    train(tiny_config(tmp_path, **FIELDS), tmp_path / 'run')
    [line] = read_samples(tmp_path / 'run')
    assert (line['step'], line['kind'], len(line['samples'])) == (2, 'filled masks', 2)
    assert 'step 2 filled masks: ' in capfd.readouterr().err
    assert 'Step 2: filled masks' in (tmp_path / 'run' / 'report.html').read_text(encoding='utf-8')


def test_a_run_with_sharded_parameters_has_samples_too(tmp_path: Path, capfd):
    train(tiny_config(tmp_path, **FIELDS, **{'mesh.fsdp': 2}), tmp_path / 'run')
    assert 'step 2 filled masks: ' in capfd.readouterr().err
    [line] = read_samples(tmp_path / 'run')
    assert len(line['samples']) == 2


@pytest.mark.slow
def test_a_resumed_run_has_the_samples_of_an_unbroken_one(tmp_path: Path):
    config = tiny_config(tmp_path, **FIELDS | {'train.steps': 4})
    train(config, tmp_path / 'unbroken')
    train(tiny_config(tmp_path, **FIELDS), tmp_path / 'stopped')
    train(config, tmp_path / 'stopped')
    samples = read_samples(tmp_path / 'unbroken')
    assert [line['step'] for line in samples] == [2, 4]
    assert read_samples(tmp_path / 'stopped') == samples


@pytest.mark.parametrize(
    'fault, reason',
    [
        (InputError('cannot be decoded'), 'cannot be decoded'),
        (ValueError('bad shape'), 'bad shape'),
        (StopIteration(), 'StopIteration'),
        (KeyError('text'), 'text'),
        ([], 'there is no held-out text'),
    ],
)
def test_a_fault_turns_the_samples_off_and_never_ends_the_run(tmp_path: Path, fault: Exception | list, reason: str):
    def fail(_: object) -> list:
        if isinstance(fault, Exception):
            raise fault
        return fault

    said: list[str] = []
    trainer = SimpleNamespace(
        sampler=Sampler('targets', fail),
        log=SimpleNamespace(workdir=tmp_path),
        progress=SimpleNamespace(print_line=said.append),
    )
    Trainer.make_samples(trainer, 2, {})
    Trainer.make_samples(trainer, 4, {})
    assert said == [f'step 2: no more samples of outputs (eval.samples): {reason}']
    trainer.sampler = Sampler('targets', lambda _: [{'input': 'a\n b', 'output': 'c' * 200}])
    Trainer.make_samples(trainer, 6, {})
    assert said[1] == f'step 6 targets: a b -> {"c" * 100}'
    assert [line['step'] for line in read_samples(tmp_path)] == [6]

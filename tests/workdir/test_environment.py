"""Tests the description of the machine that a workdir keeps."""

import json

import jax
import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.environment import (
    describe_environment,
    describe_machine,
    processor,
    read_environment,
    write_environment,
)


def test_devices_and_versions_are_named():
    found = describe_environment()
    assert found['devices'] == f'{jax.device_count()} x {jax.devices()[0].device_kind}'
    assert found['jax'] == jax.__version__
    assert {'python', 'backend', 'processes', 'cpu_cores', 'system', 'optax'} <= set(found)


def test_what_is_written_is_read(tmp_path):
    assert read_environment(tmp_path) == {}
    write_environment(tmp_path / 'run')
    assert read_environment(tmp_path / 'run') == describe_environment()


def test_a_machine_is_its_processor_or_its_accelerators(tmp_path):
    write_environment(tmp_path / 'a')
    here = f'{processor()}, jax {jax.__version__}'
    assert processor() and describe_machine([tmp_path / 'a', tmp_path / 'absent', tmp_path / 'a']) == here
    (tmp_path / 'b').mkdir()
    gpu = {'backend': 'gpu', 'devices': '1 x NVIDIA H100', 'processor': 'x', 'jax': '1'}
    (tmp_path / 'b/environment.json').write_text(json.dumps(gpu), encoding='utf-8')
    assert describe_machine([tmp_path / 'a', tmp_path / 'b']) == f'{here}; 1 x NVIDIA H100, jax 1'
    assert describe_machine([tmp_path / 'absent']) == ''
    (tmp_path / 'cpuinfo').write_text('processor\t: 0\nmodel name\t: A 7\n', encoding='utf-8')
    assert processor(tmp_path / 'cpuinfo') == 'A 7'


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / 'environment.json').write_text('{', encoding='utf-8')
    with pytest.raises(InputError, match=r'environment\.json is not JSON: '):
        read_environment(tmp_path)


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr('jax.process_index', lambda: 1)
    write_environment(tmp_path)
    assert list(tmp_path.iterdir()) == []

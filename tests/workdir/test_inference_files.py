"""Tests that inference names a tokenizer, vocabulary or config that has changed since the checkpoint was saved."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir.inference_files import (
    FILES,
    NAMES,
    check_inference_files,
    describe_changed_file,
    file_hashes,
)

EXAMPLES = ExamplesConfig(problem='classification', labels=('bad', 'good'), train='a.tsv')
CONFIG = RunConfig(task='fine_tuning', examples=EXAMPLES)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_text(f'{{"{name}": 1}}')
    return tmp_path


def record_of(workdir: Path, config: RunConfig = CONFIG) -> dict[str, Any]:
    return {'fingerprint': {'config': json.loads(json.dumps(to_dict(config)))}, FILES: file_hashes(workdir)}


@pytest.mark.parametrize('name', NAMES)
def test_a_file_that_differs_is_named(workdir: Path, name: str):
    record = record_of(workdir)
    check_inference_files(workdir, CONFIG, 7, record)
    (workdir / name).write_text(f'{{"{name}": 2}}')
    line = f'^{workdir} is damaged: {name} is not what was written; restore the file of step 7, or repeat the train'
    with pytest.raises(InputError, match=line):
        check_inference_files(workdir, CONFIG, 7, record)
    (workdir / name).unlink()
    assert describe_changed_file(workdir, record) == f'{name} is missing'
    record = record_of(workdir)
    (workdir / name).write_text('{}')
    assert describe_changed_file(workdir, record) == f'{name} is not of this run'


def test_a_checkpoint_of_before_says_nothing(workdir: Path):
    check_inference_files(workdir, CONFIG, 7, {})
    check_inference_files(workdir, CONFIG, 7, {'fingerprint': {}})


def test_a_label_that_was_changed_in_the_config_is_named_and_a_moved_file_is_not(workdir: Path):
    record = record_of(workdir)
    moved = dataclasses.replace(CONFIG, examples=dataclasses.replace(EXAMPLES, train='b.tsv'))
    check_inference_files(workdir, moved, 7, record)
    swapped = dataclasses.replace(CONFIG, examples=dataclasses.replace(EXAMPLES, labels=('good', 'bad')))
    line = rf'^{workdir}: config.json was changed: checkpoint step 7 was made with config.examples.labels = \["bad"'
    with pytest.raises(InputError, match=line):
        check_inference_files(workdir, swapped, 7, record)


def test_a_file_that_cannot_be_read_is_named(workdir: Path):
    (workdir / NAMES[0]).unlink()
    (workdir / NAMES[0]).mkdir()
    with pytest.raises(InputError, match=rf'{NAMES[0]}: cannot be read \(Is a directory\)$'):
        file_hashes(workdir)

"""Tests that exports are complete or absent, and that their checksums are compared when they are opened."""

import errno
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from efficient_attention.errors import InputError, RunError
from efficient_attention.interop import huggingface_export, safetensors_files
from efficient_attention.interop.export_checksums import is_unchecked_file, verify_export_checksums
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.workdir.checksums import has_any_checksums
from tests.interop.folders import FIXTURES
from tests.workdir.test_checksums import delete, flip, swap, truncate, zero

SEAL = 'seal-0-of-1.sha256'


@pytest.fixture(scope='module')
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('export') / 'model'
    save_pretrained(folder, open_pretrained(FIXTURES / 'albert_1'))
    return folder


def test_sha256sum_reads_the_checksums(exported: Path):
    names = {line.split('  ')[1] for line in (exported / SEAL).read_text().splitlines() if not line.startswith('#')}
    assert names == {path.name for path in exported.iterdir()} - {SEAL} == {'config.json', 'model.safetensors'}
    if shutil.which('sha256sum'):
        subprocess.run(['sha256sum', '--check', '--strict', '--quiet', SEAL], cwd=exported, check=True)


@pytest.mark.parametrize('kind', [flip, truncate, zero, delete, swap])
def test_every_damage_is_found_before_anything_is_read(exported: Path, tmp_path: Path, kind: Callable):
    for seed in range(20):
        broken = tmp_path / str(seed)
        shutil.copytree(exported, broken)
        kind(broken, random.Random(seed))
        if has_any_checksums(broken):  # A folder without checksums is opened unchecked.
            with pytest.raises(
                InputError, match=f'^{broken} is damaged: .*; delete the folder and export it again'
            ) as caught:
                open_pretrained(broken)
            assert '\n' not in str(caught.value)


def test_the_file_is_named(exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / 'x')
    config = tmp_path / 'x' / 'config.json'
    config.write_text(config.read_text().replace('\n', ' \n', 1))
    with pytest.raises(
        InputError, match='x is damaged: config.json is not what was written; delete the folder and export'
    ):
        open_pretrained(tmp_path / 'x')
    (tmp_path / 'x' / SEAL).unlink()
    open_pretrained(tmp_path / 'x')


@pytest.mark.parametrize('name', ['README.md', '.gitattributes', '.git', 'LICENSE.txt', 'curve.png'])
def test_what_nobody_reads_may_be_added(exported: Path, tmp_path: Path, name: str):
    shutil.copytree(exported, tmp_path / 'x')
    if name == '.git':
        (tmp_path / 'x' / name).mkdir()
        (tmp_path / 'x' / name / 'config.json').symlink_to('/etc/passwd')
    else:
        (tmp_path / 'x' / name).write_text('added')
    assert is_unchecked_file(name) and open_pretrained(tmp_path / 'x').family == 'albert'


@pytest.mark.parametrize(
    'name', ['tokenizer.json', 'vocab.txt', 'model.safetensors.index.json', 'x.safetensors', 'a.model']
)
def test_what_would_be_read_may_not(exported: Path, tmp_path: Path, name: str):
    shutil.copytree(exported, tmp_path / 'x')
    (tmp_path / 'x' / name).write_text('added')
    with pytest.raises(InputError, match=f'x is damaged: {name} is not in its checksums'):
        verify_export_checksums(tmp_path / 'x')


def test_a_cache_of_links_is_compared_by_what_they_lead_to(exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / 'blobs')
    (tmp_path / 'snapshot').mkdir()
    for path in (tmp_path / 'blobs').iterdir():
        (tmp_path / 'snapshot' / path.name).symlink_to(path)
    verify_export_checksums(tmp_path / 'snapshot')
    flip_first(tmp_path / 'blobs' / 'model.safetensors')
    with pytest.raises(InputError, match='snapshot is damaged: model.safetensors is not what was written'):
        verify_export_checksums(tmp_path / 'snapshot')


def flip_first(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, 'No space left on device')


def no_space_in_the_library(*_: object, **__: object) -> None:
    raise SafetensorError('Error while serializing: I/O error: No space left on device (os error 28)')


@pytest.mark.parametrize(
    ('module', 'name', 'failure'),
    [
        (safetensors_files, 'save_file', no_space_in_the_library),
        (huggingface_export, 'copy_tokenizer', no_space),
        (huggingface_export, 'write_export_checksums', no_space),
    ],
)
def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch, module, name: str, failure: Callable):
    source = open_pretrained(FIXTURES / 'albert_1')
    monkeypatch.setattr(module, name, failure)
    with pytest.raises(RunError, match=f'^{tmp_path}/out: cannot be written .No space left on device.$'):
        save_pretrained(tmp_path / 'out', source)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten(exported: Path):
    before = (exported / SEAL).read_bytes()
    with pytest.raises(InputError, match='model: cannot be written .Directory not empty'):
        save_pretrained(exported, open_pretrained(FIXTURES / 'bert_1'))
    assert (exported / SEAL).read_bytes() == before and open_pretrained(exported).family == 'albert'

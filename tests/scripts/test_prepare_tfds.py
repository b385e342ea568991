"""Tests of prepare_tfds.py: bad flags in one line; with `make tfds`, a dataset of our own that is read back."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.data.sources.tfds import tfds_documents

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / '.venv-tfds' / 'bin' / 'python'
SCRIPT = 'scripts/prepare_tfds.py'
NOTES = 'scripts/make_fixtures/film_notes.py'
needs_tfds = pytest.mark.skipif(not PYTHON.exists(), reason='needs make tfds')


@pytest.mark.parametrize(
    'arguments, fault',
    [
        ([], 'no name of a dataset; write: make tfds NAME=glue/sst2'),
        (['--name=glue/sst2', '--format=csv'], 'flag --format=csv: it must be one of array_record|tfrecord'),
        (['--name=glue/sst2'], f'{sys.executable} has no TensorFlow; write: make tfds NAME=glue/sst2'),
    ],
)
def test_bad_flags_and_another_environment(arguments: list[str], fault: str):
    assert error_of(sys.executable, arguments) == f'error: {fault}'


def error_of(python: str | Path, arguments: list[str]) -> str:
    """Returns the error line of a run of the script that is refused."""
    ended = subprocess.run([python, SCRIPT, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, ''), ended.stderr
    return ended.stderr.splitlines()[-1]  # TensorFlow logs lines before.


def test_a_dataset_that_google_cloud_has_is_prepared_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """TFDS refuses a folder together with `try_gcs`, if its public bucket has the dataset."""
    import tensorflow_datasets as tfds

    class Builder:  # stands in for TFDS's builders, which need TensorFlow
        builder_configs = ('sst2',)

        def __init__(self, **options: object) -> None:
            self.options = options

        def download_and_prepare(self, download_dir: Path) -> None:
            self.downloads = download_dir

    monkeypatch.setattr(tfds.core.utils.gcs_utils, 'is_dataset_on_gcs', lambda _: True)
    monkeypatch.setattr(sys.modules['tensorflow_datasets.core.load'], 'builder_cls', lambda _: Builder)
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
    builder = runpy.run_path(str(ROOT / SCRIPT))['prepare']('glue/sst2', tmp_path, 'array_record')
    assert builder.options['data_dir'] == tmp_path and builder.downloads == tmp_path / 'downloads'


@pytest.mark.slow
@needs_tfds
@pytest.mark.parametrize(
    'name, fault',
    [
        ('imdb_review', 'imdb_review: TFDS has no such dataset; nearest names: imdb_reviews'),
        ('no/file.py', 'no/file.py: no such file'),
        (SCRIPT, f'{SCRIPT}: it defines 0 subclasses of GeneratorBasedBuilder; one is needed'),
    ],
)
def test_names_that_lead_nowhere(name: str, fault: str, tmp_path: Path):
    assert error_of(PYTHON, [f'--name={name}', f'--folder={tmp_path}']).startswith(f'error: {fault}')


@pytest.mark.slow  # TensorFlow takes long to start
@needs_tfds
def test_a_dataset_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    command = [PYTHON, SCRIPT, f'--name={NOTES}', f'--folder={tmp_path}', '--format=tfrecord']
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith(f'{tmp_path}/film_notes/1.0.0: rows: train 5, test 2; features: ')
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
    assert len(list(tfds_documents('film_notes', 'train', ''))) == 5

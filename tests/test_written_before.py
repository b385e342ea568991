"""What an earlier version wrote is still read, and gives the numbers and the texts that it gave then.

tests/written_before/README.md says what there is and how it was made.
"""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import efficient_attention as ea
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inference.generate import TextGenerator
from efficient_attention.inference.sampling import Sampling
from efficient_attention.training.loop import train
from efficient_attention.workdir.config_file import read_config
from tests.tolerances import assert_close

# Optax multiplies Python floats with int32 counts.
pytestmark = pytest.mark.lenient_promotion

FOLDER = Path(__file__).with_name('written_before')
EXPECTED = json.loads((FOLDER / 'expected.json').read_text(encoding='utf-8'))


@pytest.fixture
def written(tmp_path, monkeypatch) -> Path:
    """The files, in the working folder: the paths in their configs are relative to it."""
    with tarfile.open(FOLDER / 'written.tar.gz') as archive:
        archive.extractall(tmp_path, filter='data')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def held_out(workdir: Path) -> dict[str, Any]:
    """What the run measured at its end."""
    last = json.loads((workdir / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()[-1])
    assert (last.pop('split'), last['step']) == ('held_out', 8)
    return last


def test_a_workdir_is_evaluated(written):
    assert_close(evaluate_workdir(Path('encoder')), held_out(written / 'encoder'))


def test_training_goes_on_from_a_checkpoint_as_it_did_then(written):
    workdir, expected = Path('encoder'), held_out(written / 'encoder')
    shutil.rmtree(workdir / 'checkpoints' / '8')
    found = train(read_config(workdir), workdir)
    del expected['step']
    assert_close(found, expected)
    lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()]
    assert [line['step'] for line in lines if line['split'] == 'train'] == [2, 4, 6, 8]
    assert (workdir / 'checkpoints' / '8').is_dir()


@pytest.mark.usefixtures('written')
def test_an_exported_folder_fills_masks():
    found = ea.pipeline('fill-mask', 'exported', top=3)(EXPECTED['text'])
    assert [[one['token'] for one in mask] for mask in found] == [
        [one['token'] for one in mask] for mask in EXPECTED['filled']
    ]
    scores = [[one['score'] for one in mask] for mask in found]
    assert_close(scores, [[one['score'] for one in mask] for mask in EXPECTED['filled']])


@pytest.mark.usefixtures('written')
def test_a_language_model_goes_on_with_a_text():
    generator = TextGenerator(Path('decoder'))
    for sampling, seed, text in ((Sampling(temperature=0.0), 0, 'greedy'), (Sampling(), 3, 'drawn')):
        parts = generator(EXPECTED['prompt'], max_tokens=40, sampling=sampling, seed=seed)
        assert ''.join(parts) == EXPECTED[text]

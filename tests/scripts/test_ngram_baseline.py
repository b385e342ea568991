"""Tests the n-gram baseline of a run's text through its command."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.workdir.config_file import claim_workdir
from tests.scripts.called import refusal_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = 'Higher and higher the kite went up; and the wind went with it. ' * 40


def run(*arguments):
    command = [sys.executable, str(ROOT / 'scripts' / 'ngram_baseline.py'), *arguments]
    environment = os.environ | {'PYTHONPATH': str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def make_workdir(folder: Path) -> Path:
    (folder / 'text.txt').write_text(TEXT)
    data = {
        'source': f'text:{folder}/text.txt',
        'units': 'characters',
        'splitting': 'end',
        'held_out': 0.1,
        'cache': str(folder / 'cache'),
    }
    model = {'attention': 'causal', 'token_types': 0}
    claim_workdir(folder / 'run', from_dict({'task': 'language_modelling', 'data': data, 'model': model}, RunConfig))
    return folder / 'run'


def test_more_context_scores_better_on_the_runs_own_split(tmp_path):
    result = run('--workdir', str(make_workdir(tmp_path)), '--order', '4')
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    bits = list(report['bits_per_token'].values())
    assert list(report['bits_per_token']) == ['1-gram', '2-gram', '3-gram', '4-gram']
    assert bits == sorted(bits, reverse=True) and 0 < bits[-1] < 1 and bits[0] < report['uniform']
    assert report['uniform'] == math.log2(len(set(TEXT)) + 1)  # the vocabulary includes the unknown character
    assert report['predicted_tokens'] + 1 + report['train_tokens'] == len(TEXT)
    assert report['units'] == 'characters' and report['split'] == 'held_out'


def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capfd):
    claim_workdir(tmp_path / 'pretraining', from_dict({}, RunConfig))
    for arguments, line in [
        (('--workdir', str(tmp_path / 'none')), 'none'),
        (('--workdir', str(tmp_path / 'pretraining')), 'is a run of the task pretraining; n-grams need'),
        (('--workdir', str(make_workdir(tmp_path)), '--split', 'test'), 'the test split has 0 tokens'),
        (('--workdir', 'x', '--order', '0'), 'must be at least 1'),
    ]:
        said = refusal_of('ngram_baseline.py', *arguments, monkeypatch=monkeypatch, capfd=capfd).splitlines()[-1]
        assert said.startswith('error: ') and line in said

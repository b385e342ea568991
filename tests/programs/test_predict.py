"""Tests predictions from the command line: fields of all types, the written files, and one line for bad input."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.programs.predict import parse_field
from tests.inference.tiny_checkpoint import LABELS, random_text, write_checkpoint

SCRIPT = Path(__file__).resolve().parent.parent.parent / 'scripts' / 'predict.py'


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('text=review', ('text', 'review')),
        ('stride=12', ('stride', 12)),
        ('has_no_answer=True', ('has_no_answer', True)),
        ('labels=a,b', ('labels', ('a', 'b'))),
        ('labels=not good, good', ('labels', ('not good', 'good'))),
    ],
)
def test_fields_have_their_types(text: str, expected: tuple):
    assert parse_field(text) == expected


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('stride=a', "--set 'stride=a': stride is a whole number"),
        ('has_no_answer=1', "--set 'has_no_answer=1': has_no_answer is True or False"),
        ('buckets=8,16', "--set 'buckets=8,16': write FIELD=VALUE with one of problem, "),
        ('labels', "--set 'labels': write FIELD=VALUE with one of problem, "),
    ],
)
def test_bad_fields_are_named(text: str, message: str):
    with pytest.raises(InputError) as raised:
        parse_field(text)
    assert str(raised.value).startswith(message)


def test_labels_may_be_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path):
    model = write_checkpoint(tmp_path / 'made', 'classification', is_named=False)
    rows = tmp_path / 'rows.jsonl'
    rows.write_text(''.join(f'{json.dumps({"text": random_text(4, seed)})}\n' for seed in range(3)))
    found = []
    for number, words in enumerate(([], ['--set', f'labels={",".join(LABELS["classification"])}'])):
        options = ['--model', str(model), '--output', str(tmp_path / f'{number}'), '--files', str(rows)]
        monkeypatch.setattr(sys, 'argv', ['predict.py', *options, *words])
        runpy.run_path(str(SCRIPT), run_name='__main__')
        summary = json.loads(capfd.readouterr().out.splitlines()[-1])
        assert list(summary) == ['files']  # neither notes nor, without labels, metrics
        [path] = summary['files']
        found.append([json.loads(line)['label'] for line in Path(path).read_text().splitlines()])
    assert found[0] == [f'LABEL_{LABELS["classification"].index(label)}' for label in found[1]]

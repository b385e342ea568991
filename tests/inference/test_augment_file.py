"""Tests of data augmentation: each row of a training file comes before its new rows, in the file's own format."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.labelled_text import read_labelled
from efficient_attention.errors import InputError
from efficient_attention.inference.augment_file import augment_file
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.inference.word_replacement import WordReplacer
from tests.inference.tiny_checkpoint import write_checkpoint

TEXTS = ['the king sleeps', 'a small dog , runs', 'the 3 .']  # The last text has no replaceable word.
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    'sst2.tsv': ('sentence\tlabel\n' + ''.join(f'{text}\t1\n' for text in TEXTS), {'format': 'glue', 'name': 'sst2'}),
    'cola.tsv': (''.join(f'x\t1\t\t{text}\n' for text in TEXTS), {'format': 'glue', 'name': 'cola'}),
    'stsb.tsv': (
        'index\tsentence1\tsentence2\tscore\n'
        + ''.join(f'{row}\t{text}\tking\t4.5\n' for row, text in enumerate(TEXTS)),
        {'format': 'glue', 'name': 'stsb'},
    ),
    'mine.csv': ('id,review,label\n' + ''.join(f'7,"{text}",good\n' for text in TEXTS), {'text': 'review'}),
    'mine.jsonl': (
        ''.join(json.dumps({'text': text, 'label': 1, 'more': [2]}) + '\n' for text in TEXTS),
        {},
    ),
}


@pytest.fixture(scope='module')
def replacer(tmp_path_factory: pytest.TempPathFactory) -> WordReplacer:
    return WordReplacer(MaskFiller(write_checkpoint(tmp_path_factory.mktemp('filler'), 'fill_mask')))


def config_of(fields: dict[str, Any], path: Path) -> ExamplesConfig:
    problem = 'regression' if fields.get('name') == 'stsb' else 'classification'
    return ExamplesConfig(**({'problem': problem, 'train': str(path)} | fields))


@pytest.mark.parametrize('name', FILES)
def test_new_rows_stand_behind_their_own_and_keep_its_other_columns(tmp_path: Path, replacer: WordReplacer, name: str):
    text, fields = FILES[name]
    source, output = tmp_path / name, tmp_path / f'more.{name.rpartition(".")[2]}'
    source.write_text(text, encoding='utf-8')
    found = augment_file(source, output, replacer, config_of(fields, source), copies=4)
    before = list(read_labelled(config_of(fields, source), 'train', []))
    after = list(read_labelled(config_of(fields, output), 'train', []))
    assert found == {'rows': 3, 'written': len(after), 'notes': []} and len(after) > 6
    assert after[0].texts == before[0].texts and after[-1].texts[0] == TEXTS[-1]
    assert {row.label for row in after} == {row.label for row in before}
    assert len({row.texts for row in after}) == len(after)
    originals = [row.texts for row in before]
    assert [row.texts for row in after if row.texts in originals] == originals
    if name.endswith('jsonl'):
        assert all(json.loads(line)['more'] == [2] for line in output.read_text().splitlines())
    if name.endswith('csv'):
        assert {row['id'] for row in csv.DictReader(output.read_text().splitlines())} == {'7'}
    again = tmp_path / f'again.{name.rpartition(".")[2]}'
    augment_file(source, again, replacer, config_of(fields, source), copies=4)
    assert again.read_bytes() == output.read_bytes()


@pytest.mark.parametrize(
    'output, options, message',
    [
        ('more.csv', {}, 'must end in .tsv, as'),
        ('rows.tsv', {}, 'there is something already'),
        ('more.tsv', {'copies': 0}, 'copies is 0'),
        ('more.tsv', {'share': 1.5}, 'share is 1.5'),
    ],
)
def test_what_does_not_serve_is_one_line(
    tmp_path: Path, replacer: WordReplacer, output: str, options: dict[str, Any], message: str
):
    text, fields = FILES['sst2.tsv']
    (tmp_path / 'rows.tsv').write_text(text)
    with pytest.raises(InputError, match=message):
        augment_file(tmp_path / 'rows.tsv', tmp_path / output, replacer, config_of(fields, tmp_path), **options)
    assert not (tmp_path / 'more.tsv').exists()


def test_a_bad_row_leaves_nothing_behind(tmp_path: Path, replacer: WordReplacer):
    (tmp_path / 'rows.tsv').write_text('sentence\tlabel\nthe king\t1\nthe dog\n')
    with pytest.raises(InputError, match='line 3: 1 fields where there are 2 columns'):
        augment_file(tmp_path / 'rows.tsv', tmp_path / 'more.tsv', replacer, config_of(FILES['sst2.tsv'][1], tmp_path))
    assert not (tmp_path / 'more.tsv').exists()


@pytest.mark.parametrize('name, text', [('sst2.tsv', 'sentence\tlabel\n'), ('cola.tsv', '')])
def test_a_file_without_rows_is_named(tmp_path: Path, replacer: WordReplacer, name: str, text: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=rf'{name}: (it has no rows|.*empty)'):
        augment_file(tmp_path / name, tmp_path / 'more.tsv', replacer, config_of(FILES[name][1], tmp_path))
    assert not (tmp_path / 'more.tsv').exists()

"""Tests that the identity of a data split depends on its content and rules, not on its place."""

import dataclasses
from pathlib import Path

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.arena.same_document_passages import SameDocumentPassages
from efficient_attention.experiments.grid_configs import SplitHashCache, split_hash


def write_documents(folder: Path, word: str) -> str:
    folder.mkdir()
    for number in range(3):
        (folder / f'{number}.txt').write_text(f'{word} {number} ' * 20)
    return f'passages:rows=4:length=30:source=text:{folder}/*.txt'


def arena(train: str) -> ExamplesConfig:
    return ExamplesConfig('classification', 'arena', train=train)


def test_the_same_documents_elsewhere_are_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here, there, other = (
        arena(write_documents(tmp_path / name, word)) for name, word in (('a', 'tree'), ('b', 'tree'), ('c', 'house'))
    )
    before = split_hash(here, 'train')
    assert len(before) == 16 and split_hash(there, 'train') == before != split_hash(other, 'train')
    assert split_hash(dataclasses.replace(here, test=here.train), 'test') != before
    assert split_hash(arena(here.train.replace('rows=4', 'rows=5')), 'train') != before
    monkeypatch.setattr(SameDocumentPassages, 'rules', SameDocumentPassages.rules + 1)
    assert split_hash(here, 'train') != before


def test_rows_of_files_and_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / 'rows.csv'
    path.write_text('text,label\na,1\n')
    fields = {'problem': 'classification', 'train': str(path), 'labels': None}
    found = SplitHashCache().split_hashes(fields)
    assert list(found) == ['train']
    path.write_text('text,label\na,0\n')
    identities = SplitHashCache()
    assert identities.split_hashes(fields)['train'] != found['train']
    # each identity is computed only once
    monkeypatch.setattr('efficient_attention.experiments.grid_configs.split_hash', None)
    assert identities.split_hashes(dict(fields)) == identities.split_hashes(fields)
    monkeypatch.undo()
    path.unlink()
    assert (
        SplitHashCache().split_hashes(fields)
        == {}
        == SplitHashCache().split_hashes({'format': 'unknown', 'train': 'x'})
    )

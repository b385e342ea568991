"""Every set that is read says so, and is of its folder; what is in it:
test_imdb_cifar10_aan_readers.py and test_listops_pathfinder_readers.py.
"""

from pathlib import Path

import pytest

from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.file_datasets import FileDataset


@pytest.mark.parametrize('kind', ['imdb', 'cifar10', 'aan', 'listops', 'pathfinder'])
def test_sets_of_files(kind: str):
    found = open_arena_dataset(f'{kind}:folder=~/rows', 'x')
    assert isinstance(found, FileDataset) and found.is_read and found.kind == kind
    assert found.folder == Path('~/rows').expanduser()
    assert not open_arena_dataset('recall:rows=1:length=9:pairs=1', 'x').is_read

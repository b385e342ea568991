"""Every set that is read says so, and is of its folder; what is in it: test_folders.py and test_released.py."""

from pathlib import Path

import pytest

from efficient_attention.data.arena.arena_set import open_set
from efficient_attention.data.arena.file_sets import FileSet


@pytest.mark.parametrize('kind', ['imdb', 'cifar10', 'aan', 'listops', 'pathfinder'])
def test_sets_of_files(kind: str):
    found = open_set(f'{kind}:folder=~/rows', 'x')
    assert isinstance(found, FileSet) and found.is_read and found.kind == kind
    assert found.folder == Path('~/rows').expanduser()
    assert not open_set('recall:rows=1:length=9:pairs=1', 'x').is_read

"""Tests that a compact folder is recognised by its type, and that a missing key is named."""

from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.interop.compact_import import MODEL_TYPE, VERSION, is_compact_folder, read_compact_folder


def test_a_folder_is_known_by_its_type():
    assert (
        is_compact_folder({'model_type': MODEL_TYPE})
        and not is_compact_folder({'model_type': 'bert'})
        and not is_compact_folder({})
    )


def test_a_key_that_is_missing_is_named():
    with pytest.raises(InputError, match='config.json: labels is None; it must be a list'):
        read_compact_folder(Path('a'), {'model_type': MODEL_TYPE, 'version': VERSION})

"""Tests of tensor files: every float type, shards, and one line for damaged or missing files and for pickles."""

import json
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from efficient_attention.errors import InputError
from efficient_attention.interop.safetensors_files import SafetensorsFolder, check_tensor_files, write_tensors

NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


def index(folder: Path, **files: str) -> None:
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': files}))


@pytest.mark.parametrize('dtype', [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_all_floats_become_float32(tmp_path: Path, dtype):
    save_file({'a': NUMBERS.astype(dtype)}, tmp_path / 'model.safetensors')
    read = SafetensorsFolder(tmp_path).read('a')
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, NUMBERS)


def test_shards_are_one_folder(tmp_path: Path):
    for name in 'ab':
        save_file({name: NUMBERS}, tmp_path / f'{name}.safetensors')
    index(tmp_path, a='a.safetensors', b='b.safetensors')
    folder = SafetensorsFolder(tmp_path)
    assert folder.shapes == {'a': (2, 3), 'b': (2, 3)}
    np.testing.assert_array_equal(folder.read('b'), NUMBERS)


def test_a_single_file_counts_more_than_shards_beside_it(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    save_file({'a': NUMBERS}, tmp_path / 'model.safetensors')
    save_file({'a': NUMBERS + 1}, tmp_path / 'a.safetensors')
    index(tmp_path, a='a.safetensors')
    check_tensor_files(tmp_path)
    expected = f'{tmp_path}: model.safetensors is read, and model.safetensors.index.json is ignored'
    assert [record.getMessage() for record in caplog.records] == [expected]
    np.testing.assert_array_equal(SafetensorsFolder(tmp_path).read('a'), NUMBERS)


def test_what_is_written_is_read_and_says_what_made_it(tmp_path: Path):
    write_tensors(tmp_path, {'a': NUMBERS.T})  # A transposed array is not contiguous.
    np.testing.assert_array_equal(load_file(tmp_path / 'model.safetensors')['a'], NUMBERS.T)
    assert b'"format":"pt"' in (tmp_path / 'model.safetensors').read_bytes()[:200]


def test_numbers_that_are_no_floats_are_refused(tmp_path: Path):
    save_file({'a': np.arange(3)}, tmp_path / 'model.safetensors')
    with pytest.raises(InputError, match='model.safetensors: a holds I64, no floating-point numbers'):
        SafetensorsFolder(tmp_path).read('a')


@pytest.mark.parametrize('name', ['pytorch_model.bin', 'model.pt', 'model.ckpt'])
def test_a_pickle_is_refused_unopened_with_what_to_do(tmp_path: Path, name: str):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / 'ran',)

    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError, match=f'{name} is a pickle, which may run code .* safe_serialization=True'):
        SafetensorsFolder(tmp_path)
    assert not (tmp_path / 'ran').exists()


def test_files_of_other_frameworks_are_named(tmp_path: Path):
    with pytest.raises(InputError, match='no model.safetensors$'):
        SafetensorsFolder(tmp_path)
    (tmp_path / 'tf_model.h5').write_bytes(b'')
    with pytest.raises(InputError, match=r'tf_model.h5 is of another framework; load it'):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize('damage', [lambda data: data[:40], lambda data: b'\xff' * 8 + data[8:], lambda data: b''])  # noqa: ARG005
def test_damaged_files_give_one_line(tmp_path: Path, damage):
    path = tmp_path / 'model.safetensors'
    save_file({'a': NUMBERS}, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match='model.safetensors: cannot be read') as error:
        SafetensorsFolder(tmp_path)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{', 'no index of shards'),
        ('{}', 'no index of shards'),
        ('{"weight_map": {"a": "../a.safetensors"}}', 'weight_map must give each tensor the name of a file'),
        ('{"weight_map": {"a": "b.safetensors"}}', 'the shard b.safetensors is missing'),
        ('{"weight_map": {"b": "a.safetensors"}}', 'b is not in a.safetensors, where it should be'),
    ],
)
def test_a_bad_index_is_named(tmp_path: Path, content: str, message: str):
    save_file({'a': NUMBERS}, tmp_path / 'a.safetensors')
    (tmp_path / 'model.safetensors.index.json').write_text(content)
    with pytest.raises(InputError, match=message):
        SafetensorsFolder(tmp_path)


def test_other_users_may_read_what_is_written(tmp_path: Path):
    plain = tmp_path / 'plain'
    plain.touch()
    write_tensors(tmp_path, {'a': np.ones(2, np.float32)})
    assert (tmp_path / 'model.safetensors').stat().st_mode == plain.stat().st_mode

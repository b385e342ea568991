"""The tensors of a checkpoint's folder: one safetensors file or its shards, read one by one, and written.

Nothing here, or anywhere in this package, loads a pickle: it may run code when it is opened.
"""

import contextlib
import errno
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from efficient_attention.config.json_text import read_json_file
from efficient_attention.errors import InputError, one_line
from efficient_attention.models.device_memory import check_host_fits

LOG = logging.getLogger(__name__)
SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
PICKLES = ('*.bin', '*.pt', '*.pth', '*.ckpt', '*.pkl')
OTHERS = ('*.h5', '*.msgpack', '*.ckpt.index')
BYTES = 4  # of a number as it is read
INTEGERS = ('I8', 'U8')
WEIGHT, SCALE = '.weight', '_scale'  # how the names of a layer's integers, and of their scales, end
FLOATS = ('F64', 'F32', 'F16', 'BF16')
HOW = "load it where it came from with transformers and save it by save_pretrained('folder', safe_serialization=True)"


class TensorFolder:
    """The tensors of a folder by name, with their shapes; `read` gives the numbers.

    Raises:
        InputError: the folder has no safetensors, or they are damaged or incomplete; names the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        listed = {} if (folder / SINGLE).is_file() else shards_of(folder)  # as transformers chooses
        for path in sorted({*listed.values()}) if listed else [single_file(folder)]:
            with opened(path) as file:
                for name in file.keys():  # noqa: SIM118  no mapping
                    self.files[name], self.shapes[name] = path, tuple(file.get_slice(name).get_shape())
        # What the integers of a layer stand for (interop/compressed_tensors.py); they are part of its `weight`.
        self.scales = {
            name for name in self.shapes if name.endswith(WEIGHT + SCALE) and name[: -len(SCALE)] in self.shapes
        }
        self.shapes = {name: shape for name, shape in self.shapes.items() if name not in self.scales}
        lost = sorted(name for name, path in listed.items() if self.files.get(name) != path)
        if lost:
            raise InputError(f'{folder / INDEX}: {lost[0]} is not in {listed[lost[0]].name}, where it should be')
        check_host_fits(sum(map(math.prod, self.shapes.values())) * BYTES, f'{folder}: its tensors')

    def read(self, name: str) -> np.ndarray:
        """float32, whatever the file holds; of integers with scales what they stand for.

        Raises:
            InputError: the tensor holds no floating-point numbers, or some that are not finite.
        """
        path = self.files[name]
        if name + SCALE in self.scales:
            codes, scale = self.read_codes(name)
            return codes.astype(np.float32) * scale
        with opened(path) as file:
            kind = file.get_slice(name).get_dtype()
            if kind not in FLOATS:
                more = f' and no {name}{SCALE}' if kind == 'I8' else ''
                raise InputError(f'{path}: {name} holds {kind}, no floating-point numbers{more}')
            tensor = np.asarray(file.get_tensor(name)).astype(np.float32)
        if not np.isfinite(tensor).all():
            raise InputError(f'{path}: {name} holds numbers that are not finite')
        return tensor

    def read_codes(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """int8 [out, in] of a layer, and float32 [out, 1] that they are multiplied by.

        Raises:
            InputError: the tensor holds other numbers, or has no scale that fits.
        """
        path = self.files[name]
        if name + SCALE not in self.scales:
            raise InputError(f'{path}: {name} has no {name}{SCALE}')
        with opened(path) as file:
            kind = file.get_slice(name).get_dtype()
            codes = np.asarray(file.get_tensor(name))
        scale = TensorFolder.read(self, name + SCALE)
        if kind != 'I8' or scale.shape != (len(codes), 1):
            fault = f'{kind} with {name}{SCALE} {list(scale.shape)}'
            raise InputError(f'{path}: {name} holds {fault}; read here: I8 with [{len(codes)}, 1]')
        return codes, scale

    def read_stored(self, name: str) -> np.ndarray:
        """The numbers as the file holds them: float32, or int8 and uint8 of a small model.

        Raises:
            InputError: the tensor holds others, or some that are not finite.
        """
        path = self.files[name]
        with opened(path) as file:
            kind = file.get_slice(name).get_dtype()
            if kind not in INTEGERS:
                return self.read(name)
            return np.asarray(file.get_tensor(name))


def shards_of(folder: Path) -> dict[str, Path]:
    """The file of each tensor by the index of shards; empty where there is no index."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        index = read_json_file(path)
    except (ValueError, OSError) as error:
        raise InputError(f'{path}: no index of shards ({one_line(error)})') from None
    names = index.get('weight_map') if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(type(file) is str and Path(file).name == file for file in names.values()):
        raise InputError(f'{path}: no index of shards: weight_map must give each tensor the name of a file beside it')
    for file in sorted(set(names.values())):
        if not os.path.isfile(folder / file):  # Path.is_file raises where a name is too long
            raise InputError(f'{folder}: the shard {file} is missing')
    return {name: folder / file for name, file in names.items()}


def check_tensor_files(folder: Path) -> None:
    """Raises InputError unless the folder has safetensors; reads none of them.

    Warns of an index of shards beside a single file, which is read in its place.
    """
    if (folder / SINGLE).is_file() and (folder / INDEX).is_file():
        LOG.warning('%s: %s is read, and %s beside it is not', folder, SINGLE, INDEX)
    elif not shards_of(folder):
        single_file(folder)


def single_file(folder: Path) -> Path:
    """The one file of a folder without shards; raises InputError where it is missing, with what to do about it."""
    path = folder / SINGLE
    if path.is_file():
        return path
    for kind, why in ((PICKLES, 'a pickle, which may run code when it is opened, so it is never loaded'), (OTHERS, '')):
        found = sorted(file.name for pattern in kind for file in folder.glob(pattern))
        if found:
            what = why or 'of another framework'
            raise InputError(f'{folder}: no {SINGLE}; {found[0]} is {what}; {HOW}')
    raise InputError(f'{folder}: no {SINGLE}')


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An open safetensors file; turns what reading it raises into one line."""
    try:
        with safe_open(path, framework='np') as file:
            yield file
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'{path}: cannot be read ({str(error).splitlines()[0][:200]})') from None


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray], *, is_stored: bool = False) -> None:
    """Writes the tensors as one file; `format: pt` is what transformers looks for in it; raises OSError.

    They are float32 there, or with `is_stored` of the dtypes that they have.
    """
    dtypes = {name: tensor.dtype if is_stored else np.float32 for name, tensor in tensors.items()}
    whole = {name: np.ascontiguousarray(tensor, dtypes[name]) for name, tensor in sorted(tensors.items())}
    path = folder / SINGLE
    path.touch()  # with the mode that the user's other files get; the library alone would hide it from other users
    mode = path.stat().st_mode
    try:
        save_file(whole, path, metadata={'format': 'pt'})
    except SafetensorError as error:  # 'I/O error: No space left on device (os error 28)'
        number = re.search(r'os error (\d+)|code: (\d+)', str(error))
        code = int(number[1] or number[2]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from None
    path.chmod(mode)

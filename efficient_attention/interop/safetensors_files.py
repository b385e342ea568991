"""Reads and writes the tensors of a model folder, in one safetensors file or in several shards.

No code of this package loads a pickle, because opening one may run code.
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

from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, one_line
from efficient_attention.models.device_memory import check_host_fits

LOG = logging.getLogger(__name__)
SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
PICKLES = ('*.bin', '*.pt', '*.pth', '*.ckpt', '*.pkl')
OTHERS = ('*.h5', '*.msgpack', '*.ckpt.index')
BYTES = 4  # bytes per number in memory, because tensors are read as float32
INTEGERS = ('I8', 'U8')
# endings of tensor names: of a layer's weights, and of the scales of its int8 codes
WEIGHT, SCALE = '.weight', '_scale'
FLOATS = ('F64', 'F32', 'F16', 'BF16')
HOW = "load it where it came from with transformers and save it by save_pretrained('folder', safe_serialization=True)"


class SafetensorsFolder:
    """The safetensors files of a model folder: names and shapes of all tensors. `read` loads the numbers of one tensor.

    Raises:
        InputError: the folder has no safetensors, or they are damaged or incomplete; the message names the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        # transformers also prefers the single file to the shards.
        listed = {} if (folder / SINGLE).is_file() else read_shard_index(folder)
        for path in sorted({*listed.values()}) if listed else [find_single_safetensors(folder)]:
            with open_safetensors(path) as file:
                for name in file.keys():  # noqa: SIM118  not a mapping
                    self.files[name], self.shapes[name] = path, tuple(file.get_slice(name).get_shape())
        # The scale of int8 codes is not listed as a tensor, because it belongs to the tensor `weight` of its layer.
        self.scales = {
            name for name in self.shapes if name.endswith(WEIGHT + SCALE) and name[: -len(SCALE)] in self.shapes
        }
        self.shapes = {name: shape for name, shape in self.shapes.items() if name not in self.scales}
        lost = sorted(name for name, path in listed.items() if self.files.get(name) != path)
        if lost:
            raise InputError(f'{folder / INDEX}: {lost[0]} is not in {listed[lost[0]].name}, where it should be')
        check_host_fits(sum(map(math.prod, self.shapes.values())) * BYTES, f'{folder}: its tensors')

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32, whatever its type in the file is; int8 codes are multiplied by their scales.

        Raises:
            InputError: the tensor has another type than floating point, or numbers that are not finite.
        """
        path = self.files[name]
        if name + SCALE in self.scales:
            codes, scale = self.read_int8_codes(name)
            return codes.astype(np.float32) * scale
        with open_safetensors(path) as file:
            kind = file.get_slice(name).get_dtype()
            if kind not in FLOATS:
                more = f' and no {name}{SCALE}' if kind == 'I8' else ''
                raise InputError(f'{path}: {name} holds {kind}, no floating-point numbers{more}')
            tensor = np.asarray(file.get_tensor(name)).astype(np.float32)
        if not np.isfinite(tensor).all():
            raise InputError(f'{path}: {name} holds numbers that are not finite')
        return tensor

    def read_int8_codes(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the int8 codes of a layer's weight, int8 [out, in], and their scales, float32 [out, 1].

        Raises:
            InputError: the tensor has another type, or has no scale that fits.
        """
        path = self.files[name]
        if name + SCALE not in self.scales:
            raise InputError(f'{path}: {name} has no {name}{SCALE}')
        with open_safetensors(path) as file:
            kind = file.get_slice(name).get_dtype()
            codes = np.asarray(file.get_tensor(name))
        scale = SafetensorsFolder.read(self, name + SCALE)
        if kind != 'I8' or scale.shape != (len(codes), 1):
            fault = f'{kind} with {name}{SCALE} {list(scale.shape)}'
            raise InputError(f'{path}: {name} holds {fault}; read here: I8 with [{len(codes)}, 1]')
        return codes, scale

    def read_raw_tensor(self, name: str) -> np.ndarray:
        """Returns a tensor of a compact export in its stored type: float32, int8 or uint8.

        Raises:
            InputError: the tensor has another type, or numbers that are not finite.
        """
        path = self.files[name]
        with open_safetensors(path) as file:
            kind = file.get_slice(name).get_dtype()
            if kind not in INTEGERS:
                return self.read(name)
            return np.asarray(file.get_tensor(name))


def read_shard_index(folder: Path) -> dict[str, Path]:
    """Returns {tensor name: file} from the index of a folder with several shards; {} if the folder has no index."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        index = read_json_file(path)
    except (ValueError, OSError) as error:
        raise InputError(f'{path}: no index of shards ({one_line(error)})') from None
    names = index.get('weight_map') if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(type(file) is str and Path(file).name == file for file in names.values()):
        raise InputError(f'{path}: no index of shards: weight_map must give each tensor the name of a file next to it')
    for file in sorted(set(names.values())):
        if not os.path.isfile(folder / file):  # `Path.is_file` would raise an error for a name that is too long.
            raise InputError(f'{folder}: the shard {file} is missing')
    return {name: folder / file for name, file in names.items()}


def check_tensor_files(folder: Path) -> None:
    """Raises InputError unless the folder has safetensors files; reads no tensor.

    Logs a warning if an index of shards is ignored because a single file is there.
    """
    if (folder / SINGLE).is_file() and (folder / INDEX).is_file():
        LOG.warning('%s: %s is read, and %s is ignored', folder, SINGLE, INDEX)
    elif not read_shard_index(folder):
        find_single_safetensors(folder)


def find_single_safetensors(folder: Path) -> Path:
    """Returns the safetensors file of a folder without shards; if the file is missing, raises InputError with
    advice.
    """
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
def open_safetensors(path: Path) -> Iterator[Any]:
    """Opens a safetensors file; turns reading errors into InputErrors of one line."""
    try:
        with safe_open(path, framework='np') as file:
            yield file
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'{path}: cannot be read ({str(error).splitlines()[0][:200]})') from None


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray], *, is_stored: bool = False) -> None:
    """Writes tensors to one safetensors file, with the metadata `format: pt` that transformers expects; raises OSError.

    Tensors are stored as float32, or with `is_stored` in their own dtypes.
    """
    dtypes = {name: tensor.dtype if is_stored else np.float32 for name, tensor in tensors.items()}
    whole = {name: np.ascontiguousarray(tensor, dtypes[name]) for name, tensor in sorted(tensors.items())}
    path = folder / SINGLE
    # `touch` gives the file the user's default permissions; `save_file` would make it unreadable for other users.
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(whole, path, metadata={'format': 'pt'})
    # SafetensorError has the error number only in its text: 'I/O error: No space left on device (os error 28)'.
    except SafetensorError as error:
        number = re.search(r'os error (\d+)|code: (\d+)', str(error))
        code = int(number[1] or number[2]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from None
    path.chmod(mode)

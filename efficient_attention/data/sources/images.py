"""Reads images as documents for language models: the bytes of each image, row by row with interleaved channels; all
images have one shape.

images:<globs>                 files that Pillow reads, such as PNG and JPEG; glob by glob, sorted by path
tfds:<name>[:<split>]#<field>  a TensorFlow Datasets dataset, without TensorFlow, e.g. tfds:cifar10#image
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.sources.text_files import digest_files, find_files
from efficient_attention.data.sources.text_source import TextSource
from efficient_attention.data.sources.tfds import digest_texts, parse_tfds_field, tfds_values
from efficient_attention.errors import InputError

MODES = {1: 'L', 3: 'RGB'}  # number of channels -> Pillow's name of the mode
Shape = tuple[int, ...]


def open_images(text: str, shape: Shape) -> TextSource[bytes]:
    """Opens an image source such as 'images:photos/*.png' or 'tfds:cifar10#image'; finds its files now, and reads them
    later.

    Args:
        text: the source's text in the config, see the module docstring.
        shape: (height, width, channels) that every image must have; 1 or 3 channels.

    Raises:
        InputError: unknown kind, or no file matches; later, an image that cannot be read or has another shape.
    """
    kind, _, rest = text.partition(':')
    opener = {'images': _open_files, 'tfds': _open_tfds}.get(kind)
    if not opener:
        raise InputError(f'data.source is {text!r}; images are read from images:<glob> and tfds:<name>#<field>')
    try:
        digest, documents = opener(rest, shape)
    except InputError as error:
        raise InputError(f'data.source {text!r}: {error}') from None
    return TextSource(text, lambda: hashlib.sha256(f'{kind} {digest()}'.encode()).hexdigest(), documents)


# a function that hashes the content of the images, and a function that yields the images
_Opened = tuple[Callable[[], str], Callable[[], Iterator[bytes]]]


def _open_files(rest: str, shape: Shape) -> _Opened:
    files = tuple(dict.fromkeys(path for pattern in rest.split(',') for path in find_files(pattern)))
    return functools.partial(digest_files, files), functools.partial(_read_files, files, shape)


def _open_tfds(rest: str, shape: Shape) -> _Opened:
    name, split, field = parse_tfds_field(rest)
    if not field:
        raise InputError('the field is missing; write tfds:<name>[:<split>]#<field>')
    documents = functools.partial(_tfds_images, name, split, field, shape)
    return lambda: digest_texts(documents()), documents


def _read_files(files: Sequence[Path], shape: Shape) -> Iterator[bytes]:
    for path in files:
        yield read_image(path, shape)


def read_image(path: Path, shape: Shape) -> bytes:
    """Returns the bytes of an image file, row by row with interleaved channels.

    Raises:
        InputError: the file cannot be read, or the image has another shape than (height, width, channels).
    """
    height, width, channels = shape
    try:
        with Image.open(path) as image:  # `Image.open` reads only the header of the file.
            if (image.height, image.width, image.mode) != (height, width, MODES[channels]):
                raise InputError(_wrong_shape_message(path, f'{image.height} x {image.width} {image.mode}', shape))
            return image.tobytes()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f'{path}: not an image that can be read ({one_line(error)})') from None


def _tfds_images(name: str, split: str, field: str, shape: Shape) -> Iterator[bytes]:
    for index, value in enumerate(tfds_values(name, split, field)):
        where = f'tfds:{name}: row {index}'
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
            raise InputError(f'{where}: field {field!r} is no image of bytes')
        if value.shape != shape:
            raise InputError(_wrong_shape_message(where, ' x '.join(map(str, value.shape)), shape))
        yield value.tobytes()


def _wrong_shape_message(where: str | Path, found: str, shape: Shape) -> str:
    height, width, channels = shape
    wanted = f'{height} x {width} {MODES[channels]}'
    return f'{where}: the image is {found} (height x width); data.image_shape {shape} asks for {wanted}'

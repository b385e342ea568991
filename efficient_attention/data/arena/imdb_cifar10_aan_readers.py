"""Reads IMDB reviews, CIFAR-10 images and AAN's citation pairs from folders, as rows of Long Range Arena.

Nothing is downloaded; each reader's docstring describes its files. A hash of their content selects some training rows
as the validation set, so test rows are not used for any choice.
"""

import collections
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from efficient_attention.data.arena.dataset_interface import ArenaRow
from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.preparation.held_out_documents import document_hash
from efficient_attention.data.sources.text_files import read_lines
from efficient_attention.errors import InputError

HELD_OUT = 10  # one in 10 training rows is moved to the validation set
IMAGE_SIDE = 32
GREY = np.array([0.2989, 0.587, 0.114])  # weights of the red, green and blue channels
REVIEW_LABELS = ('neg', 'pos')
PAIR_LABELS = ('0', '1')
PAIR_FILES = {'train': 'new_aan_pairs.train.tsv', 'dev': 'new_aan_pairs.eval.tsv', 'test': 'new_aan_pairs.test.tsv'}
PAIR_COLUMNS = 5  # columns: label, two identifiers, two texts


def review_files(folder: Path, split: str) -> tuple[Path, ...]:
    """Returns the IMDB files <folder>/{train,test}/{neg,pos}/*.txt of a split, in order.

    Raises:
        InputError: there are no files; the message names the missing ones.
    """
    return _class_files(folder / ('test' if split == 'test' else 'train'), REVIEW_LABELS, '*.txt')


def review_rows(files: Sequence[Path], split: str) -> Iterator[ArenaRow]:
    """Yields the bytes and label (1 = positive) of each review; the validation set is a tenth of the training files."""
    for path in files:
        data = _read_bytes(path)
        if split == 'test' or is_held_out(data) == (split == 'dev'):
            yield ArenaRow((byte_ids(data),), REVIEW_LABELS.index(path.parent.name))


def image_files(folder: Path, split: str) -> tuple[Path, ...]:
    """Returns the image files <folder>/{train,test}/<class>/* of a split; raises InputError if there are none."""
    part = folder / ('test' if split == 'test' else 'train')
    return _class_files(part, image_labels(folder), '*')


def image_labels(folder: Path) -> tuple[str, ...]:
    """Returns the class names, which are the sorted names of the folders in <folder>/train; raises InputError for fewer
    than two."""
    part = folder / 'train'
    found = tuple(sorted(path.name for path in part.iterdir() if path.is_dir())) if part.is_dir() else ()
    if len(found) < 2:
        raise InputError(f'{part}: no folder of images for each of at least two classes')
    return found


def image_rows(files: Sequence[Path], split: str, labels: Sequence[str]) -> Iterator[ArenaRow]:
    """Yields the 1,024 grey values of each image, row by row, and its class; grey is 0.2989 R + 0.587 G + 0.114 B.

    Raises:
        InputError: an image cannot be read or is not 32 x 32.
    """
    for path in files:
        pixels = grey_pixels(path)
        if split == 'test' or is_held_out(pixels.tobytes()) == (split == 'dev'):
            yield ArenaRow((pixels.astype(np.uint16),), labels.index(path.parent.name))


def image_size(path: Path) -> tuple[int, int]:
    """Returns the width and height of an image in pixels; raises InputError if the file cannot be read."""
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f'{path}: not an image that can be read ({one_line(error)})') from None


def grey_pixels(path: Path, side: int = IMAGE_SIDE) -> np.ndarray:
    """Returns an image's grey values, uint8 [side^2]; raises InputError if it cannot be read or is not side x side
    pixels."""
    try:
        with Image.open(path) as image:
            if image.size != (side, side):
                found = f'{image.height} x {image.width}'
                raise InputError(f'{path}: the image is {found} (height x width); this task reads {side} x {side}')
            colours = np.asarray(image.convert('RGB'), np.float64)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f'{path}: not an image that can be read ({one_line(error)})') from None
    return np.rint(colours @ GREY).astype(np.uint8).reshape(-1)


def files_per_class(files: Sequence[Path]) -> dict[str, int]:
    """Returns class name -> number of files, in the order of the files; the name of a file's folder is its class."""
    return dict(collections.Counter(path.parent.name for path in files))


def citation_pair_file(folder: Path, split: str) -> Path:
    """Returns the AAN file of a split; if it is missing, raises an InputError which explains why nobody can download
    it."""
    path = folder / PAIR_FILES[split]
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; AAN's pairs may not be redistributed and their links are dead: give the folder "
            "with new_aan_pairs.{train,eval,test}.tsv, or use 'passages'"
        )
    return path


def citation_pair_rows(path: Path) -> Iterator[ArenaRow]:
    """Yields two texts as bytes and a label for each line of an AAN file; a line has five columns separated by tabs:
    label, two identifiers, two texts.

    Raises:
        InputError: a line has other columns or another label; the message names the line.
    """
    for number, line in read_lines(path):
        fields = line.split('\t')
        if len(fields) != PAIR_COLUMNS:
            raise InputError(f'{path}: line {number}: {len(fields)} columns; there must be label, id, id, text, text')
        label = fields[0].removesuffix('.0')
        if label not in PAIR_LABELS:
            raise InputError(f'{path}: line {number}: the label is {fields[0]!r}; known: 0.0, 1.0')
        yield ArenaRow(tuple(byte_ids(text.encode()) for text in fields[3:]), PAIR_LABELS.index(label))


def byte_ids(data: bytes) -> np.ndarray:
    """Returns bytes as word indices of the byte vocabulary, uint16 [l]."""
    return np.frombuffer(data, np.uint8).astype(np.uint16)


def is_held_out(data: bytes) -> bool:
    """Whether a training row with this content is moved to the validation set."""
    return document_hash(data) % HELD_OUT == 0


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None


@functools.lru_cache(maxsize=8)
def _class_files(part: Path, labels: tuple[str, ...], pattern: str) -> tuple[Path, ...]:
    found: list[Path] = []
    for label in labels:
        files = sorted(path for path in (part / label).glob(pattern) if path.is_file())
        if not files:
            known = f'there must be a folder of each class: {", ".join(labels)}'
            raise InputError(f"{part}: no file matches '{label}/{pattern}'; {known}")
        found += files
    return tuple(found)

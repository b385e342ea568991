"""Reads the files that Long Range Arena released: ListOps tables, and Pathfinder images with their metadata files.

Source: Tay et al. 2020, arXiv 2011.04006. The module benchmark_format_writer.py writes files of the same layouts.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from efficient_attention.data.arena.dataset_interface import BINARY, ArenaRow
from efficient_attention.data.arena.imdb_cifar10_aan_readers import grey_pixels, image_size
from efficient_attention.data.arena.pathfinder import SETTINGS
from efficient_attention.data.sources.tables import read_table
from efficient_attention.data.sources.text_files import read_lines
from efficient_attention.data.tokenizers.fixed_vocabulary import WORDS
from efficient_attention.errors import InputError

TABLES = {'train': 'basic_train.tsv', 'dev': 'basic_val.tsv', 'test': 'basic_test.tsv'}
# The files put parentheses around an operator and each argument. Models never see these parentheses.
PARENTHESES = str.maketrans('()', '  ')
NUMBERS = {word: number for number, word in enumerate(WORDS['listops'])}
# split -> the tenths of all images that it contains, as (first, end); images are in the order of the metadata files
TENTHS = {'train': (0, 8), 'dev': (8, 9), 'test': (9, 10)}
FIELDS = 4  # number of fields of a metadata line that are read: folder, file, number, label


class LabelledImagePath(NamedTuple):
    """The path of a Pathfinder image and its class number."""

    path: Path
    label: int


def listops_file(folder: Path, split: str) -> Path:
    """Returns the path of the ListOps table of a split; raises InputError if there is no such file."""
    path = folder / TABLES[split]
    if not path.is_file():
        raise InputError(f'{path}: no such file; the folder must hold {", ".join(TABLES.values())}')
    return path


def listops_rows(path: Path) -> Iterator[ArenaRow]:
    """Yields rows of a ListOps table: the words of column Source without parentheses, and the digit in column Target as
    class.

    Raises:
        InputError: a column is missing, or a row has an unknown word or label; the message names file and line.
    """
    for row in read_table(str(path)):
        words = row.column_text('Source').translate(PARENTHESES).split()
        unknown = next((word for word in words if word not in NUMBERS), None)
        if unknown is not None:
            raise InputError(f'{row.file_and_line}: {unknown!r} is no word of ListOps; known: {" ".join(NUMBERS)}')
        label = row.column_label('Target')
        if label not in WORDS['listops'][:10]:
            raise InputError(f"{row.file_and_line}: field 'Target' is {label or ''!r}; it must be a digit from 0 to 9")
        yield ArenaRow((np.array([NUMBERS[word] for word in words], np.uint16),), int(label or 0))


def pathfinder_metadata_files(folder: Path) -> tuple[Path, ...]:
    """Returns Pathfinder's metadata files <folder>/metadata/*.npy, sorted by number; raises InputError if there are
    none."""
    found = [path for path in (folder / 'metadata').glob('*.npy') if path.is_file()]
    if not found:
        raise InputError(
            f"{folder / 'metadata'}: no file matches '*.npy'; the folder must hold metadata and imgs, "
            "as the released 'pathfinder32/curv_contour_length_14' does"
        )
    return tuple(sorted(found, key=lambda path: (len(path.stem), path.stem)))


def pathfinder_image_paths(folder: Path, split: str) -> list[LabelledImagePath]:
    """Returns the images of a split. In the order of the metadata files, the first 80 % of all images are train, the
    next 10 % dev, the last 10 % test.

    Raises:
        InputError: there is no metadata file, or a line has an unknown form; the message names file and line.
    """
    found = [picture for path in pathfinder_metadata_files(folder) for picture in _parse_metadata_file(folder, path)]
    first, last = (len(found) * tenth // 10 for tenth in TENTHS[split])
    return found[first:last]


def pathfinder_image_rows(pictures: Sequence[LabelledImagePath]) -> Iterator[ArenaRow]:
    """Yields the grey values of each image row by row, 0 to 255, and its label; skips empty image files.

    Raises:
        InputError: an image is missing, is unreadable, or differs in size from the first image.
    """
    side = 0
    for path, label in pictures:
        if path.is_file() and not path.stat().st_size:
            logging.getLogger(__name__).warning('%s: the file is empty; the picture is left out', path)
            continue
        side = side or _image_side(path)
        yield ArenaRow((grey_pixels(path, side).astype(np.uint16),), label)


def _image_side(path: Path) -> int:
    width, height = image_size(path)
    if width != height or width not in SETTINGS:
        known = ', '.join(f'{size} x {size}' for size in SETTINGS)
        raise InputError(f'{path}: the image is {height} x {width} (height x width); Pathfinder has {known}')
    return width


def _parse_metadata_file(folder: Path, path: Path) -> Iterator[LabelledImagePath]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        fields = line.split()
        if len(fields) < FIELDS or fields[3] not in BINARY:
            raise InputError(
                f'{path}: line {number}: not as released, where a line begins like '
                "'imgs/0 sample_0.png 0 1': folder, file, number, label 0 or 1"
            )
        yield LabelledImagePath(folder / fields[0] / fields[1], BINARY.index(fields[3]))

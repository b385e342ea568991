"""Writes generated datasets in the file layout of the original Long Range Arena, so that other code can load them.

    listops     basic_{train,val,test}.tsv: Source and Target; parentheses round an operator and each of its arguments
    recall      the same two columns
    pathfinder  pathfinder<size>/curv_contour_length_<bars>/imgs/<batch>/sample_<i>.png (curv_baseline for the easy
                images, which have the fewest bars), and in the same folder the text file
                metadata/<batch>.npy: folder, file, number, label, continuity, bars of a path and of a distractor,
                length and thickness of a bar, margins, contrasts, separated by spaces
    passages    new_aan_pairs.{train,eval,test}.tsv, like AAN's: label, two names, two texts

The rows of 'train', 'dev' and 'test' go to the files for training, validation and test. A Pathfinder loader splits one
folder, so the three splits follow each other there. Datasets read from original files (imdb, cifar10, aan) are not
written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from efficient_attention.atomic_files import atomic_file, write_atomically, write_failed_error
from efficient_attention.data.arena.dataset_interface import SPLITS, ArenaDataset, ArenaRow, GeneratedDataset
from efficient_attention.data.arena.imdb_cifar10_aan_readers import PAIR_FILES
from efficient_attention.data.arena.listops import CLOSE, DIGITS
from efficient_attention.data.arena.parallel_generation import generate_rows_in_parallel
from efficient_attention.data.arena.pathfinder import SETTINGS, Pathfinder, bars_per_difficulty
from efficient_attention.data.preparation.progress import Progress
from efficient_attention.data.tokenizers.fixed_vocabulary import WORDS
from efficient_attention.errors import InputError

VALIDATION = {'train': 'train', 'dev': 'val', 'test': 'test'}
IMAGES_A_FOLDER = 10_000
BATCH = 0  # number in the name of the first folder of images


def write_original_format(sets: Mapping[str, ArenaDataset], folder: Path) -> list[Path]:
    """Writes the rows of all splits to files and returns the paths of the files; for images, it returns only the paths
    of the metadata files.

    Raises:
        InputError: the datasets are of different kinds, or are read from original files; a file exists already, or a
            folder of images is not empty; or as `rows`.
    """
    for one in sets.values():
        if one.is_read and one.kind in WRITERS:
            raise InputError(f'{one.text} is read from the original files; only generated rows are written')
    kinds = {one.kind for one in sets.values()}
    if len(kinds) != 1 or not kinds <= WRITERS.keys():
        known = ', '.join(WRITERS)
        raise InputError(
            f'the datasets are of {", ".join(sorted(kinds)) or "no kind"}; write one kind at a time: {known}'
        )
    return WRITERS[kinds.pop()]({split: sets[split] for split in SPLITS if split in sets}, folder)


def listops_bracket_text(words: Sequence[str]) -> str:
    """Returns ListOps words as bracketed text in the published form: '( ( ( [MAX 1 ) 2 ) ] )' for '[MAX 1 2 ]'."""
    open_nodes: list[str] = []  # texts of the operators that are still open, the innermost last
    for word in words:
        if word in WORDS['listops'][DIGITS:CLOSE]:
            open_nodes.append(word)
            continue
        value = word if word != WORDS['listops'][CLOSE] else f'( {open_nodes.pop()} {word} )'
        if not open_nodes:
            return value
        open_nodes[-1] = f'( {open_nodes[-1]} {value} )'
    raise ValueError('the words are no tree')


def _write_listops_tables(sets: Mapping[str, ArenaDataset], folder: Path) -> list[Path]:
    def lines(split: str, arena_set: ArenaDataset) -> Iterator[str]:
        yield 'Source\tTarget'
        for row in _rows_with_progress(arena_set, split):
            words = [WORDS[arena_set.vocabulary][word] for word in row.texts[0]]
            text = listops_bracket_text(words) if arena_set.kind == 'listops' else ' '.join(words)
            yield f'{text}\t{arena_set.labels[row.label]}'

    files = {split: folder / f'basic_{VALIDATION[split]}.tsv' for split in sets}
    _check_files_absent(files.values())
    return [_write_lines(files[split], lines(split, arena_set)) for split, arena_set in sets.items()]


def _write_citation_pair_files(sets: Mapping[str, ArenaDataset], folder: Path) -> list[Path]:
    def lines(split: str, arena_set: ArenaDataset) -> Iterator[str]:
        for number, row in enumerate(_rows_with_progress(arena_set, split)):
            texts = [_one_line(text) for text in row.texts]
            yield '\t'.join([f'{row.label}.0', f'{split}{number}a', f'{split}{number}b', *texts])

    files = {split: folder / PAIR_FILES[split] for split in sets}
    _check_files_absent(files.values())
    return [_write_lines(files[split], lines(split, arena_set)) for split, arena_set in sets.items()]


def _check_files_absent(paths: Iterable[Path]) -> None:
    """Raises InputError if one of the files exists, because it may be an original file that nobody can download
    again."""
    for path in paths:
        if path.exists():
            raise InputError(f'{path} is there already; remove it or name another folder')


def _write_lines(path: Path, lines: Iterator[str]) -> Path:
    """Writes lines of text to a file one by one, so that memory does not grow; returns the path of the file."""
    with atomic_file(path) as partial, partial.open('w', encoding='utf-8') as file:
        file.writelines(f'{line}\n' for line in lines)
    return path


def _one_line(text: np.ndarray) -> str:
    """Returns a text of bytes as a string without line breaks, tabs and incomplete characters."""
    return ' '.join(bytes(text.astype(np.uint8)).decode(errors='ignore').split())


def _write_images(sets: Mapping[str, ArenaDataset], folder: Path) -> list[Path]:
    first = next(iter(sets.values()))
    assert isinstance(first, Pathfinder)
    kinds = {(one.size, one.bars, one.distractors, one.fixed) for one in sets.values() if isinstance(one, Pathfinder)}
    if len(kinds) > 1:
        raise InputError(
            'the datasets differ in size, bars, distractors or starts of their images; '
            'a folder must have images of one kind'
        )
    is_easy = first.bars == bars_per_difficulty(first.size)['easy']
    kind = 'curv_baseline' if is_easy else f'curv_contour_length_{first.bars}'
    top = folder / f'pathfinder{first.size}' / kind
    if top.exists() and any(top.iterdir()):
        raise InputError(f'{top} has files already, and some might remain; remove it or name another folder')
    settings = _settings_text(first)
    lines: dict[int, list[str]] = {}
    for number, row in enumerate(_rows_of_all_splits(sets)):
        batch, index = BATCH + number // IMAGES_A_FOLDER, number % IMAGES_A_FOLDER
        path = top / 'imgs' / str(batch) / f'sample_{index}.png'
        image = Image.fromarray(row.texts[0].astype(np.uint8).reshape(first.size, first.size))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
        except OSError as error:
            raise write_failed_error(path, error) from None
        lines.setdefault(batch, []).append(f'imgs/{batch} {path.name} {index} {row.label} {settings}')
    paths = []
    for batch, text in lines.items():
        paths.append(top / 'metadata' / f'{batch}.npy')
        write_atomically(paths[-1], '\n'.join(text) + '\n')
    return paths


def _settings_text(pathfinder: Pathfinder) -> str:
    """Returns the settings that all images of a dataset share, in the column order of the original metadata files."""
    setting = SETTINGS[pathfinder.size]
    lists = (','.join(map(str, numbers)) for numbers in (setting.margins, setting.contrasts))
    fields = setting.continuity, pathfinder.bars, pathfinder.bars // 3, setting.bar_length, setting.thickness
    return ' '.join([*map(str, fields), *lists])


def _rows_of_all_splits(sets: Mapping[str, ArenaDataset]) -> Iterator[ArenaRow]:
    for split, arena_set in sets.items():
        yield from _rows_with_progress(arena_set, split)


def _rows_with_progress(arena_set: ArenaDataset, split: str) -> Iterator[ArenaRow]:
    with Progress(f'writing {arena_set.text} ({split})', is_shown=True) as progress:
        progress.start('rows', arena_set.count if isinstance(arena_set, GeneratedDataset) else None)
        for row in generate_rows_in_parallel(arena_set, split):
            yield row
            progress.advance(1)


WRITERS = {
    'listops': _write_listops_tables,
    'recall': _write_listops_tables,
    'pathfinder': _write_images,
    'passages': _write_citation_pair_files,
}

"""Reads texts and pairs of texts that are labelled with a class or a number, from tables, GLUE files and Long Range
Arena datasets."""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.arena.dataset_interface import ArenaDataset
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.row_cache import cached_rows
from efficient_attention.data.examples.glue import (
    glue_label,
    glue_sources,
    glue_subset,
    glue_task,
    glue_texts,
    is_published_dataset,
    read_glue,
    submission_id,
    with_columns_of_file,
)
from efficient_attention.data.sources.tables import TableRow, read_tables
from efficient_attention.errors import InputError

WHOLE = re.compile(r'-?\d{1,18}')
LARGEST = float(np.finfo(np.float32).max)  # largest absolute value of a label that is a number
# A numeral has no leading zero, because '01' may be a code rather than the number 1.
NUMERAL = re.compile(r'[+-]?(?:0|[1-9]\d*)(?:\.\d*)?')
ARENA = 'arena'  # value of `examples.format` that means datasets of Long Range Arena instead of files


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """A text or a pair of texts, with its label.

    Attributes:
        file: source file, for messages; '' = no file.
        place: the line in the file.
        id: identifier, for predictions.
        texts: one or two texts; () where they are ids already.
        label: name of the class, or a number as text; None = unknown.
        subset: 'mismatched' or 'diagnostic' of GLUE.
        ids: the texts as ids of a fixed vocabulary, uint16 [l] each.
    """

    file: str
    place: str
    id: str
    texts: tuple[str, ...]
    label: str | None = None
    subset: str = ''
    ids: tuple[np.ndarray, ...] = ()

    @property
    def file_and_line(self) -> str:
        """Returns the example's file and line, for error messages."""
        return f'{self.file}: {self.place}' if self.file else self.place


def read_labelled(config: ExamplesConfig, split: str, faults: list[str]) -> Iterator[LabelledText]:
    """Yields the examples of a split ('train', 'dev' or 'test') in the order of the files; yields none if the config
    names no file.

    Rows of 'train' and 'dev' must have a label, rows of 'test' may. `faults` collects broken rows of GLUE's own files.

    Raises:
        InputError: a file or a field of a row is missing or invalid; the message names file, line and field.
    """
    sources = {'train': config.train, 'dev': config.dev, 'test': config.test}[split]
    is_glue = config.format == 'glue'
    if config.format == ARENA:
        yield from _read_arena_examples(config, split)
        return
    examples = (
        _read_glue_examples(config, sources, split, faults) if is_glue else _read_table_examples(config, sources, split)
    )
    for example in examples:
        if example.label is None and split != 'test':
            column = glue_task(config.name).label if is_glue else config.label
            raise InputError(f'{example.file_and_line}: field {column!r} is empty')
        yield example


def _read_glue_examples(config: ExamplesConfig, sources: str, split: str, faults: list[str]) -> Iterator[LabelledText]:
    task = glue_task(config.name)
    for name in glue_sources(sources, split):
        for index, row in enumerate(read_glue(task, name, split, faults)):
            columns = with_columns_of_file(task, row)
            texts, label = glue_texts(columns, row), glue_label(columns, row)
            is_missing = label is None and columns.label not in row.values and not is_published_dataset(row.file)
            if is_missing and split != 'test':
                row.column_value(columns.label)  # This call raises an error that lists the known columns.
            yield LabelledText(row.file, row.place, submission_id(row, index), texts, label, glue_subset(name))


def arena_dataset(config: ExamplesConfig, split: str) -> ArenaDataset:
    """Returns the Long Range Arena dataset that the config names for a split; raises InputError if its text in the
    config is invalid."""
    return open_arena_dataset(getattr(config, split).strip(), f'examples.{split}')


def _read_arena_examples(config: ExamplesConfig, split: str) -> Iterator[LabelledText]:
    if not getattr(config, split).strip():
        return
    found = arena_dataset(config, split)
    for index, row in enumerate(cached_rows(found, split, Path(config.cache))):
        yield LabelledText(found.text, f'row {index}', str(index), (), found.labels[row.label], ids=row.texts)


def _read_table_examples(config: ExamplesConfig, sources: str, split: str) -> Iterator[LabelledText]:
    columns = {'examples.text': config.text, 'examples.text_pair': config.text_pair}
    for index, row in enumerate(read_tables(sources)):
        texts = tuple(row.column_text(column, field=field) for field, column in columns.items() if column)
        is_unlabelled = split == 'test' and config.label not in row.values
        label = None if is_unlabelled else row.column_label(config.label, field='examples.label')
        yield LabelledText(row.file, row.place, _example_id(config, row, index), texts, label)


def _example_id(config: ExamplesConfig, row: TableRow, index: int) -> str:
    if not config.id:
        return str(index)
    label = row.column_label(config.id, field='examples.id')
    if label is None:
        raise InputError(f'{row.file_and_line}: field {config.id!r} is empty')
    return label


def label_names(examples: Iterable[LabelledText]) -> tuple[str, ...]:
    """Returns the distinct labels of all examples, sorted: whole numbers by their value, other labels as text.

    Raises:
        InputError: two labels are the same number, such as '1' and '1.0', which would split a class.
    """
    found: dict[str, str] = {}  # label -> file and line of its first occurrence
    for example in examples:
        if example.label is not None:
            found.setdefault(example.label, example.file_and_line)
    first: dict[Decimal, str] = {}  # number -> label that was first found for this number
    for label, where in found.items():
        known = first.setdefault(Decimal(label), label) if NUMERAL.fullmatch(label) else label
        if known != label:
            raise InputError(f'{where}: label {label!r} is the number {known!r} of {found[known]}; write both alike')
    is_whole = all(WHOLE.fullmatch(name) for name in found)
    return tuple(sorted(found, key=lambda name: (int(name) if is_whole else 0, name)))


def numeric_label(example: LabelledText) -> float:
    """Returns the label of an example as a number; raises InputError if it is no number, or exceeds the range of
    float32."""
    try:
        value = float(example.label or '')
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f'{example.file_and_line}: label {example.label!r} is not a number')
    if abs(value) > LARGEST:
        raise InputError(
            f'{example.file_and_line}: label {example.label!r} is beyond the range of float32, {LARGEST:.4g}'
        )
    return value

"""Augments a training file: writes a new file with the original rows and with copies in which some words are
replaced.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import atomic_file
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.value_checks import check_in_interval
from efficient_attention.data.examples.text_table import TextTable, format_table_lines
from efficient_attention.data.sources.tables import TableRow
from efficient_attention.errors import InputError
from efficient_attention.inference.word_replacement import WordReplacer, augmented_texts

AT_ONCE = 256  # number of table rows whose replacements are proposed together


def augment_file(
    source: Path,
    output: Path,
    replacer: WordReplacer,
    config: ExamplesConfig,
    *,
    copies: int = 20,
    share: float = 0.4,
    seed: int = 0,
) -> dict[str, Any]:
    """Writes each row of a training file, followed by its variants with replaced words; returns a dict with 'rows',
    'written' and 'notes'.

    Args:
        source: CSV, TSV or JSON lines, or a GLUE task's file.
        output: must not exist, and must have the source's suffix.
        replacer: proposes replacements for words.
        config: names the columns with texts.
        copies: tries per row; repeated variants are left out.
        share: probability that a word is replaced.
        seed: a row's random numbers depend on the seed and the row's number.

    Raises:
        InputError: a number is out of range, the source is bad or has no rows, or the output exists.
        RunError: the disk is full.
    """
    check_in_interval('copies', copies, 1)
    check_in_interval('share', share, 0, 1, low_is_open=True)
    check_in_interval('seed', seed, 0, 2**31)
    table = TextTable(source, config)
    if next(table.rows([]), None) is None:
        raise InputError(f'{source}: it has no rows')
    if output.exists():
        raise InputError(f'{output}: there is something already; name another file (--output)')
    if output.suffix != table.suffix:
        raise InputError(f'{output} must end in {table.suffix}, as {source} does')
    counts = {'rows': 0, 'written': 0}
    faults: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        for some in batched(table.rows(faults), AT_ONCE):
            columns = [table.columns(row) for row in some]
            texts = [
                [row.column_text(column, may_be_empty=True) for column in one]
                for row, one in zip(some, columns, strict=True)
            ]
            words = iter(replacer.propose_replacements([text for one in texts for text in one]))
            for row, names, one in zip(some, columns, texts, strict=True):
                found = [next(words) for _ in one]
                yield dict(row.values)
                for made in augmented_texts(one, found, copies=copies, share=share, seed=seed, row=counts['rows']):
                    yield dict(row.values) | dict(zip(names, made, strict=True))
                counts['rows'] += 1

    with atomic_file(output) as partial, partial.open('w', encoding='utf-8', newline='') as file:
        for row in format_table_lines(rows(), table.suffix, has_header=table.has_header()):
            file.write(row)
            counts['written'] += 1
    header = int(table.has_header() and table.suffix != '.jsonl')
    return counts | {'written': counts['written'] - header, 'notes': faults}


def batched(rows: Iterator[TableRow], size: int) -> Iterator[list[TableRow]]:
    """Yields the rows of a table in lists of `size` rows; the last list may be shorter."""
    while some := list(itertools.islice(rows, size)):
        yield some

"""Describes the GLUE tasks and the diagnostic set (Wang et al. 2018, arXiv:1804.07461): their files, columns, labels
and metrics."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.data.sources.arrow_files import ARROW_SUFFIXES, is_saved_dataset
from efficient_attention.data.sources.tables import (
    TFDS,
    TFDS_SPLIT,
    TableRow,
    expand_table_names,
    parse_tfds_split,
    read_table,
)
from efficient_attention.data.sources.text_files import read_lines
from efficient_attention.data.sources.tfds import tfds_splits
from efficient_attention.errors import InputError

BINARY = ('0', '1')
IMPLICATION = ('entailment', 'not_entailment')
INFERENCE = ('entailment', 'neutral', 'contradiction')
# These names of subsets of a GLUE task also occur in the names of the files of the subsets.
MISMATCHED, DIAGNOSTIC = 'mismatched', 'diagnostic'


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """Describes a GLUE task: the columns and labels of its files, and its metrics.

    Attributes:
        title: name on the benchmark's site; the submission is '<title>.tsv'.
        texts: the text column or both text columns in the TSV files.
        label: the label column in the TSV files.
        labels: names in the TSV files and in a submission, in the order of the outputs; () = a number from 0 to 5.
        metrics: the official metrics, by their names in tasks/metrics/glue.py; the first one is for comparison.
        published_texts: the text columns in TFDS and in Hugging Face's datasets, if their names differ.
        headless: the columns of a file without header.
        has_ragged_rows: the official training file has rows that lack fields; they are skipped and counted.
    """

    title: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    published_texts: tuple[str, ...] = ()
    headless: tuple[str, ...] = ()
    has_ragged_rows: bool = False


PREMISE = ('premise', 'hypothesis')
SENTENCES = ('sentence1', 'sentence2')
GLUE = {
    'cola': GlueTask(
        'CoLA', ('sentence',), 'label', BINARY, ('matthews',), headless=('source', 'label', 'mark', 'sentence')
    ),
    'sst2': GlueTask('SST-2', ('sentence',), 'label', BINARY, ('accuracy',)),
    'mrpc': GlueTask(
        'MRPC', ('#1 String', '#2 String'), 'Quality', BINARY, ('f1', 'accuracy'), published_texts=SENTENCES
    ),
    'qqp': GlueTask(
        'QQP', ('question1', 'question2'), 'is_duplicate', BINARY, ('f1', 'accuracy'), has_ragged_rows=True
    ),
    'stsb': GlueTask('STS-B', SENTENCES, 'score', (), ('spearman', 'pearson')),
    'mnli': GlueTask('MNLI', SENTENCES, 'gold_label', INFERENCE, ('accuracy',), published_texts=PREMISE),
    'qnli': GlueTask('QNLI', ('question', 'sentence'), 'label', IMPLICATION, ('accuracy',)),
    'rte': GlueTask('RTE', SENTENCES, 'label', IMPLICATION, ('accuracy',)),
    'wnli': GlueTask('WNLI', SENTENCES, 'label', BINARY, ('accuracy',)),
    'ax': GlueTask('AX', SENTENCES, 'label', INFERENCE, ('matthews',), published_texts=PREMISE),
}
# The labelled version of the diagnostic set, diagnostic-full.tsv, has different columns.
LABELLED_DIAGNOSTIC = dataclasses.replace(GLUE['ax'], texts=('Premise', 'Hypothesis'), label='Label')
TFDS_DIAGNOSTIC = 'glue/ax'  # name of the diagnostic set in TFDS
SPLIT_FILES = {  # file names in the folder of a task, as GLUE distributes them
    'train': ('train.tsv',),
    'dev': ('dev.tsv', 'dev_matched.tsv', 'dev_mismatched.tsv'),
    'test': ('test.tsv', 'test_matched.tsv', 'test_mismatched.tsv', 'diagnostic.tsv'),
}
SPLIT_NAMES = {'train': 'train', 'dev': 'validation', 'test': 'test'}  # split -> start of its names in TFDS


def glue_task(name: str) -> GlueTask:
    """Returns the GLUE task with this name; raises InputError with the known names if there is no such task."""
    if name not in GLUE:
        raise InputError(f"examples.name is {name!r}; known with examples.format 'glue': {', '.join(GLUE)}")
    return GLUE[name]


def glue_sources(sources: str, split: str) -> list[str]:
    """Returns the files of a split ('train', 'dev' or 'test'); a folder in `sources` is replaced by its files of the
    split, and a TFDS dataset without a split by its splits, such as 'validation_matched' for 'dev'.

    Raises:
        InputError: a glob matches no file, or a folder or dataset has nothing of the split; the message names them.
    """
    names: list[str] = []
    for source in filter(None, (one.strip() for one in sources.split(','))):
        folder = Path(source).expanduser()
        if source.startswith(TFDS) and not TFDS_SPLIT.fullmatch(source):
            names += [f'{source}:{name}' for name in _splits_of_tfds(source, SPLIT_NAMES[split])]
        elif not source.startswith(TFDS) and folder.is_dir() and not is_saved_dataset(folder):
            found = [str(folder / name) for name in SPLIT_FILES[split] if (folder / name).is_file()]
            if not found:
                raise InputError(f'{folder}: the folder has no {" or ".join(SPLIT_FILES[split])}')
            names += found
        else:
            names += expand_table_names(source)
    return list(dict.fromkeys(names))


def _splits_of_tfds(name: str, start: str) -> list[str]:
    known = tfds_splits(name.removeprefix(TFDS))
    found = [one for one in known if one.startswith(start)]
    if not found:
        raise InputError(f'{name}: there is no split {start!r}; known: {", ".join(known)}')
    return found


def glue_subset(name: str) -> str:
    """Returns which part of a GLUE task a file or TFDS split belongs to: 'mismatched', 'diagnostic', or '' for all
    others."""
    if name.startswith(TFDS):
        data_set, split = parse_tfds_split(name)
        last = f'{DIAGNOSTIC if data_set.split(":")[0] == TFDS_DIAGNOSTIC else data_set} {split}'
    else:
        # A saved folder of Hugging Face has the name of its split; the files in it are all named data-....
        last = Path(name).parent.name if Path(name).suffix == '.arrow' else Path(name).name
    return next((subset for subset in (MISMATCHED, DIAGNOSTIC) if subset in last), '')


def is_published_dataset(name: str) -> bool:
    """Whether rows of a table come from TFDS or Hugging Face, which rename columns and number the classes of GLUE."""
    return name.startswith(TFDS) or Path(name).suffix in ARROW_SUFFIXES


def read_glue(task: GlueTask, name: str, split: str, faults: list[str]) -> Iterator[TableRow]:
    """Yields the rows of a file or TFDS split of a GLUE task; raises the errors of `read_table`.

    Rows that are known to be broken in the official files are skipped and listed in `faults`.
    """
    has_names = not task.headless or is_published_dataset(name) or _has_header(task, name)
    columns = () if has_names else task.headless
    return read_table(name, columns=columns, faults=faults if task.has_ragged_rows and split == 'train' else None)


def _has_header(task: GlueTask, name: str) -> bool:
    first = next(read_lines(Path(name)), (0, ''))[1]  # Of the files of CoLA, only test.tsv has a header.
    return {'index', *task.texts} <= set(first.split('\t'))


def with_columns_of_file(task: GlueTask, row: TableRow) -> GlueTask:
    """Returns the GLUE task with the column names that the row's file uses; only the labelled diagnostic file has other
    names."""
    is_labelled = glue_subset(row.file) == DIAGNOSTIC and LABELLED_DIAGNOSTIC.label in row.values
    return LABELLED_DIAGNOSTIC if is_labelled else task


def glue_texts(task: GlueTask, row: TableRow) -> tuple[str, ...]:
    """Returns the text or both texts of a row; a text may be empty, because the official files contain a few empty
    texts."""
    columns = task.published_texts if task.published_texts and is_published_dataset(row.file) else task.texts
    return tuple(row.column_text(column, may_be_empty=True) for column in columns)


def glue_label(task: GlueTask, row: TableRow) -> str | None:
    """Returns the label of a row by its official name; None if the row has no label, as in test files.

    Raises:
        InputError: the label of a row of TFDS or Hugging Face is not a class number.
    """
    if not is_published_dataset(row.file):
        return row.column_label(task.label) if task.label in row.values else None
    value = row.values.get('label', -1)
    is_known = isinstance(value, int) and value < len(task.labels) if task.labels else isinstance(value, int | float)
    if not is_known:
        known = ', '.join(task.labels) or 'the numbers'
        raise InputError(f'{row.file_and_line}: label {value!r} is not among {known}')
    if value < 0:  # TFDS and Hugging Face store -1 for a hidden label.
        return None
    return task.labels[value] if task.labels else str(value)


def submission_id(row: TableRow, index: int) -> str:
    """Returns the number that identifies a row in a submission to GLUE: its number in the file, or else its position in
    the file from 0."""
    column = 'idx' if is_published_dataset(row.file) else 'index'
    return str(row.values.get(column, index))

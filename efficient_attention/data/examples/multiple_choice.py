"""Reads multiple-choice questions from the files of SWAG, CODAH and RACE, and from a user's own tables."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.sources.json_files import SURROGATE, read_json, read_json_lines
from efficient_attention.data.sources.tables import TableRow, expand_table_names, read_table
from efficient_attention.data.sources.text_files import find_files
from efficient_attention.errors import InputError

CODAH = ('category', 'prompt', 'ending0', 'ending1', 'ending2', 'ending3', 'label')
BLANK = '_'  # RACE's questions have this character in place of the answer, sometimes several times in a row.
BLANKS = re.compile(f'{BLANK}+')


@dataclasses.dataclass(frozen=True)
class ChoiceQuestion:
    """A multiple-choice question: a context, a question or the common beginning of all choices, and the choices.

    Attributes:
        file: source file; '' = no file.
        place: the line in the file.
        id: identifier, for predictions.
        context: the text to read.
        question: the text before each choice, or a text with gaps '_' for the choice; '' = nothing.
        choices: at least two.
        answer: number of the right choice from 0; None = unknown.
    """

    file: str
    place: str
    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    answer: int | None = None

    @property
    def file_and_line(self) -> str:
        """Returns the question's file and line, for error messages."""
        return f'{self.file}: {self.place}' if self.file else self.place

    @property
    def endings(self) -> tuple[str, ...]:
        """Returns one text per choice: the choice fills the gaps of the question, or follows the question if it has no
        gaps."""
        if BLANK in self.question:
            return tuple(choice.join(BLANKS.split(self.question)) for choice in self.choices)
        return tuple(f'{self.question} {choice}' if self.question else choice for choice in self.choices)


def read_choices(config: ExamplesConfig, split: str, *, named: str = 'examples.{}') -> Iterator[ChoiceQuestion]:
    """Yields the questions of a split ('train', 'dev' or 'test') in the order of the files; in 'test', answers may be
    missing.

    `named` says how error messages name a field of the config.

    Raises:
        InputError: a file or a field of a row is missing or invalid.
    """
    sources = {'train': config.train, 'dev': config.dev, 'test': config.test}[split]
    readers: dict[str, Callable[..., Iterator[ChoiceQuestion]]] = {
        'race': _read_race,
        'swag': _read_swag_and_codah,
        'table': functools.partial(_read_choice_table, named=named),
    }
    for question in readers[config.format](config, sources) if sources else ():
        if question.answer is None and split != 'test':
            raise InputError(f'{question.file_and_line}: no answer (the field of the label is missing or empty)')
        yield question


def answer_index(label: str | None, choices: int, where: str, field: str) -> int | None:
    """Converts a label, a number from 0 or a letter from A, to the index of the right choice; None, for a question
    without a label, stays None.

    Raises:
        InputError: there is no such choice.
    """
    if label is None:
        return None
    is_letter = len(label) == 1 and label.isascii() and label.isalpha()
    number = ord(label.upper()) - ord('A') if is_letter else int(label) if label.isdecimal() else choices
    if number >= choices:
        last = chr(ord('A') + choices - 1)
        raise InputError(f'{where}: field {field!r} is {label!r}; known: 0 to {choices - 1}, A to {last}')
    return number


def _read_choice_table(config: ExamplesConfig, sources: str, *, named: str) -> Iterator[ChoiceQuestion]:
    index = 0
    for name in expand_table_names(sources):
        for row in read_table(name):
            question = row.column_text(config.text_pair, field=named.format('text_pair')) if config.text_pair else ''
            id = row.column_label(config.id, field=named.format('id')) if config.id else str(index)
            context = row.column_text(config.text, field=named.format('text'))
            yield _parse_question(row, id or str(index), context, question, _parse_choices(row), config.label)
            index += 1


def _parse_question(
    row: TableRow, id: str, context: str, question: str, choices: tuple[str, ...], label: str
) -> ChoiceQuestion:
    answer = (
        answer_index(row.column_label(label), len(choices), row.file_and_line, label) if label in row.values else None
    )
    return ChoiceQuestion(row.file, row.place, id, context, question, choices, answer)


def _parse_choices(row: TableRow, prefix: str = 'choice') -> tuple[str, ...]:
    """Returns the choices of a row, from a list in column 'choices' or from the columns 'choice0', 'choice1', ...;
    raises InputError for fewer than two."""
    if 'choices' in row.values:
        return check_string_list(row.values['choices'], row.file_and_line, 'choices')
    if f'{prefix}0' not in row.values and f'{prefix}1' in row.values:
        raise InputError(
            f'{row.file_and_line}: the columns of choices start at {prefix}1; answers count from {prefix}0'
        )
    names = [f'{prefix}{number}' for number in range(len(row.values)) if f'{prefix}{number}' in row.values]
    if len(names) < 2:
        row.column_value(f'{prefix}{len(names)}')  # This call raises an error that lists the known columns.
    return tuple(row.column_text(name) for name in names)


def check_string_list(value: Any, where: str, field: str) -> tuple[str, ...]:
    """Returns a list of at least two non-empty strings as a tuple; raises InputError for any other value."""
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise InputError(f'{where}: field {field!r} is not a list of two or more')
    if not all(isinstance(one, str) and one.strip() for one in value):
        raise InputError(f'{where}: field {field!r} has an entry that is no text or is empty')
    if any(SURROGATE.search(one) for one in value):
        raise InputError(f'{where}: field {field!r} holds half of a surrogate pair, which is no character')
    return tuple(value)


def _read_swag_and_codah(_: ExamplesConfig, sources: str) -> Iterator[ChoiceQuestion]:
    """Reads SWAG's CSV files (sent1, sent2, ending0 ...), SWAG's JSON lines, and CODAH's TSV files, which have no
    header."""
    index = 0
    for name in expand_table_names(sources):
        for row in read_table(name, columns=CODAH if '.tsv' in Path(name).suffixes else ()):
            if 'prompt' in row.values:
                yield _parse_question(
                    row, str(index), row.column_text('prompt'), '', _parse_choices(row, 'ending'), 'label'
                )
            elif 'sent1' in row.values:
                first, second = row.column_text('sent1'), row.column_text('sent2')
                yield _parse_question(row, str(index), first, second, _parse_choices(row, 'ending'), 'label')
            else:
                yield _parse_question(
                    row, str(index), row.column_text('startphrase'), '', _parse_choices(row), 'answer'
                )
            index += 1


def _read_race(_: ExamplesConfig, sources: str) -> Iterator[ChoiceQuestion]:
    """Reads RACE's files: a JSON object with an article, its questions, options and answers, or one such object per
    line."""
    for path in find_files(sources):
        is_lines = '.jsonl' in path.suffixes
        for values, where in read_json_lines(path) if is_lines else [(read_json(path), f'{path}: article')]:
            if not isinstance(values, dict):
                raise InputError(f'{where}: not a JSON object')
            yield from _parse_race_article(TableRow(str(path), where.removeprefix(f'{path}: '), values))


def _parse_race_article(row: TableRow) -> Iterator[ChoiceQuestion]:
    article = row.column_text('article')
    questions, options, answers = row.column_value('questions'), row.column_value('options'), row.values.get('answers')
    lists = [one for one in (questions, options, answers) if one is not None]
    if not all(isinstance(one, list) and len(one) == len(questions) for one in lists):
        raise InputError(
            f"{row.file_and_line}: fields 'questions', 'options' and 'answers' are not lists of one length"
        )
    name = str(row.values.get('id', Path(row.file).stem))
    for index in range(len(questions)):
        values = {'question': questions[index], 'options': options[index]}
        values |= {'answers': answers[index]} if answers is not None else {}
        inner = TableRow(row.file, f'{row.place}: question {index}', values)
        choices = check_string_list(values['options'], inner.file_and_line, 'options')
        yield _parse_question(inner, f'{name}-{index}', article, inner.column_text('question'), choices, 'answers')

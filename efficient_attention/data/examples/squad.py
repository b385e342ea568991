"""Reads questions about a text, with their answers, from SQuAD's JSON files (1.1 and 2.0), JSON lines or tables.

A file `*.json` has SQuAD's layout, {'data': [{'title', 'paragraphs': [{'context', 'qas': [...]}]}]}. A table is a TFDS
split ('tfds:squad/v1.1:train'), a Parquet file or a folder that Hugging Face's `datasets` saved. The column 'answers'
of a table has two lists, {'text': [...], 'answer_start': [...]}. Any other file has one question per line: {'id',
'question', 'context', 'answers': [{'text', 'answer_start'}]}, optionally 'title' and 'is_impossible'. A selection can
restrict the questions of a file, see `data/examples/example_selection.py`.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.data.examples.example_selection import parse_file_selections
from efficient_attention.data.sources.arrow_files import ARROW_SUFFIXES
from efficient_attention.data.sources.json_files import read_json, read_json_lines, typed_json_field
from efficient_attention.data.sources.tables import TFDS, TableRow, read_table
from efficient_attention.data.sources.text_files import decode_utf8
from efficient_attention.errors import InputError, counted


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A gold answer: its text, and the position of its first character in the context (-1 = unknown)."""

    text: str
    start: int = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, with its gold answers.

    Attributes:
        answers: the gold answers; () = the question has no answer, None = unknown.
        title: title of the article with the context; '' = unknown.
        place: the place of the question in its file, for messages.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None
    title: str = ''
    place: str = ''

    def has_answer_at_start(self, answer: Answer) -> bool:
        """Whether the context contains the answer's text at the position where the answer says that it starts."""
        return answer.start >= 0 and bool(answer.text) and self.context.startswith(answer.text, answer.start)

    @property
    def training_answer(self) -> Answer | None:
        """Returns the answer to train on: the most frequent answer, or the first of several equally frequent answers;
        None if the question has no answer.

        SQuAD's training sets have one answer per question, its dev sets several.
        """
        return collections.Counter(self.answers).most_common(1)[0][0] if self.answers else None


def read_squad(text: str, *, is_labelled: bool) -> list[Question]:
    """Returns the questions of all given files, in order.

    Args:
        text: paths or globs, separated by commas, each with its selections (data/examples/example_selection.py).
        is_labelled: whether answers are required; otherwise they are read where present.

    Raises:
        InputError: no file matches, or a file has another layout; the message names the file, question and field.
    """
    questions: list[Question] = []
    for paths, selection in parse_file_selections(text, has_tables=True):
        found = [question for path in paths for question in _read_questions(path, is_labelled)]
        questions += selection(found, lambda question: question.title or question.context)
    if not questions:
        raise InputError(f'{text}: no questions')
    return questions


def drop_misplaced_answers(questions: Sequence[Question]) -> tuple[list[Question], list[str]]:
    """Drops questions whose training answer is not at its 'answer_start'; returns the others, and a line for the user
    if any were dropped."""
    kept: list[Question] = []
    others: list[Question] = []
    for question in questions:
        answer = question.training_answer
        (kept if answer is None or question.has_answer_at_start(answer) else others).append(question)
    if not others:
        return kept, []
    answer = others[0].training_answer
    assert answer
    note = f'{len(others)} of {len(questions)} training questions are skipped: their answer_start does not lead to the '
    return kept, [note + f"answer's text; the first: {others[0].place}: {answer.text!r} at {answer.start}"]


def _read_questions(path: Path, is_labelled: bool) -> Iterator[Question]:
    if str(path).startswith(TFDS) or path.suffix in ARROW_SUFFIXES:
        for table_row in read_table(str(path)):
            values, where = _with_listed_answers(table_row), table_row.file_and_line
            yield _parse_question(values, values, (where, where), is_labelled)
    elif path.name.removesuffix('.gz').endswith('.json'):
        for row, paragraph, where in _squad_rows(path):
            yield _parse_question(row, paragraph, (where, str(path)), is_labelled)
    else:
        for row, where in read_json_lines(path):
            yield _parse_question(row, row, (where, where), is_labelled)


def _with_listed_answers(row: TableRow) -> dict[str, Any]:
    """Returns the values of a table's row, with the lists of texts and starts joined to one list of answers."""
    answers, where = row.values.get('answers'), f"{row.file_and_line}: field 'answers'"
    if answers is None:
        return dict(row.values)
    lists: list[Any] = [answers.get(name) for name in ('text', 'answer_start')] if isinstance(answers, dict) else []
    if not lists or not all(isinstance(one, list | np.ndarray) for one in lists):
        raise InputError(f"{where} has no lists 'text' and 'answer_start'")
    texts = [decode_utf8(text, where, 1) if isinstance(text, bytes) else text for text in lists[0]]
    starts = [int(start) if isinstance(start, np.integer) else start for start in lists[1]]
    if len(texts) != len(starts):
        found = f"'text' has {counted(len(texts), 'value')} and 'answer_start' has {counted(len(starts), 'value')}"
        raise InputError(f'{where}: {found}; they must be equally many')
    listed = [{'text': text, 'answer_start': start} for text, start in zip(texts, starts, strict=True)]
    return {**row.values, 'answers': listed}


def _squad_rows(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Yields, for each question of a SQuAD file: the question, its paragraph with the article's title, and its location
    for error messages."""
    articles = typed_json_field(read_json(path), 'data', list, str(path))
    for a, article in enumerate(articles):
        where = f'{path}: article {a}'
        title = typed_json_field(article, 'title', str, where, default='')
        for p, paragraph in enumerate(typed_json_field(article, 'paragraphs', list, where)):
            inside = f'{where}, paragraph {p}'
            for n, row in enumerate(typed_json_field(paragraph, 'qas', list, inside)):
                yield row, paragraph | {'title': title}, f'{inside}, question {n}'


def _parse_question(row: Any, paragraph: Any, places: tuple[str, str], is_labelled: bool) -> Question:
    """Parses a JSON question with its context and answers.

    `places` holds two locations for error messages: one until the id is known, and the prefix of the id after that.
    """
    id = typed_json_field(row, 'id', str, places[0])
    where = f'{places[1]}: question {id!r}'
    question, context = (
        typed_json_field(row, 'question', str, where),
        typed_json_field(paragraph, 'context', str, where),
    )
    for name, value in (('question', question), ('context', context)):
        if not value.strip():
            raise InputError(f'{where}: field {name!r} is empty')
    answers = _parse_answers(row, where) if is_labelled or 'answers' in row else None
    title = typed_json_field(paragraph, 'title', str, where, default='')
    return Question(id=id, question=question, context=context, answers=answers, title=title, place=where)


def _parse_answers(row: dict[str, Any], where: str) -> tuple[Answer, ...]:
    is_impossible = typed_json_field(row, 'is_impossible', bool, where, default=None)
    answers = []
    for n, answer in enumerate(typed_json_field(row, 'answers', list, where)):
        inside = f'{where}, answer {n}'
        start = typed_json_field(answer, 'answer_start', int, inside, default=-1)
        answers.append(Answer(typed_json_field(answer, 'text', str, inside), start))
    if is_impossible is not None and is_impossible == bool(answers):
        raise InputError(f"{where}: field 'is_impossible' is {is_impossible}, and there are {len(answers)} answers")
    return tuple(answers)

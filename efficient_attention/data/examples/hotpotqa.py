"""Reads questions that need several paragraphs to answer (multi-hop), from the files of HotpotQA and MuSiQue.

A file is a JSON list of questions, or has one question per line. HotpotQA's questions have 'context', [[title,
[sentence, ...]], ...], and 'supporting_facts', [[title, sentence number from 0], ...]. Subsets with retrieved
paragraphs may lack the supporting paragraphs or all paragraphs. MuSiQue's questions have 'answer_aliases' and
'paragraphs', each with 'title', 'paragraph_text' and 'is_supporting'. They are read as paragraphs of one sentence.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from efficient_attention.data.examples.example_selection import parse_file_selections
from efficient_attention.data.sources.json_files import check_json_type, read_json, read_json_lines, typed_json_field
from efficient_attention.data.sources.text_files import read_text
from efficient_attention.errors import InputError

SentenceId = tuple[str, int]  # title of a paragraph, and number of a sentence in this paragraph, from 0


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph: its title and its sentences."""

    title: str
    sentences: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MultiHopQuestion:
    """A question with the paragraphs that are given to answer it.

    Attributes:
        answers: the answer and its aliases, possibly 'yes' or 'no'; None = unknown.
        supporting: the sentences that are needed for the answer; their paragraphs may be missing here.
        place: the place of the question in its file, for messages.
    """

    id: str
    question: str
    paragraphs: tuple[Paragraph, ...]
    answers: tuple[str, ...] | None = None
    supporting: frozenset[SentenceId] = frozenset()
    place: str = ''


def read_hotpotqa(text: str, *, is_labelled: bool) -> list[MultiHopQuestion]:
    """Returns the questions of all given files, in order.

    Args:
        text: paths or globs, separated by commas, each with its selections (data/examples/example_selection.py); each
            question counts as a separate article.
        is_labelled: whether answers and supporting facts are required; otherwise they are read where both are present.

    Raises:
        InputError: no file matches, or a file has another layout; the message names the file, question and field.
    """
    questions: list[MultiHopQuestion] = []
    for paths, selection in parse_file_selections(text):
        found = [_parse_question(row, where, is_labelled) for path in paths for row, where in _read_rows(path)]
        questions += selection(found, lambda question: question.id)
    if not questions:
        raise InputError(f'{text}: no questions')
    return questions


def parse_paragraphs(value: Any, where: str) -> tuple[Paragraph, ...]:
    """Parses JSON paragraphs of the form [[title, [sentence, ...]], ...]; raises an InputError that starts with
    `where`."""
    return tuple(
        _parse_paragraph(paragraph, f'{where}, paragraph {number}')
        for number, paragraph in enumerate(check_json_type(value, list, where))
    )


def _read_rows(path: Path) -> Iterator[tuple[Any, str]]:
    if read_text(path).lstrip().startswith('['):
        yield from ((row, f'{path}: row {number}') for number, row in enumerate(read_json(path)))
    else:
        yield from read_json_lines(path)


def _parse_question(row: Any, where: str, is_labelled: bool) -> MultiHopQuestion:
    is_musique = isinstance(row, dict) and 'paragraphs' in row
    is_labelled = is_labelled or _has_labels(row)
    id = typed_json_field(row, 'id' if is_musique else '_id', str, where)
    where = f'{where}: question {id!r}'
    question = typed_json_field(row, 'question', str, where)
    if is_musique:
        paragraphs, supporting = _musique_paragraphs(
            typed_json_field(row, 'paragraphs', list, where), where, is_labelled
        )
    else:
        paragraphs = parse_paragraphs(typed_json_field(row, 'context', list, where), f"{where}: field 'context'")
        supporting = (
            _supporting_sentence_ids(typed_json_field(row, 'supporting_facts', list, where), where)
            if is_labelled
            else frozenset()
        )
    if not question.strip():
        raise InputError(f"{where}: field 'question' is empty")
    answers = _parse_answers(row, where) if is_labelled else None
    return MultiHopQuestion(id, question, paragraphs, answers, supporting, where)


def _has_labels(row: Any) -> bool:
    """Whether a row of a test file contains an answer and supporting facts; an empty answer counts as missing."""
    if not isinstance(row, dict) or not row.get('answer') or row.get('answerable') is False:
        return False
    paragraphs = row.get('paragraphs')
    if not isinstance(paragraphs, list):
        return 'supporting_facts' in row
    return all(isinstance(paragraph, dict) and 'is_supporting' in paragraph for paragraph in paragraphs)


def _parse_paragraph(value: Any, where: str) -> Paragraph:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f'{where}: not [title, [sentence, ...]]')
    sentences = tuple(
        check_json_type(sentence, str, f'{where}: a sentence') for sentence in check_json_type(value[1], list, where)
    )
    return Paragraph(check_json_type(value[0], str, f'{where}: the title'), sentences)


def _supporting_sentence_ids(values: list[Any], where: str) -> frozenset[SentenceId]:
    """Parses supporting facts, given as [title, number], or as [title, [number, ...], ...], which some subsets have."""
    supporting = set()
    for value in values:
        inside = f"{where}: field 'supporting_facts'"
        if not isinstance(value, list) or len(value) < 2:
            raise InputError(f'{inside}: not [title, number of the sentence]')
        title = check_json_type(value[0], str, f'{inside}: a title')
        for number in value[1] if isinstance(value[1], list) else [value[1]]:
            supporting.add((title, check_json_type(number, int, f'{inside}: the number of a sentence')))
    return frozenset(supporting)


def _musique_paragraphs(
    rows: list[Any], where: str, is_labelled: bool
) -> tuple[tuple[Paragraph, ...], frozenset[SentenceId]]:
    paragraphs, supporting = [], set()
    for number, row in enumerate(rows):
        inside = f'{where}, paragraph {number}'
        title = typed_json_field(row, 'title', str, inside)
        paragraphs.append(Paragraph(title, (typed_json_field(row, 'paragraph_text', str, inside),)))
        if is_labelled and typed_json_field(row, 'is_supporting', bool, inside):
            supporting.add((title, 0))
    return tuple(paragraphs), frozenset(supporting)


def _parse_answers(row: Any, where: str) -> tuple[str, ...]:
    aliases = typed_json_field(row, 'answer_aliases', list, where, default=[])
    answers = (typed_json_field(row, 'answer', str, where), *aliases)
    if not typed_json_field(row, 'answerable', bool, where, default=True):
        raise InputError(f"{where}: field 'answerable' is False; questions without an answer are not read")
    if not all(check_json_type(answer, str, f"{where}: field 'answer_aliases'").strip() for answer in answers):
        raise InputError(f"{where}: field 'answer' is empty")
    return answers

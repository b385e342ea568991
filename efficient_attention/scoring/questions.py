"""Reads the questions of scoring problems from files: minimal pairs, last words, choices, Winograd schemas, exact
answers.
"""

import dataclasses
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.multiple_choice import (
    BLANK,
    ChoiceQuestion,
    answer_index,
    check_string_list,
    read_choices,
)
from efficient_attention.data.sources.tables import TableRow, expand_table_names, read_table
from efficient_attention.data.sources.text_files import find_files, read_lines
from efficient_attention.errors import InputError, advice_on_name

MASK = '[MASK]'
CHOICE_FORMATS = ('table', 'swag', 'race', 'hellaswag')
CHOICE_FIELDS = ('template', 'format', 'label', 'text', 'text_pair')


@dataclasses.dataclass(frozen=True)
class Question:
    """One question of a problem.

    Attributes:
        where: the file and line, for messages.
        prompts: the text before the options; one for all of them, or one per option.
        options: the continuations to compare, each with the space before it; one for all prompts, or one per prompt.
        answer: number of the right prompt or option.
        groups: (kind, name) of the groups that the question counts for, such as ('field', 'syntax').
        accepted: further right answers of a question with one option.
        gap: for Winograd schemas, the text before and after the gap and one candidate per option.
    """

    where: str
    prompts: tuple[str, ...]
    options: tuple[str, ...]
    answer: int
    groups: tuple[tuple[str, str], ...] = ()
    accepted: tuple[str, ...] = ()
    gap: tuple[str, str, tuple[str, ...]] | None = None

    @property
    def choices(self) -> int:
        """Returns the number of answers to choose from; 1 = the answer is not chosen from a list."""
        return max(len(self.prompts), len(self.options))

    def prompt(self, number: int) -> str:
        """Returns the prompt of option `number`."""
        return self.prompts[number if len(self.prompts) > 1 else 0]

    def option(self, number: int) -> str:
        """Returns the continuation of option `number`."""
        return self.options[number if len(self.options) > 1 else 0]

    @property
    def answers(self) -> list[str]:
        """Returns all right answers of a question with one option, each with the space before it."""
        return [self.options[0], *(f' {one}' for one in self.accepted)]

    @property
    def solved(self) -> str:
        """Returns the question with its right answer, as an example for other questions."""
        return self.prompt(self.answer) + self.option(self.answer)


Reader = Callable[[str, Mapping[str, str]], Iterator[Question]]


def read_minimal_pairs(files: str, _: Mapping[str, str]) -> Iterator[Question]:
    """Reads BLiMP's files (Warstadt et al. 2020, arXiv 1912.00582): `sentence_good` should be the more probable one."""
    for row in rows_of(files):
        good, bad = row.column_text('sentence_good'), row.column_text('sentence_bad')
        # The files spell one field in two ways, syntax_semantics and syntax/semantics.
        names = {'paradigm': row.values.get('UID'), 'field': str(row.values.get('field', '')).replace('/', '_')}
        groups = tuple((kind, str(name)) for kind, name in names.items() if name)
        yield Question(row.file_and_line, ('',), (good, bad), 0, groups)


def read_last_words(files: str, _: Mapping[str, str]) -> Iterator[Question]:
    """Reads LAMBADA's texts (Paperno et al. 2016, arXiv 1606.06031): the last word is to be predicted."""
    for row in rows_of(files):
        before, space, last = row.column_text('text').strip().rpartition(' ')
        if not space:
            raise InputError(f'{row.file_and_line}: the text has one word only, so nothing comes before its last word')
        yield Question(row.file_and_line, (before,), (f' {last}',), 0)


def read_choice_questions(files: str, fields: Mapping[str, str]) -> Iterator[Question]:
    """Reads SWAG, CODAH, RACE, HellaSwag, and tables with a list `choices` or columns `choice0`, `choice1`, ...

    `fields` are those of `CHOICE_FIELDS`; a template has {context} and {question}, of HellaSwag {activity} and
    {context}.
    """
    template = fields.get('template', '')
    if fields.get('format') == 'hellaswag':
        yield from read_hellaswag(files, template)
        return
    if (form := fields.get('format', 'table')) not in CHOICE_FORMATS:
        raise InputError(f'format is {form!r}; {advice_on_name(form, CHOICE_FORMATS)}')
    given: dict[str, Any] = {name: value for name, value in fields.items() if name != 'template'}
    config = ExamplesConfig(**{'format': 'table', 'label': 'answer', 'text': 'context', **given, 'dev': files})
    for question in read_choices(config, 'dev', named='{} with --set'):
        yield from choice_question(question, template or default_template(question))


def default_template(question: ChoiceQuestion) -> str:
    """Returns the default template of a prompt: with 'Q:' and 'A:' if the question asks or has a blank."""
    if not question.question:
        return '{context}'
    is_asked = question.question.rstrip().endswith('?') or BLANK in question.question
    return '{context}\n\nQ: {question}\n\nA:' if is_asked else '{context} {question}'


def choice_question(question: ChoiceQuestion, template: str) -> Iterator[Question]:
    """Yields a multiple-choice question with the prompt of a template."""
    assert question.answer is not None  # `read_choices` has checked it
    values = {'context': question.context, 'question': question.question}
    prompt = fill_template(template, values, question.file_and_line)
    options = tuple(f' {choice.strip()}' for choice in question.choices)
    yield Question(question.file_and_line, (prompt,), options, question.answer)


def read_hellaswag(files: str, template: str) -> Iterator[Question]:
    """Reads HellaSwag's JSON lines (Zellers et al. 2019, arXiv 1905.07830): activity, two contexts, endings, label."""
    for row in rows_of(files):
        second = row.column_text('ctx_b', may_be_empty=True)
        context = f'{row.column_text("ctx_a")} {second.capitalize()}'
        values = {
            'activity': clean_hellaswag(row.column_text('activity_label')),
            'context': clean_hellaswag(context),
        }
        endings = check_string_list(row.column_value('endings'), row.file_and_line, 'endings')
        prompt = fill_template(template or '{activity}: {context}', values, row.file_and_line)
        label = answer_index(row.column_label('label'), len(endings), row.file_and_line, 'label')
        if label is None:
            raise InputError(f'{row.file_and_line}: no answer (field label is empty)')
        yield Question(row.file_and_line, (prompt,), tuple(f' {clean_hellaswag(one)}' for one in endings), label)


def clean_hellaswag(text: str) -> str:
    """Removes the bracketed marks of WikiHow from a text; ' [title]' becomes the end of a sentence."""
    text = text.strip().replace(' [title]', '. ')
    while '[' in text and ']' in text[text.index('[') :]:
        start = text.index('[')
        text = text[:start] + text[text.index(']', start) + 1 :]
    return ' '.join(text.split())


def read_winograd(files: str, _: Mapping[str, str]) -> Iterator[Question]:
    """Reads Winograd schemas: blocks of text with [MASK], candidates and answer (*.txt), or JSON lines with
    `context_options`, `continuation` and `gold`.

    A language model compares the text after the gap, given each candidate in the gap (Trinh and Le 2018, arXiv
    1806.02847, partial scoring).
    """
    for name in expand_table_names(files):
        if name.endswith('.txt'):
            yield from read_winograd_blocks(name)
            continue
        for row in read_table(name):
            contexts = check_string_list(row.column_value('context_options'), row.file_and_line, 'context_options')
            gold = answer_index(row.column_label('gold'), len(contexts), row.file_and_line, 'gold')
            if gold is None:
                raise InputError(f'{row.file_and_line}: no answer (field gold is empty)')
            prompts = tuple(one.strip() for one in contexts)
            yield Question(row.file_and_line, prompts, (f' {row.column_text("continuation").strip()}',), gold)


def read_winograd_blocks(name: str) -> Iterator[Question]:
    """Reads blocks of four lines: the text, '[MASK]', candidates separated by a comma, and the answer."""
    block: list[tuple[int, str]] = []
    [path] = find_files(name)
    for number, line in [*read_lines(path), (0, '')]:
        if line.strip():
            block.append((number, line))
        elif block:
            yield winograd_question(block, f'{name}: line {block[0][0]}')
            block = []


def winograd_question(block: list[tuple[int, str]], where: str) -> Question:
    """Returns the question of one block; raises InputError if the block is no Winograd schema."""
    if len(block) != 4:
        raise InputError(f'{where}: {len(block)} lines; a schema has four: text, {MASK}, candidates and answer')
    text, candidates, answer = block[0][1], [one.strip() for one in block[2][1].split(',')], block[3][1].strip()
    before, mask, after = text.partition(MASK)
    if not mask:
        raise InputError(f'{where}: no {MASK} in the text')
    matching = [number for number, one in enumerate(candidates) if one.lower() == answer.lower()]
    if len(candidates) < 2 or len(matching) != 1:
        raise InputError(f'{where}: the answer {answer!r} must be one of two or more candidates, {candidates}')
    # A gap between a word and a word, or where the file has a space, is followed by a space.
    joiner = ' ' if after[:1].isspace() or after[:1].isalnum() else ''
    before, after = before.strip(), after.strip()
    # A candidate that begins with an article is lower-cased inside a sentence, and capitalised at its start.
    shown = [at_place(one, is_first=not before or before[-1] in '.?!') for one in candidates]
    gap = (f'{before} ' if before else '', joiner + after, tuple(shown))
    prompts = tuple(f'{before} {one}'.strip() for one in shown)
    if not after:
        raise InputError(f'{where}: no text after the gap; partial scoring compares it')
    return Question(where, prompts, (joiner + after,), matching[0], gap=gap)


def at_place(candidate: str, *, is_first: bool) -> str:
    """Returns a candidate as it is written at the start of a sentence or inside it."""
    if is_first:
        return candidate[:1].upper() + candidate[1:]
    first, space, rest = candidate.partition(' ')
    articles = ('the', 'a', 'an', 'my', 'his', 'her', 'their', 'our')
    return f'{first.lower()}{space}{rest}' if first.lower() in articles else candidate


def read_exact_answers(files: str, fields: Mapping[str, str]) -> Iterator[Question]:
    """Reads questions whose answer is to be generated: JSON lines or tables with `context` and `completion`, or any
    columns with a template.

    `fields`: 'template' is the prompt with {column} in it, default {context}; 'answer' is the column of the answer,
    default `completion`. In a list, every answer is accepted.
    """
    template, column = fields.get('template') or '{context}', fields.get('answer') or 'completion'
    for row in rows_of(files):
        prompt = fill_template(template, row.values, row.file_and_line)
        value = row.column_value(column)
        answers = [value] if isinstance(value, str | int | float) else value
        if not isinstance(answers, list | tuple) or not answers or not all(str(one).strip() for one in answers):
            raise InputError(f'{row.file_and_line}: field {column!r} has no answer')
        first, *more = (str(one).strip() for one in answers)
        yield Question(row.file_and_line, (prompt,), (f' {first}',), 0, accepted=tuple(more))


def fill_template(template: str, values: Mapping[str, Any], where: str) -> str:
    """Returns a template with {column} replaced by the values of a row; raises InputError for an unknown column."""
    try:
        columns = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError:
        raise InputError(
            f'template {template!r}: a brace without its other half; write {{column}}, or {{{{ for a brace'
        ) from None
    for name in columns:
        if name not in values:
            raise InputError(f'{where}: the template has {{{name}}}; known columns: {", ".join(map(repr, values))}')
    # Options and answers bring the space before them.
    try:
        return template.format_map({name: values[name] for name in columns}).rstrip(' ')
    except ValueError as error:
        raise InputError(f'{where}: template {template!r}: {error}') from None


def rows_of(files: str) -> Iterator[TableRow]:
    """Yields the rows of tables or JSON-lines files, in the order of the files."""
    for name in expand_table_names(files):
        yield from read_table(name)

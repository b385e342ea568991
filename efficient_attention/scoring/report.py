"""Scores a model on the files of a problem, writes a line per question, and prints tables."""

import dataclasses
import functools
import glob
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.data.sources.json_files import read_json_lines
from efficient_attention.data.sources.text_files import find_files
from efficient_attention.errors import InputError, advice_on_name
from efficient_attention.scoring.ngram_scorer import ngram_scorer_of_run
from efficient_attention.scoring.open_scorer import open_scorer
from efficient_attention.scoring.pairs import Scorer
from efficient_attention.scoring.problems import PROBLEMS, Problem, answer_questions, summarize
from efficient_attention.scoring.prompts import PromptForm
from efficient_attention.scoring.questions import Question
from efficient_attention.scoring.whole_texts import measure_texts

TEXT = 'text'  # the problem of whole texts, which has no questions


@dataclasses.dataclass(frozen=True)
class ScoreOptions:
    """Options of `score_problem`.

    Attributes:
        train_files: the questions from which examples are drawn.
        shots: numbers of examples before each question; each is scored in turn.
        description: text before examples and question.
        delimiter: text after the description and each example; None = two line ends, or nothing if the
            prompts begin with a line end.
        seed: random seed of the examples.
        empty_prompt: the prompt of the measure 'against_empty'; '' = the document separator.
        fields: fields of the problem's reader, such as 'template' or 'format'.
        limit: at most this many questions (for 'text', characters) per file; 0 = all.
        checkpoint: a workdir's checkpoint; '' = the best if one is known, else the last.
        batch_size: rows at a time.
        length: most tokens per row; 0 = the model's own limit.
        ngram: also score an n-gram model of the run's training text, of this order; 0 = none.
        published: JSON lines of published BLiMP accuracies, one object per 'UID'.
        output: file for one JSON line per question.
    """

    train_files: str = ''
    shots: Sequence[int] = (0,)
    description: str = ''
    delimiter: str | None = None
    seed: int = 0
    empty_prompt: str = ''
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limit: int = 0
    checkpoint: str = ''
    batch_size: int = 16
    length: int = 0
    ngram: int = 0
    published: str = ''
    output: Path | None = None


def score_problem(model: Path, name: str, files: str, options: ScoreOptions) -> dict[str, Any]:
    """Scores a trained model on a problem, prints a table, and returns all figures.

    Args:
        model: a workdir or a Hugging Face folder.
        name: one of `PROBLEMS`, or 'text' for the perplexity of whole texts.
        files: the questions; paths or globs, comma-separated.
        options: see `ScoreOptions`.

    Raises:
        InputError: a file, field or number is invalid, or the model cannot answer such questions.
    """
    if name == TEXT:
        return score_text_files(model, files, options)
    if name not in PROBLEMS:
        raise InputError(f'problem is {name!r}; {advice_on_name(name, (*PROBLEMS, TEXT))}')
    problem, shots = PROBLEMS[name], options.shots
    if not shots or min(shots) < 0:
        raise InputError(f'shots is {list(shots)}; its numbers must be at least 0')
    if any(shots) != bool(options.train_files):
        raise InputError(
            f'--shots {max(shots)} needs --train_files, from which examples are drawn'
            if any(shots)
            else '--train_files has no effect without --shots above 0'
        )
    if options.empty_prompt and name != 'choice':
        raise InputError(f'--empty_prompt has no effect on the problem {name}, only on choice')
    check_fields(name, problem.fields, options.fields)
    if options.output is not None:  # said now, not after hours of scoring
        check_output(options.output, (files, options.train_files, options.published))
    theirs = read_published(options.published) if options.published else {}
    questions = first_questions(problem, files, options)
    pool = list(problem.read(options.train_files, options.fields)) if options.train_files else []
    if max(shots) > len(pool):
        raise InputError(f'--shots {max(shots)}: {options.train_files} has {len(pool)} questions')
    check_others(options.train_files, max(shots), questions.values(), pool)
    paradigms = {group for question in questions.values() for kind, group in question.groups if kind == 'paradigm'}
    if theirs and not paradigms & theirs.keys():
        raise InputError(f'{options.published}: no UID there is a paradigm of {files}')
    begins_line = all(prompt.startswith('\n') for question in questions.values() for prompt in question.prompts)
    delimiter = ('' if begins_line else '\n\n') if options.delimiter is None else options.delimiter
    scorers = open_scorers(model, options)
    lines: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for scorer in scorers:
        by_shots = {}
        for count in shots:
            started = time.monotonic()
            form = PromptForm(options.description, delimiter, count, options.seed, options.empty_prompt)
            show = functools.partial(print_progress, scorer.name, count, len(questions))
            answered = list(answer_questions(scorer, problem, questions, pool=pool, form=form, on_answers=show))
            lines += [{'model': scorer.name, **one.line(name, count)} for one in answered]
            if (
                options.output is not None
            ):  # after each number of examples, so that a stopped run keeps the earlier ones
                write_atomically(options.output, ''.join(f'{json.dumps(line, ensure_ascii=False)}\n' for line in lines))
            by_shots[count] = summarize(answered) | {'seconds': round(time.monotonic() - started, 1)}
        found[scorer.name] = by_shots
        print(table_of(scorer, by_shots), flush=True)
    if theirs:
        print(published_table(found, theirs), flush=True)
    settings: dict[str, Any] = {'problem': name, 'measures': problem.about, 'files': files}
    settings |= {'train_files': options.train_files, 'seed': options.seed, 'description': options.description}
    settings |= {'delimiter': delimiter, 'empty_prompt': options.empty_prompt, **options.fields}
    settings |= {'limit': options.limit, 'checkpoint': options.checkpoint}
    return settings | {'rule': scorers[0].rule, 'longest': scorers[0].longest, 'results': found}


def check_output(output: Path, read: Sequence[str]) -> None:
    """Raises InputError if a file cannot be written there, or is one of those that are read: paths or globs,
    comma-separated.
    """
    if not output.parent.is_dir():
        raise InputError(f'--output {output}: there is no folder {output.parent}')
    if output.is_dir():
        raise InputError(f'--output {output}: this is a folder; name a file')
    parts = (part.strip() for files in read for part in files.split(','))
    names = (name for part in parts if part for name in glob.glob(os.path.expanduser(part)))
    if output.exists() and any(output.samefile(name) for name in names):
        raise InputError(f'--output {output}: this file is read, and would be lost')


def check_others(files: str, shots: int, questions: Iterable[Question], pool: Sequence[Question]) -> None:
    """Raises InputError if the training files have fewer than `shots` questions other than this one."""
    counts = Counter(one.solved for one in pool)
    for question in questions if shots else ():
        others = len(pool) - counts[question.solved]
        if shots > others:
            raise InputError(f'--shots {shots}: {files} has {others} questions other than that of {question.where}')


def open_scorers(model: Path, options: ScoreOptions) -> list[Scorer]:
    """Returns the scorer of a model and, with `ngram` above 0, that of an n-gram model of the run's training text."""
    sizes: dict[str, int] = {'batch_size': options.batch_size, 'length': options.length}
    scorers: list[Scorer] = [open_scorer(model, checkpoint=options.checkpoint, **sizes)]
    return [*scorers, ngram_scorer_of_run(Path(model), options.ngram)] if options.ngram else scorers


def score_text_files(model: Path, files: str, options: ScoreOptions) -> dict[str, Any]:
    """Prints and returns the perplexity of whole text files; the arguments are as for `score_problem`."""
    names = ('train_files', 'published', 'output', 'description', 'delimiter', 'seed', 'empty_prompt')
    given = {f'--{name}': getattr(options, name) for name in names} | {'--shots': any(options.shots)}
    if unused := [flag for flag, value in given.items() if value]:
        raise InputError(f'{unused[0]} has no effect on the problem {TEXT}, which has no questions')
    check_fields(TEXT, ('detokenizer', 'stride'), options.fields)
    stride, detokenizer = options.fields.get('stride', '0'), options.fields.get('detokenizer', 'none')
    if not stride.isdecimal():
        raise InputError(f'--set stride={stride}: it must be a whole number, at least 0')
    scorers = open_scorers(model, options)
    found = {
        scorer.name: measure_texts(scorer, files, detokenizer=detokenizer, stride=int(stride), limit=options.limit)
        for scorer in scorers
    }
    columns = list(next(iter(found.values())))
    rows = [('', *found)] + [(one, *(f'{values[one]:.6g}' for values in found.values())) for one in columns]
    print('\n'.join(aligned(rows)), flush=True)
    settings = {'problem': TEXT, 'files': files, 'detokenizer': detokenizer, 'stride': int(stride)}
    settings |= {'limit': options.limit, 'checkpoint': options.checkpoint}
    return settings | {'rule': scorers[0].rule, 'longest': scorers[0].longest, 'results': found}


def check_fields(name: str, known: Sequence[str], given: Mapping[str, str]) -> None:
    """Raises InputError if a field is given that the problem's reader does not have."""
    for field in given:
        if field not in known:
            fields = f'the fields {", ".join(known)}' if known else 'no fields'
            raise InputError(f'--set {field}: the problem {name} has {fields}')


def read_published(files: str) -> dict[str, dict[str, float]]:
    """Returns published accuracies by paradigm: the numbers of each JSON line by its 'UID'.

    Raises:
        InputError: a line has no 'UID'.
    """
    found: dict[str, dict[str, float]] = {}
    for path in find_files(files):
        for row, where in read_json_lines(path):
            if not isinstance(row, dict) or 'UID' not in row:
                raise InputError(f"{where}: no field 'UID'")
            numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
            found[row['UID']] = {key: float(value) for key, value in numbers.items() if not isinstance(value, bool)}
    return found


def first_questions(problem: Problem, files: str, options: ScoreOptions) -> dict[int, Question]:
    """Returns the questions of the files by number, or the first `limit` of each file; raises InputError without any.

    Numbers count all questions, so `limit` does not change a question's examples.
    """
    counts: dict[str, int] = {}
    kept = {}
    for number, question in enumerate(problem.read(files, options.fields)):
        file = question.where.partition(': ')[0]
        counts[file] = counts.get(file, 0) + 1
        if not options.limit or counts[file] <= options.limit:
            kept[number] = question
    if not kept:
        raise InputError(f'{files}: no questions found')
    return kept


def print_progress(name: str, shots: int, total: int, done: int) -> None:
    """Prints how many questions are answered."""
    print(f'{name}: {done:,} of {total:,} questions with {shots} examples', flush=True)


def table_of(scorer: Scorer, by_shots: Mapping[int, Mapping[str, Any]]) -> str:
    """Returns a table of one model's results: a row per number of examples and measure."""
    rows = [('shots', 'fitted', 'measure', 'accuracy', 'standard error', 'questions', 'ties')]
    for count, found in by_shots.items():
        for name, values in found.items():
            if isinstance(values, dict) and 'accuracy' in values:
                error = '-' if values['standard_error'] is None else f'{100 * values["standard_error"]:.2f} %'
                accuracy = f'{100 * values["accuracy"]:.2f} %'
                ties, fitted = values.get('ties', '-'), f'{found["examples"]:.1f}'
                rows.append((str(count), fitted, name, accuracy, error, str(values['questions']), str(ties)))
    lines = [scorer.name, *aligned(rows)]
    first = next(iter(by_shots.values()))
    if 'chance' in first:
        lines.append(f'chance: {100 * first["chance"]:.2f} %')
    if first['with_unknown_tokens']:
        lines.append(f'questions with tokens that the vocabulary lacks: {first["with_unknown_tokens"]}')
    for count, found in by_shots.items():
        for name, accuracy in found.get('by_field', {}).items():
            lines.append(f'{name} with {count} examples: {100 * accuracy:.2f} %')
        if 'perplexity' in found:
            lines.append(f'perplexity of the answer with {count} examples: {found["perplexity"]:.2f}')
    return '\n'.join(lines)


def published_table(
    found: Mapping[str, Mapping[int, Mapping[str, Any]]], theirs: Mapping[str, Mapping[str, float]]
) -> str:
    """Returns a table of accuracies in percent by paradigm, with their means: ours with the fewest examples, then the
    published ones.
    """
    columns = list(dict.fromkeys(name for row in theirs.values() for name in row))
    ours = {}
    for name, by_shots in found.items():
        fewest = min(by_shots)
        ours[f'{name}, {fewest} examples' if fewest else name] = by_shots[fewest].get('by_paradigm', {})
    cells: dict[str, list[float | None]] = {
        name: [*(groups[name] for groups in ours.values()), *(theirs[name].get(column) for column in columns)]
        for name in theirs
        if all(name in groups for groups in ours.values())
    }
    by_column = [[cell for cell in column if cell is not None] for column in zip(*cells.values(), strict=True)]
    means = [sum(column) / len(column) if column else None for column in by_column]
    rows = [('paradigm', *ours, *columns)]
    for name, values in [*cells.items(), (f'mean of {len(cells)}', means)]:
        rows.append((name, *('-' if value is None else f'{100 * value:.1f}' for value in values)))
    return '\n'.join(aligned(rows))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows of cells as lines with aligned columns."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ['  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

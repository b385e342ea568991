"""Writes arithmetic problems in GPT-3's wording, without the problems of given test files.

    python scripts/make_arithmetic.py --output data/arithmetic --without 'data/gpt3_synthetic_tasks/*.jsonl'

Writes one file of JSON lines per kind of problem (Brown et al. 2020, arXiv 2005.14165, section 3.9.1): two- and
three-digit addition and subtraction, and two operations on three one-digit numbers. A row has 'context' and
'completion' like the test files, such as '\\n\\nQ: What is 98 plus 45?\\n\\nA:' and ' 143'. Its 'text', for training,
is this problem alone (in 90 % of the rows) or after 1 to 8 others. Test problems are left out, also with their first
two numbers swapped. Half of the rows are two-digit additions. The last line of output is one JSON object: the number
of different test problems read, and of different problems per file.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import operator
import re
import sys
from collections.abc import Iterator

import numpy as np
from absl import flags

from efficient_attention.atomic_files import atomic_file
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_output
from efficient_attention.errors import InputError, require

OPERATIONS = {'+': operator.add, '-': operator.sub, '*': operator.mul}
WORDS = {'plus': '+', 'minus': '-'}
KINDS = {  # name of the file -> operation in words and bound of its numbers, or two operations on one-digit numbers
    'two_digit_addition': ('plus', 100),
    'two_digit_subtraction': ('minus', 100),
    'three_digit_addition': ('plus', 1000),
    'three_digit_subtraction': ('minus', 1000),
    'single_digit_three_ops': (),
}
EASIEST, SHARE = 'two_digit_addition', 0.5  # this file has half of the rows; the others have as many as each other
QUESTION = re.compile(r'What is (?:(\d+) (plus|minus) (\d+)|\((\d) ([-+*]) (\d)\) ([-+*]) (\d))\?')
ALONE = 0.9  # share of the training texts with one problem
MOST_EXAMPLES = 8  # most problems before the last one of a training text
Problem = tuple[str, int]  # what is asked, such as '98 plus 45', and the answer


def main() -> None:
    """Reads the flags, writes the files, and prints what was written."""
    options = define_flags()
    parse_flags(sys.argv, ('output',), options=options)
    require(options.rows >= 8, '--rows', options.rows, 'at least 8')
    left_out = read_problems(options.without) if options.without else set()
    different: dict[str, int] = {}
    for place, kind in enumerate(KINDS):
        rng = np.random.default_rng((options.seed, place))
        problems = drawn_problems(kind, rng, left_out)
        share = SHARE if kind == EASIEST else (1 - SHARE) / (len(KINDS) - 1)
        rows = with_texts([row_of(next(problems)) for _ in range(round(share * options.rows))], rng)
        with atomic_file(options.output / f'{kind}.jsonl') as partial:
            partial.write_text(''.join(f'{json.dumps(row)}\n' for row in rows), encoding='utf-8')
        different[kind] = len({row['context'] for row in rows})
    print(json.dumps({'test_problems': len(left_out), 'different': different}))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_output('Folder for the files.', options=options)
    without = 'Test files (JSON lines) whose problems are left out; paths or globs, comma-separated.'
    flags.DEFINE_string('without', '', without, flag_values=options)
    flags.DEFINE_integer('rows', 400_000, 'Rows of all files together.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Random seed.', lower_bound=0, flag_values=options)
    return options


def read_problems(globs: str) -> set[tuple[str, ...]]:
    """Returns the problems of test files, as `problem_key` returns them; raises InputError if there are none."""
    from efficient_attention.data.sources.json_files import json_documents
    from efficient_attention.data.sources.text_files import find_files

    texts = json_documents(find_files(globs), 'context')
    keys = {key for text in texts if (key := problem_key(text)) is not None}
    if not keys:
        raise InputError(f'--without {globs!r}: no context has a question such as "What is 98 plus 45?"')
    return keys


def problem_key(text: str) -> tuple[str, ...] | None:
    """Returns what identifies the problem of a text, whatever the order of its first two numbers; None if there is
    none."""
    match = QUESTION.search(text)
    if match is None:
        return None
    first, word, second, *three = match.groups()
    if first is not None:
        return (WORDS[word], *sorted((first, second), key=int))
    first, sign, second, *rest = three
    return (sign, *sorted((first, second)), *rest)


def drawn_problems(kind: str, rng: np.random.Generator, left_out: set[tuple[str, ...]]) -> Iterator[Problem]:
    """Yields random problems of a kind for ever, without those of `left_out`."""
    while True:
        if KINDS[kind]:
            word, bound = KINDS[kind]
            first, second = rng.integers(bound, size=2).tolist()
            problem = f'{first} {word} {second}', OPERATIONS[WORDS[word]](first, second)
        else:
            first, second, third = rng.integers(10, size=3).tolist()
            inner, outer = rng.choice(list(OPERATIONS), size=2).tolist()
            value = OPERATIONS[outer](OPERATIONS[inner](first, second), third)
            problem = f'({first} {inner} {second}) {outer} {third}', value
        if problem_key(row_of(problem)['context']) not in left_out:
            yield problem


def row_of(problem: Problem) -> dict[str, str]:
    """Returns the context and the completion of a problem."""
    asked, answer = problem
    return {'context': f'\n\nQ: What is {asked}?\n\nA:', 'completion': f' {answer}'}


def with_texts(rows: list[dict[str, str]], rng: np.random.Generator) -> list[dict[str, str]]:
    """Returns the rows with a training text each: the row's problem after 0 to 8 random problems of the file."""
    problems = [row['context'] + row['completion'] for row in rows]
    counts = np.where(rng.random(len(rows)) < ALONE, 0, rng.integers(1, MOST_EXAMPLES + 1, len(rows)))
    return [
        row | {'text': ''.join(problems[one] for one in [*rng.integers(len(rows), size=count), place])}
        for place, (row, count) in enumerate(zip(rows, counts, strict=True))
    ]


if __name__ == '__main__':
    run_command(main)

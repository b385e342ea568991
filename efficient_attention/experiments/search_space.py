"""Reads the ranges of config fields that a sweep searches, and draws the field values of each trial.

A range is `<group>.<field>=` and then one of:

    log(1e-5,1e-3)    a float, uniform in its logarithm
    uniform(0,0.3)    a float
    int(1,8)          a whole number, both ends included
    2,4,6             one of these values; commas inside brackets do not separate values
"""

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from efficient_attention.config.dict_conversion import default_fields, unknown_field_error
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, is_number, is_whole_number

INTERVALS = ('log', 'uniform', 'int')
CHOICE = 'choice'
MOST_GRID_TRIALS = 10_000
DIGITS = 4  # significant digits of a drawn float, so that a user can type it


class SearchedField(NamedTuple):
    """A config field with the values that a sweep may give it.

    Attributes:
        name: dotted name, such as 'optimizer.learning_rate'.
        kind: one of `INTERVALS`, or `CHOICE`.
        values: the two ends of the interval, or all choices.
    """

    name: str
    kind: str
    values: tuple[Any, ...]


Fields = dict[str, Any]  # {dotted name: value} of one trial


def parse_search(texts: Sequence[str], config: Mapping[str, Any]) -> tuple[SearchedField, ...]:
    """Returns the searched fields from texts such as 'model.layers=2,4,6'.

    Args:
        texts: one text per field.
        config: the values of the config file.

    Raises:
        InputError: a field is unknown, is named twice or is train.seed; or a range is empty, unreadable or of a wrong
            type.
    """
    if not texts:
        raise InputError("--search is missing; give one per field, such as --search 'model.layers=2,4,6'")
    known = {
        f'{group}.{name}': value
        for group, fields in default_fields(RunConfig).items()
        if isinstance(fields, dict)
        for name, value in fields.items()
    }
    found: list[SearchedField] = []
    for text in texts:
        name, has_values, values = (part.strip() for part in text.partition('='))
        if name not in known:
            raise InputError(f'--search: {unknown_field_error(name, known)}')
        if name == 'train.seed':
            raise InputError('--search names train.seed, which --seeds sets; leave it out')
        if name in [one.name for one in found]:
            raise InputError(f'--search names {name} twice')
        if not has_values or not values:
            raise InputError(f'--search {text}: no values; write for example {name}=1,2 or {name}=log(1e-5,1e-3)')
        field = parse_values(name, values)
        group, _, own = name.partition('.')
        now = config.get(group, {}).get(own)
        check_type(field, known[name] if now is None else now)
        found.append(field)
    return tuple(found)


def parse_values(name: str, text: str) -> SearchedField:
    """Returns a searched field from the text of its values."""
    if match := re.fullmatch(rf'({"|".join(INTERVALS)})\((.*)\)', text):
        kind, ends = match[1], [parse_value(part) for part in split_at_commas(match[2])]
        is_right = is_whole_number if kind == 'int' else is_number
        if len(ends) != 2 or not all(map(is_right, ends)) or not ends[0] < ends[1]:
            example = {'log': 'log(1e-5,1e-3)', 'uniform': 'uniform(0,0.3)', 'int': 'int(1,8)'}[kind]
            numbers = 'whole numbers' if kind == 'int' else 'numbers'
            raise InputError(
                f'--search {name}={text}: write two {numbers} in brackets, the smaller one first, as in {example}'
            )
        if not all(map(math.isfinite, ends)) or (kind == 'log' and ends[0] <= 0):
            raise InputError(f'--search {name}={text}: the ends must be finite{", above 0" if kind == "log" else ""}')
        return SearchedField(name, kind, tuple(ends))
    choices = tuple(parse_value(part) for part in split_at_commas(text))
    if len({*map(repr, choices)}) < len(choices):
        raise InputError(f'--search {name}={text}: a value occurs twice')
    return SearchedField(name, CHOICE, choices)


def split_at_commas(text: str) -> list[str]:
    """Returns the parts of a text between commas outside of brackets."""
    parts, depth = [''], 0
    for letter in text:
        depth += (letter in '([') - (letter in ')]')
        if letter == ',' and depth == 0:
            parts.append('')
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def parse_value(text: str) -> Any:
    """Returns a Python literal such as 2, 1e-3 or (1, 2), a truth value, or the text itself."""
    if text.lower() in ('true', 'false'):
        return text.lower() == 'true'
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_type(field: SearchedField, example: Any) -> None:
    """Raises InputError if a value has another type than `example`, a value of the same config field."""
    kinds = {bool: 'true or false', int: 'a whole number', float: 'a number', str: 'a text'}
    word = kinds.get(type(example))
    if word is None:
        return
    if type(example) is int and field.kind in ('log', 'uniform'):
        raise InputError(
            f'--search {field.name}: {field.kind}(...) draws numbers with a fraction; the field is {word}, so write '
            'int(1,8) or a list such as 2,4,6'
        )
    for value in field.values:
        is_right = {
            bool: isinstance(value, bool),
            int: is_whole_number(value),
            float: is_number(value),
            str: isinstance(value, str),
        }[type(example)]
        if not is_right:
            raise InputError(f'--search {field.name}: {value!r} does not fit; the field is {word}')


def grid_size(search: Sequence[SearchedField]) -> int:
    """Returns the number of trials of a full grid.

    Raises:
        InputError: a field is an interval of floats, or the grid has more than `MOST_GRID_TRIALS` trials.
    """
    size = 1
    for field in search:
        if field.kind in ('log', 'uniform'):
            raise InputError(f'--sampler grid needs a list of values of {field.name}, not {field.kind}')
        size *= field.values[1] - field.values[0] + 1 if field.kind == 'int' else len(field.values)
    if size > MOST_GRID_TRIALS:
        raise InputError(f'--sampler grid: {size:,} trials; at most {MOST_GRID_TRIALS:,}: search fewer values')
    return size


def grid_points(search: Sequence[SearchedField]) -> list[Fields]:
    """Returns the fields of all trials of a grid; the errors are the same as for `grid_size`."""
    grid_size(search)
    listed = [range(one.values[0], one.values[1] + 1) if one.kind == 'int' else one.values for one in search]
    return [dict(zip([field.name for field in search], point, strict=True)) for point in itertools.product(*listed)]


def random_point(search: Sequence[SearchedField], number: int) -> Fields:
    """Returns the randomly drawn fields of a trial; they depend only on the ranges and the trial's number."""
    draws = np.random.default_rng([0, number])
    point = {}
    for name, kind, values in search:
        if kind == CHOICE:
            point[name] = values[draws.integers(len(values))]
        elif kind == 'int':
            point[name] = int(draws.integers(values[0], values[1], endpoint=True))
        elif kind == 'log':
            point[name] = rounded(math.exp(draws.uniform(math.log(values[0]), math.log(values[1]))))
        else:
            point[name] = rounded(draws.uniform(*values))
    return point


def rounded(value: float) -> float:
    """Returns a float with `DIGITS` significant digits."""
    return float(f'{value:.{DIGITS}g}')


def suggested_point(search: Sequence[SearchedField], trial: Any) -> Fields:
    """Returns the field values that Optuna suggests for a trial; for a fixed trial, the values that it holds.

    The argument `trial` is a trial or a fixed trial of Optuna.
    """
    point = {}
    for name, kind, values in search:
        if kind == CHOICE:
            texts = [repr(value) for value in values]  # Optuna's choices must be numbers or texts
            point[name] = values[texts.index(trial.suggest_categorical(name, texts))]
        elif kind == 'int':
            point[name] = trial.suggest_int(name, *values)
        else:
            point[name] = rounded(trial.suggest_float(name, *values, log=kind == 'log'))
    return point

"""Checks of single fields that the config groups share: among known values, within an interval."""

import math

from efficient_attention.errors import InputError


def check_one_of(field: str, value: str, known: tuple[str, ...]) -> None:
    """Raises InputError unless `value` is one of `known`; names the field ('group.name'), its value and the known."""
    if value not in known:
        raise InputError(f'{field} is {value!r}; known: {", ".join(known)}')


def check_within(
    field: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    low_is_open: bool = False,
    high_is_open: bool = False,
) -> None:
    """Raises InputError unless `value` is finite and lies between `low` and `high`; an open end is itself excluded."""
    is_high_enough = value > low if low_is_open else value >= low
    is_low_enough = value < high if high_is_open or math.isinf(high) else value <= high
    if not (is_high_enough and is_low_enough):  # nan fails both
        interval = f'{"(" if low_is_open else "["}{low}, {high}{")" if high_is_open or math.isinf(high) else "]"}'
        raise InputError(f'{field} is {value}; it must lie in {interval}')

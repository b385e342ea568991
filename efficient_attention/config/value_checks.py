"""Checks of single config fields, shared by all config groups: known values and numeric intervals."""

import math

from efficient_attention.errors import InputError


def check_one_of(field: str, value: str, known: tuple[str, ...]) -> None:
    """Raises InputError unless the value of a config field is one of the known values.

    The message names the field ('group.name'), its value and the known values.
    """
    if value not in known:
        raise InputError(f'{field} is {value!r}; known: {", ".join(known)}')


def check_in_interval(
    field: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    low_is_open: bool = False,
    high_is_open: bool = False,
) -> None:
    """Raises InputError unless a number is finite and within an interval.

    The interval includes its bounds `low` and `high`, except where `low_is_open` or `high_is_open` is True.
    """
    is_high_enough = value > low if low_is_open else value >= low
    is_low_enough = value < high if high_is_open or math.isinf(high) else value <= high
    if not (is_high_enough and is_low_enough):  # NaN fails both comparisons
        bounds = describe_interval(low, high, low_is_open=low_is_open, high_is_open=high_is_open)
        is_endless = math.isinf(high) and not math.isfinite(value)
        raise InputError(f'{field} is {value}; it must be {bounds}{" and finite" if is_endless else ""}')


def describe_interval(
    low: float, high: float = math.inf, *, low_is_open: bool = False, high_is_open: bool = False
) -> str:
    """Returns an interval in words, for messages: 'at least 1', 'above 0 and at most 1', 'from 0 to 4096'."""
    if not (low_is_open or high_is_open or math.isinf(high)):
        return f'from {low} to {high}'
    least = f'{"above" if low_is_open else "at least"} {low}'
    return least if math.isinf(high) else f'{least} and {"below" if high_is_open else "at most"} {high}'

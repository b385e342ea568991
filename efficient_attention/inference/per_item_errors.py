"""Processes each item of a user's list separately, so that an error message can name the bad item."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from efficient_attention.errors import InputError

Item = TypeVar('Item')
Found = TypeVar('Found')
SHOWN = 40  # number of characters of a bad item that an error message shows


def map_items(items: Sequence[Item], read: Callable[[Item], Found]) -> list[Found]:
    """Returns `read(item)` for each item; if there are several items, the message of an InputError names the number of
    the bad item.
    """
    found = []
    for number, item in enumerate(items, start=1):
        try:
            found.append(read(item))
        except InputError as error:
            if len(items) == 1:
                raise
            raise InputError(f'item {number} of {len(items)}: {error}') from None
    return found


def check_text(value: Any) -> None:
    """Raises InputError unless the value is a string with at least one character that is not white space."""
    if not isinstance(value, str):
        shown = f'{repr(value)[:SHOWN]} (of type {type(value).__name__})'
        raise InputError(f'{shown} is no text; give a text or a list of texts')
    if not value.strip():
        raise InputError(f'the text is {value[:SHOWN]!r}; it must not be empty')

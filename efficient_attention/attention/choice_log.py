"""Notes which backend computes each attention call while a program is traced, and which layers made the call.

A run prints these choices on one line (training/attention_line.py). Outside `recorded_choices`, each new choice is
logged.
"""

import contextlib
import contextvars
import functools
import logging
from collections.abc import Iterator
from typing import NamedTuple


class Caller(NamedTuple):
    """The part of a model that makes attention calls.

    Args:
        layers: numbers of the layers that share the call, from 0; () outside layers.
        kind: 'decoder' for the layers of an encoder-decoder's decoder, 'cross-attention', or ''.
    """

    layers: tuple[int, ...] = ()
    kind: str = ''


class Refusal(NamedTuple):
    """The reason why a backend does not support a call: the error line, and the features that the backend lacks.

    `features`, such as ('inputs of type float32',), is empty if the error names none.
    """

    message: str
    features: tuple[str, ...]


class Choice(NamedTuple):
    """The backend of one attention call: named by the caller, or chosen by 'auto'.

    Args:
        caller: the part of the model that made the call.
        pattern: the pattern as text.
        backend: the chosen backend.
        refusals: the reasons of the backends that 'auto' tried before, by backend; empty for a named backend.
    """

    caller: Caller
    pattern: str
    backend: str
    refusals: dict[str, Refusal]


_NOBODY = Caller()
_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar('caller', default=_NOBODY)
_choices: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar('choices', default=None)


def current_caller() -> Caller:
    """Returns the part of a model that is traced now; an empty `Caller` outside `calling_from`."""
    return _caller.get()


@contextlib.contextmanager
def calling_from(caller: Caller) -> Iterator[None]:
    """Names the part of a model that is traced inside this context; also usable as a decorator."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


@contextlib.contextmanager
def recorded_choices() -> Iterator[list[Choice]]:
    """Yields a list to which each choice inside this context is added; these choices are not logged."""
    choices: list[Choice] = []
    token = _choices.set(choices)
    try:
        yield choices
    finally:
        _choices.reset(token)


def note_choice(backend: str, pattern: str, refusals: dict[str, Refusal]) -> None:
    """Notes which backend computes a pattern, and why 'auto' did not take the backends before it."""
    choices = _choices.get()
    if choices is not None:
        choices.append(Choice(_caller.get(), pattern, backend, refusals))
    log_choice(backend, pattern, '; '.join(refusal.message for refusal in refusals.values()))


@functools.cache
def log_choice(backend: str, pattern: str, lacks: str) -> None:
    """Logs once for each kind of call which backend computes it, and what the backends before it lack.

    The line is worded like that of a training run, such as 'attention: dense over full'. A choice that was recorded
    first is never logged.
    """
    if _choices.get() is None:
        logging.getLogger(__name__).info('attention: %s over %s%s', backend, pattern, f' ({lacks})' if lacks else '')

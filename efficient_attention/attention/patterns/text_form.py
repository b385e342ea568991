"""Patterns as one writes them; `attention/parsing.py` reads such texts."""

import dataclasses
import re

from efficient_attention.attention.patterns.pattern import Pattern

_FILLED_IN = ('layer', 'head', 'keys')  # by `for_layer`, `for_head` and `for_keys`


def pattern_text(pattern: Pattern) -> str:
    """A pattern as one writes it, such as 'causal & window(128)'; without what a layer, head or length fills in."""
    if pattern.sign:
        left, right = (
            f'({pattern_text(part)})' if needs_brackets else pattern_text(part)
            for part, needs_brackets in _operands(pattern)
        )
        return f'{left} {pattern.sign} {right}'
    name = re.sub('(?<=[a-z])(?=[A-Z])', '_', type(pattern).__name__).lower()
    values = [pattern_text(part) for part in pattern.parts()] or _written_fields(pattern)
    return f'{name}({", ".join(values)})' if values else name


def _operands(pattern: Pattern) -> list[tuple[Pattern, bool]]:
    """Both parts of a combination, and whether each stands in brackets: signs of one kind are read from the left."""
    left, right = pattern.parts()
    return [(left, left.sign not in ('', pattern.sign)), (right, right.sign != '')]


def _written_fields(pattern: Pattern) -> list[str]:
    """The fields of a pattern that are no defaults: those without a default as they are, the others by name."""
    written: list[str] = []
    for field in dataclasses.fields(pattern):
        value = getattr(pattern, field.name)
        if field.default is dataclasses.MISSING:
            written += map(str, value) if isinstance(value, tuple) else [str(value)]
        elif field.name not in _FILLED_IN and value != field.default:
            written.append(f'{field.name}={value}')
    return written

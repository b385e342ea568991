"""The check of the sizes that a pattern is made with."""

from efficient_attention.attention.patterns.pattern import Pattern
from efficient_attention.errors import require, require_at_least

LARGEST = 2**31 - 1  # positions are int32 where JAX computes them


def check_sizes(minimum: int, pattern: Pattern, **sizes: int) -> None:
    """Raises an InputError that names the pattern and an argument that is no whole number from `minimum` on."""
    for name, size in sizes.items():
        what = f'{type(pattern).__name__}: {name}'
        require_at_least(minimum, what, size)
        require(size <= LARGEST, what, size, f'at most {LARGEST}')

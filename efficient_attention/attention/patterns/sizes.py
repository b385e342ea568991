"""The check of the sizes that a pattern is made with."""

from efficient_attention.attention.patterns.pattern import Pattern
from efficient_attention.errors import InputError, is_whole_number

LARGEST = 2**31 - 1  # positions are int32 where JAX computes them


def require_at_least(minimum: int, pattern: Pattern, **sizes: int) -> None:
    """Raises an InputError that names the pattern and an argument that is no whole number from `minimum` on."""
    for name, size in sizes.items():
        what = f'{type(pattern).__name__}: {name} is {size!r}; it must be'
        if not is_whole_number(size):
            raise InputError(f'{what} a whole number')
        if not minimum <= size <= LARGEST:
            raise InputError(f'{what} at {f"least {minimum}" if size < minimum else f"most {LARGEST}"}')

"""Decoding with LSH attention, which is refused.

Which earlier keys share a chunk with a query depends on the hashes of all tokens of the row, later ones too, so no
token-by-token result can equal the parallel one. `LSH.check_decoding` says so to whoever makes a `CacheSpec`.
"""

from typing import Any, NoReturn

from efficient_attention.attention.mechanism import lack


def init(*_: Any) -> NoReturn:
    """Raises NotImplementedError."""
    raise lack('lsh', 'cache')


def decode(*_: Any) -> NoReturn:
    """Raises NotImplementedError."""
    raise lack('lsh', 'cache')

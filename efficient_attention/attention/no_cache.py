"""The cache of a mechanism that has none: its room takes these two functions, which refuse."""

from typing import Any, NoReturn

from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.mechanism import lack


def init(spec: CacheSpec, *_: Any) -> NoReturn:
    """Raises NotImplementedError that names the mechanism."""
    raise lack(spec.mechanism.name, 'cache')


def decode(spec: CacheSpec, *_: Any) -> NoReturn:
    """Raises NotImplementedError that names the mechanism."""
    raise lack(spec.mechanism.name, 'cache')

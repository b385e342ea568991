"""Makes requests from keyword arguments, as `attend` does."""

from typing import Any

from jax import Array

from efficient_attention.attention import attend
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.request import CallOptions, Request


def make_request(query: Array, key: Array, value: Array, mechanism: Mechanism, **keywords: Any) -> Request:
    """Returns the checked request that `attend` makes of these arguments."""
    return attend.make_request(query, key, value, mechanism, CallOptions(**keywords))

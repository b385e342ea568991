"""A loop over arrays whose steps are computed once more for their gradient, so that nothing of a step is kept."""

from collections.abc import Callable
from typing import Any

import jax


def map_again(compute: Callable[[Any], Any], arrays: Any) -> Any:
    """The results of `compute` over the leading axis of arrays; for their gradient each is computed once more."""
    return jax.lax.map(jax.checkpoint(compute, prevent_cse=False), arrays)

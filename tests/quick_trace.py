"""Makes tracing faster: a traced array answers at once when Flax asks for its sharding.

Flax asks at every random key that a constructor draws, and catches the error that JAX raises. JAX first writes the
operations that led to the array into the error's text, which takes a third of the time of tracing a constructor.
"""

import jax
from jax.core import Tracer


def has_none(_: Tracer) -> None:
    """Raises AttributeError, as `Tracer.sharding` does."""
    raise AttributeError("The 'sharding' attribute is not available on a traced array.")


def shorten() -> None:
    """Replaces `Tracer.sharding` in this process, unless traced arrays of the installed JAX have a sharding."""
    if not has_sharding():
        Tracer.sharding = property(has_none)


def has_sharding() -> bool:
    """Returns whether a traced array of the installed JAX has a sharding."""
    answers = []
    jax.eval_shape(lambda x: answers.append(hasattr(x, 'sharding')) or x, 0.0)
    return answers[0]

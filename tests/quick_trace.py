"""A short answer where Flax asks a traced array for its sharding, as it does at every key that a constructor draws.

Flax catches the error that JAX answers with, into whose text JAX first writes the operations that led to the array: a
third of the time in which the construction of a model is traced.
"""

import jax
from jax.core import Tracer


def has_none(_: Tracer) -> None:
    """Raises AttributeError, as `Tracer.sharding` does."""
    raise AttributeError("The 'sharding' attribute is not available on a traced array.")


def shorten() -> None:
    """From here on in this process; a JAX whose traced arrays have a sharding is left as it is."""
    if not has_sharding():
        Tracer.sharding = property(has_none)


def has_sharding() -> bool:
    """Whether a traced array answers with a sharding."""
    answers = []
    jax.eval_shape(lambda x: answers.append(hasattr(x, 'sharding')) or x, 0.0)
    return answers[0]

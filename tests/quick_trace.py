"""A short answer where Flax asks a traced array for its sharding, as it does at every key that a constructor draws.

Flax catches the error that JAX answers with, into whose text JAX first writes the operations that led to the array: a
third of the time in which the construction of a model is traced.
"""

from jax.core import Tracer


def has_none(_: Tracer) -> None:
    """Raises AttributeError, as `Tracer.sharding` does."""
    raise AttributeError("The 'sharding' attribute is not available on a traced array.")


def shorten() -> None:
    """From here on in this process."""
    Tracer.sharding = property(has_none)

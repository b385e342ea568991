"""The interface of objectives to the loops: sums over examples, divided once by sums of weights.

Sums add over devices, micro-batches and evaluation batches; means do not. So an objective gives sums alone, and
whoever has added all of them divides.
"""

import abc
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

Batch = dict[str, Array]
Sums = dict[str, dict[str, Array]]  # term -> metric -> sum over the batch


class Objective(abc.ABC):
    """A loss made of terms, each a weighted mean over its own examples; the terms' means are added."""

    @abc.abstractmethod
    def weights(self, batch: Batch) -> dict[str, Array]:
        """Each term's float32 sum of weights over the batch; needs no model."""

    @abc.abstractmethod
    def sums(self, model: Any, batch: Batch, carry: Any, rng: Array | None, step: Array | int = 0) -> tuple[Sums, Any]:
        """Each term's weighted sums over the batch, 'loss' among them, and what the next batch gets as its `carry`.

        Args:
            model: what the losses are of.
            batch: arrays [rows, ...].
            carry: what the batch before handed on, or `initial_carry`; None where nothing is handed on.
            rng: a key for each row; turns dropout on.
            step: training step, which decides what random attention mechanisms draw.
        """

    def initial_carry(self, rows: int) -> Any:  # noqa: ARG002  most steps know nothing of one another
        """What the first step of a stream of batches gets from before: a tree of arrays [rows, ...], or None."""
        return None


class OutputObjective(Objective):
    """An objective that goes by what the model says of each row, which predictions are made from as well."""

    @abc.abstractmethod
    def sums_of(self, outputs: Mapping[str, Array], batch: Batch) -> Sums:
        """Each term's weighted sums from the outputs of a model, by name [B, ...]."""


def total_loss(sums: Sums, weights: dict[str, Array]) -> Array:
    """The sum of the terms' mean losses; a term without any weight counts 0."""
    return sum((mean(sums[term]['loss'], weights[term]) for term in sums), jnp.float32(0.0))


def mean_metrics(sums: Sums, weights: dict[str, Array]) -> dict[str, Array]:
    """Each metric divided by its term's weights, named '<term>_<metric>'; terms without any weight are left at 0."""
    return {
        f'{term}_{metric}': mean(value, weights[term])
        for term, values in sums.items()
        for metric, value in values.items()
    }


def mean(total: Float[Array, ''], weight: Float[Array, '']) -> Float[Array, '']:
    """`total` / `weight`, which may be below 1; without any weight `total` itself, which is then 0."""
    return total / jnp.where(weight > 0.0, weight, 1.0)

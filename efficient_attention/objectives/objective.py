"""The interface of objectives to the loops: sums over examples, divided once by sums of weights.

Sums add over devices, micro-batches and evaluation batches; means do not. So an objective gives sums alone, and
whoever has added all of them divides.

What the optimizer moves is named here as well (`Trained`): a model's parameters, an objective's extra arrays (`BESIDE`)
and the scores of pruning (`SCORES`). `joined` makes one tree of them, `separate` takes it apart.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

Batch = dict[str, Array]
Sums = dict[str, dict[str, Array]]  # term -> metric -> sum over the batch
BESIDE = 'beside'  # what the paths of an objective's own arrays begin with; those of the model begin with its parts
SCORES = 'scores'  # likewise those of pruning


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

    def factor(self, term: str) -> float:  # noqa: ARG002  the terms of most objectives count alike
        """What a term's mean is multiplied by in the loss; its metrics stay as they are."""
        return 1.0

    def metric_names(self, of_task: frozenset[str]) -> frozenset[str]:
        """The names of the metrics of an evaluation, from those that the task has for its own objective."""
        return of_task

    def initial_beside(self, rng: Array) -> Any:  # noqa: ARG002  most objectives train the model alone
        """A tree of arrays that are trained beside the model's and are no part of it, or None."""
        return None

    def with_beside(self, beside: Any) -> Self:  # noqa: ARG002
        """The objective with the arrays of `initial_beside` as they are now."""
        return self

    def initial_carry(self, rows: int) -> Any:  # noqa: ARG002  most steps know nothing of one another
        """What the first step of a stream of batches gets from before: a tree of arrays [rows, ...], or None."""
        return None


class OutputObjective(Objective):
    """An objective that goes by what the model says of each row, which predictions are made from as well."""

    @abc.abstractmethod
    def sums_of(self, outputs: Mapping[str, Array], batch: Batch) -> Sums:
        """Each term's weighted sums from the outputs of a model, by name [B, ...]."""

    def outputs_and_sums(self, model: Any, batch: Batch) -> tuple[Mapping[str, Array], Sums]:
        """What the model says of each row, without dropout, and `sums_of` it."""
        outputs = model.outputs(batch)
        return outputs, self.sums_of(outputs, batch)


def total_loss(sums: Sums, weights: dict[str, Array], factor: Callable[[str], float] = lambda _: 1.0) -> Array:
    """The sum of the terms' mean losses, each times its factor; a term without any weight counts 0."""
    means = ((mean(sums[term]['loss'], weights[term]), factor(term)) for term in sums)
    return sum((loss if times == 1.0 else loss * times for loss, times in means), jnp.float32(0.0))


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


def weighted_sums(
    losses: Float[Array, '*b'], is_correct: Bool[Array, '*b'], weights: Float[Array, '*b']
) -> dict[str, Array]:
    """Sums over all examples: 'loss' and 'accuracy' (correct ones), each example times its weight."""
    return {'loss': (losses * weights).sum(), 'accuracy': (is_correct.astype(jnp.float32) * weights).sum()}


def is_best(logits: Float[Array, '*b C'], labels: Int[Array, '*b']) -> Bool[Array, '*b']:
    """Whether the largest logit of each example is that of its label."""
    return logits.argmax(axis=-1) == labels


class Trained(NamedTuple):
    """What the optimizer moves; None where there is none."""

    params: Any  # of the model
    beside: Any = None  # extra arrays of an objective, such as maps between two widths
    scores: Any = None  # of pruning


def joined(params: Any, beside: Any = None, scores: Any = None) -> Any:
    """Returns the parts as one tree; the parameters alone where the others are None."""
    others = {BESIDE: beside, SCORES: scores}
    others = {name: tree for name, tree in others.items() if tree is not None}
    return params | others if others else params


def separate(trained: Any) -> Trained:
    """Returns the parts of what `joined` gave."""
    if not isinstance(trained, dict) or not {BESIDE, SCORES} & set(trained):
        return Trained(trained)
    params = {name: group for name, group in trained.items() if name not in (BESIDE, SCORES)}
    return Trained(params, trained.get(BESIDE), trained.get(SCORES))

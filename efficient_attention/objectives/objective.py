"""Defines the interface of objectives: losses and metrics as weighted sums, which training and evaluation loops divide
by the sums of weights.

Sums add up over devices, micro-batches and evaluation batches; means do not. So an objective returns only sums. The
training or evaluation loop divides after adding all sums.

This file also names the arrays that the optimizer updates (`TrainableParts`): a model's parameters, an objective's
extra arrays (`BESIDE`) and the scores of pruning (`SCORES`). `combine_trainable_parts` makes one tree of them,
`split_trainable_parts` splits it.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

Batch = dict[str, Array]
Sums = dict[str, dict[str, Array]]  # loss term -> metric -> sum over the batch
BESIDE = 'beside'  # path prefix of an objective's extra arrays; no path of a model parameter begins like this
SCORES = 'scores'  # path prefix of pruning scores


class Objective(abc.ABC):
    """A training loss: a sum of terms, each a weighted mean over its examples."""

    @abc.abstractmethod
    def weights(self, batch: Batch) -> dict[str, Array]:
        """Returns the total weight of each loss term's examples, in float32. The training and evaluation loops divide
        the term's sums by this weight.

        The weights do not depend on the model.
        """

    @abc.abstractmethod
    def sums(self, model: Any, batch: Batch, carry: Any, rng: Array | None, step: Array | int = 0) -> tuple[Sums, Any]:
        """Returns each loss term's weighted sums over the batch, including 'loss', and the state to carry to the next
        batch.

        Args:
            model: the model to evaluate.
            batch: arrays [rows, ...].
            carry: the result of the previous batch, or `initial_carry`; None if nothing is carried.
            rng: a PRNG key per row; enables dropout.
            step: training step, which determines the samples of random mechanisms.
        """

    def loss_factor(self, term: str) -> float:  # noqa: ARG002  in most objectives all terms have factor 1
        """Returns the factor by which a loss term's mean is multiplied in the total loss; metrics are not
        multiplied."""
        return 1.0

    def metric_names(self, of_task: frozenset[str]) -> frozenset[str]:
        """Returns the names of the evaluation metrics of this objective.

        `of_task` are the names of the metrics with the task's usual objective.
        """
        return of_task

    def initial_auxiliary_params(self, rng: Array) -> Any:  # noqa: ARG002  most objectives have no extra arrays
        """Returns the initial values of the objective's own trained arrays, such as projections, or None if it has
        none."""
        return None

    def with_auxiliary_params(self, beside: Any) -> Self:  # noqa: ARG002
        """Returns the objective with the given values of its own trained arrays, which are no parameters of the
        model."""
        return self

    def initial_carry(self, rows: int) -> Any:  # noqa: ARG002  most objectives carry nothing
        """Returns the arrays carried into the first batch of a stream: a tree of arrays [rows, ...], or None."""
        return None


class OutputObjective(Objective):
    """An objective that is computed only from the model's outputs for each row, as predictions are."""

    @abc.abstractmethod
    def sums_of(self, outputs: Mapping[str, Array], batch: Batch) -> Sums:
        """Returns the weighted sums of each loss term, computed from the model's outputs: arrays [rows, ...] by
        name.
        """

    def outputs_and_sums(self, model: Any, batch: Batch) -> tuple[Mapping[str, Array], Sums]:
        """Returns the model's outputs per row, without dropout, and the loss terms' weighted sums."""
        outputs = model.outputs(batch)
        return outputs, self.sums_of(outputs, batch)


def total_loss(sums: Sums, weights: dict[str, Array], factor: Callable[[str], float] = lambda _: 1.0) -> Array:
    """Returns the sum of the loss terms' means, each times its factor; a term with total weight 0 counts 0."""
    means = ((mean(sums[term]['loss'], weights[term]), factor(term)) for term in sums)
    return sum((loss if times == 1.0 else loss * times for loss, times in means), jnp.float32(0.0))


def mean_metrics(sums: Sums, weights: dict[str, Array]) -> dict[str, Array]:
    """Returns the mean of each metric, named '<term>_<metric>'; 0 where the term's total weight is 0."""
    return {
        f'{term}_{metric}': mean(value, weights[term])
        for term, values in sums.items()
        for metric, value in values.items()
    }


def mean(total: Float[Array, ''], weight: Float[Array, '']) -> Float[Array, '']:
    """Returns `total` / `weight`; for weight 0 returns `total`, which is then 0. A weight may be below 1."""
    return total / jnp.where(weight > 0.0, weight, 1.0)


def weighted_sums(
    losses: Float[Array, '*b'], is_correct: Bool[Array, '*b'], weights: Float[Array, '*b']
) -> dict[str, Array]:
    """Returns the weighted sums of losses ('loss') and of correct predictions ('accuracy') over all examples."""
    return {'loss': (losses * weights).sum(), 'accuracy': (is_correct.astype(jnp.float32) * weights).sum()}


def is_top_prediction(logits: Float[Array, '*b C'], labels: Int[Array, '*b']) -> Bool[Array, '*b']:
    """Returns whether each example's largest logit is the logit of its label."""
    return logits.argmax(axis=-1) == labels


class TrainableParts(NamedTuple):
    """The arrays that the optimizer updates, one tree per kind; None for a kind that a run lacks."""

    params: Any  # model parameters
    beside: Any = None  # extra arrays of an objective, such as projections from the student's to the teacher's width
    scores: Any = None  # pruning scores


def combine_trainable_parts(params: Any, beside: Any = None, scores: Any = None) -> Any:
    """Combines the trees of arrays that the optimizer updates into one tree.

    It is only the model parameters if there are no other arrays.
    """
    others = {BESIDE: beside, SCORES: scores}
    others = {name: tree for name, tree in others.items() if tree is not None}
    return params | others if others else params


def split_trainable_parts(trained: Any) -> TrainableParts:
    """Splits a tree made by `combine_trainable_parts` into parameters, an objective's arrays and pruning scores."""
    if not isinstance(trained, dict) or not {BESIDE, SCORES} & set(trained):
        return TrainableParts(trained)
    params = {name: group for name, group in trained.items() if name not in (BESIDE, SCORES)}
    return TrainableParts(params, trained.get(BESIDE), trained.get(SCORES))

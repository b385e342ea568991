"""One step of an evaluation as a pure function of arrays: the sums and weights of a batch, without dropout."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from efficient_attention.objectives.objective import Batch, Objective, OutputObjective, separate


def make_eval_step(graph: nnx.GraphDef, objective: Objective) -> Callable[..., tuple]:
    """A function from (parameters, batch) to the batch's sums and weights, without dropout.

    Given what the batch before handed on as a third argument, it returns what the next one gets as a third result.
    """

    def eval_step(params: Any, batch: Batch, carry: Any = None) -> tuple:
        params, beside, _ = separate(params)
        sums, carry = objective.with_beside(beside).sums(nnx.merge(graph, params), batch, carry, None)
        result = sums, objective.weights(batch)
        return result if carry is None else (*result, carry)

    return eval_step


def make_output_step(graph: nnx.GraphDef, objective: OutputObjective | None = None) -> Callable[..., tuple]:
    """A function from (parameters, batch) to sums, weights, and what the model says of each row, without dropout.

    graph: of a model with `outputs`. Without an objective there are no sums and no weights.
    """

    def output_step(params: Any, batch: Batch) -> tuple:
        params, beside, _ = separate(params)
        model = nnx.merge(graph, params)
        if objective is None:
            return {}, {}, model.outputs(batch)
        outputs, sums = objective.with_beside(beside).outputs_and_sums(model, batch)
        return sums, objective.weights(batch), outputs

    return output_step

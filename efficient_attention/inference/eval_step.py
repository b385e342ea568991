"""One step of an evaluation as a pure function of arrays: the sums and weights of a batch, without dropout."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from efficient_attention.objectives.objective import Batch, Objective


def make_eval_step(graph: nnx.GraphDef, objective: Objective) -> Callable[..., tuple]:
    """A function from (parameters, batch) to the batch's sums and weights, without dropout.

    Given what the batch before handed on as a third argument, it returns what the next one gets as a third result. Of
    an objective with outputs the third result are these.
    """

    def output_step(params: Any, batch: Batch) -> tuple:
        outputs = objective.outputs(nnx.merge(graph, params), batch)
        return objective.sums_of(outputs, batch), objective.weights(batch), outputs

    def eval_step(params: Any, batch: Batch, carry: Any = None) -> tuple:
        sums, carry = objective.sums_after(nnx.merge(graph, params), batch, carry, None)
        result = sums, objective.weights(batch)
        return result if carry is None else (*result, carry)

    return output_step if objective.has_outputs else eval_step

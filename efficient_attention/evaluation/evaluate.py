"""Means over the whole held-out split: sums of every batch are added in float64, then divided once."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from efficient_attention.objectives.objective import Batch, Sums
from efficient_attention.tasks.task import HostBatch

EvalStep = Callable[..., tuple]  # see `make_eval_step`
RUN_AHEAD = 2  # batches handed to the device before the host waits for the oldest, so that it builds the next meanwhile


def evaluate(
    eval_step: EvalStep,
    params: Any,
    batches: Iterable[HostBatch],
    to_devices: Callable[[HostBatch], Batch],
    carry: Any = None,
) -> dict[str, float]:
    """Each metric's mean, named '<term>_<metric>', and each term's sum of weights, '<term>_weight'.

    Unless steps hand something on, the result does not depend on batch size, device count or process count: each
    example has its own weight, and rows that fill up a batch have weight 0.

    Args:
        eval_step: from parameters and a global batch to its sums and weights.
        params: the parameters, sharded as the step expects.
        batches: this process's rows of each batch.
        to_devices: makes the global batch of them.
        carry: what the first batch gets from before, for steps that hand something on.
    """
    sums: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = defaultdict(float)
    for batch_sums, batch_weights in finished(steps(eval_step, params, map(to_devices, batches), carry)):
        for term, metrics in batch_sums.items():
            weights[term] += float(np.asarray(batch_weights[term], np.float64))
            for metric, value in metrics.items():
                sums[f'{term}_{metric}'] += float(np.asarray(value, np.float64))
    means = {name: value / max(weights[_term(name, weights)], 1.0) for name, value in sums.items()}
    return means | {f'{term}_weight': weight for term, weight in weights.items()}


def steps(eval_step: EvalStep, params: Any, batches: Iterable[Batch], carry: Any) -> Iterator[tuple[Sums, Any]]:
    """Sums and weights of each batch, each with what the one before handed on."""
    for batch in batches:
        if carry is None:
            yield eval_step(params, batch)
        else:
            sums, weights, carry = eval_step(params, batch, carry)
            yield sums, weights


def finished(results: Iterable[Any]) -> Iterator[Any]:
    """The results on the host, in their order; the last `RUN_AHEAD` that were asked for stay with the device."""
    running: deque[Any] = deque()
    for result in results:
        running.append(result)
        if len(running) > RUN_AHEAD:
            yield jax.device_get(running.popleft())
    yield from map(jax.device_get, running)


def _term(name: str, terms: Iterable[str]) -> str:
    return max((term for term in terms if name.startswith(f'{term}_')), key=len)

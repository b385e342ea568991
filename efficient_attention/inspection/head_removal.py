"""What does a run lose without some of its heads? Evaluates the run with gates on its heads."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import mesh_config_for_devices, no_validation_set_message
from efficient_attention.inference.evaluated_models import open_evaluated_model
from efficient_attention.models.head_gates import Head, HeadGates, gates_without, with_head_gates
from efficient_attention.models.layer_readings import check_has_weights
from efficient_attention.models.uneven_stack import layer_sizes
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from efficient_attention.objectives.objective import total_loss
from efficient_attention.workdir.checkpoint_reader import LAST

STEPS = 10  # points of a curve of removed heads, besides the model with all heads
ORDERS = 5  # random orders of removal, with the seeds 0 to 4


class GatedRun:
    """A run's model with a gate on each self-attention head, and its held-out data.

    Raises:
        InputError: the model has an encoder and a decoder, recurrent layers, or no held-out data.
    """

    def __init__(self, workdir: Path, checkpoint: str = '') -> None:
        config, restore = open_evaluated_model(workdir, checkpoint or LAST, None, ())
        if not config.has_evaluation_data:
            raise InputError(f'{workdir}: {no_validation_set_message(config)}')
        check_has_weights(config.model)
        mesh = mesh_config_for_devices(config.mesh, jax.device_count())
        restored = restore(dataclasses.replace(config, mesh=mesh))
        self.model, self.evaluation = config.model, restored.evaluation
        graph, params = lay_out_for_inference(self.evaluation.graph(), restored.params)
        self.graph, self.params = with_head_gates(graph, params, gates_without(self.model, ()))
        self.step = self.evaluation.make_jitted_step(self.graph)

    @property
    def heads(self) -> list[Head]:
        """All heads of the model, layer by layer."""
        sizes = layer_sizes(self.model)
        counts = [sizes[index][0] for index in self.model.layer_to_param_index]
        return [(layer, head) for layer, count in enumerate(counts) for head in range(count)]

    def metrics(self, removed: Sequence[Head] = ()) -> dict[str, float]:
        """Returns the held-out metrics without some heads."""
        gates_NH = jnp.asarray(gates_without(self.model, removed))
        return self.evaluation.metrics(self.step, with_gates(self.graph, self.params, gates_NH))

    def importance(self) -> np.ndarray:
        """Returns the importance of each head, float64 [N, H]: the sum over rows of the size of its gate's gradient.

        The numbers of each layer are divided by their L2 norm, so only the heads of one layer, and the order of equal
        shares in different layers, are comparable (Michel et al. 2019, arXiv 1905.10650).
        """
        objective = self.evaluation.objective

        def loss(gates_NH: jax.Array, params: Any, batch: Any) -> jax.Array:
            model = nnx.merge(self.graph, with_gates(self.graph, params, gates_NH))
            sums, _ = objective.sums(model, batch, None, None)
            return total_loss(sums, objective.weights(batch), objective.loss_factor)

        gradient = jax.jit(jax.grad(loss))
        ones_NH = jnp.asarray(gates_without(self.model, ()))
        total_NH = np.zeros(ones_NH.shape, np.float64)
        for batch in self.evaluation.task.evaluation_batches(0, 1):
            for row in range(self.evaluation.batch_size):
                one = jax.tree.map(lambda array, row=row: jnp.asarray(array[row : row + 1]), batch)
                total_NH += np.abs(np.asarray(gradient(ones_NH, self.params, one), np.float64))
        norms_N1 = np.sqrt(np.square(total_NH).sum(axis=1, keepdims=True))
        return total_NH / np.where(norms_N1 > 0, norms_N1, 1.0)


def with_gates(graph: nnx.GraphDef, params: Any, gates_NH: jax.Array) -> Any:
    """Returns the pure dict of a gated model with other gates."""
    state = nnx.state(nnx.merge(graph, params))
    gated = nnx.map_state(lambda _, leaf: leaf.replace(gates_NH) if isinstance(leaf, HeadGates) else leaf, state)
    return nnx.to_pure_dict(gated)


def measure_removal(workdir: Path, metric: str, checkpoint: str = '') -> dict[str, Any]:
    """Returns what a metric loses without some heads, as values for JSON.

    'all' is the metric with all heads. 'without' has the metric without one head, and 'only' with only that head in its
    layer, for each head. 'by_importance' and 'by_chance' have the metric after the removal of more and more heads: the
    least important first, or in random orders (mean and standard deviation).

    Args:
        workdir: a run with one encoder or one decoder.
        metric: a metric of its evaluation, such as 'accuracy'.
        checkpoint: a checkpoint of the run; '' = the last.

    Raises:
        InputError: the run has no such metric; also as `GatedRun`.
    """
    run = GatedRun(workdir, checkpoint)
    found = run.metrics()
    if metric not in found:
        raise InputError(f'--removal names {metric!r}; the run has {", ".join(sorted(found))}')
    importance_NH = run.importance()
    order = sorted(run.heads, key=lambda head: importance_NH[head])
    counts = sorted({round(len(order) * step / STEPS) for step in range(1, STEPS + 1)} - {0})
    randoms = [
        [run.heads[place] for place in np.random.default_rng(seed).permutation(len(order))] for seed in range(ORDERS)
    ]
    by_chance = [[run.metrics(one[:count])[metric] for one in randoms] for count in counts]
    return {
        'metric': metric,
        'all': found[metric],
        'importance': [
            {'layer': layer, 'head': head, 'importance': importance_NH[layer, head]} for layer, head in run.heads
        ],
        'without': [{'layer': one[0], 'head': one[1], 'value': run.metrics([one])[metric]} for one in run.heads],
        'only': only_heads(run, metric),
        'by_importance': [{'removed': count, 'value': run.metrics(order[:count])[metric]} for count in counts],
        'by_chance': [
            {'removed': count, 'mean': float(np.mean(values)), 'deviation': float(np.std(values))}
            for count, values in zip(counts, by_chance, strict=True)
        ],
    }


def only_heads(run: GatedRun, metric: str) -> list[dict[str, Any]]:
    """Returns, for each head, the metric if it is the only head of its layer and the other layers keep all heads."""
    found = []
    for layer, head in run.heads:
        others = [one for one in run.heads if one[0] == layer and one[1] != head]
        found.append({'layer': layer, 'head': head, 'value': run.metrics(others)[metric]})
    return found

"""Reports how many weights pruning has left in the model, as metrics and as log lines."""

from collections.abc import Callable, Mapping

import jax
import numpy as np

from efficient_attention.pruning.pruner import Pruner
from efficient_attention.training.run import Run
from efficient_attention.training.state import TrainState
from efficient_attention.workdir.metrics import STILL_PRUNING, WEIGHTS_KEPT

# If more than this share of the weights is left at the end of a run, pruning has removed almost nothing.
NEARLY_ALL = 0.99


def pruning_metrics(run: Run, state: TrainState, say: Callable[[str], None]) -> dict[str, float]:
    """Returns metrics of a pruned model: the share of prunable weights that are left, and whether pruning still
    continues; {} without pruning.

    Prints the share of weights left in each layer and kernel.
    """
    pruner = run.pruner
    if pruner is None:
        return {}
    step = int(state.step)
    kept = jax.device_get(run.kept_weight_share_fn(state))
    for line in remaining_weights_lines(kept):
        say(f'step {step} {line}')
    share = float(np.average([np.mean(one) for one in kept.values()], weights=kernel_sizes(pruner, kept)))
    if pruner.has_penalty and step >= pruner.steps and share > NEARLY_ALL:
        say(f'step {step} {share:.1%} of the weights are left: more steps or a larger prune.penalty remove more')
    return {WEIGHTS_KEPT: share} | ({STILL_PRUNING: 1.0} if step < pruner.final_share_step else {})


def kernel_sizes(pruner: Pruner, kept: Mapping[str, np.ndarray]) -> list[int]:
    """Returns the number of weights of each kernel whose path is a key of `kept`, in the order of the keys."""
    found = {member.path: int(np.prod(member.shape)) for group in pruner.groups for member in group.members}
    return [found[path] for path in kept]


def remaining_weights_lines(kept: Mapping[str, np.ndarray]) -> list[str]:
    """Returns log lines with the share of weights left in each kernel: one line per layer, or a single line if all
    layers are equal.
    """
    stacks: dict[str, dict[str, np.ndarray]] = {}
    for path, shares in kept.items():
        where, _, kernel = path.rpartition('/layers/')
        stacks.setdefault(where, {})[kernel.removesuffix('/kernel').split('/')[-1]] = np.atleast_1d(shares)
    lines = []
    for where, kernels in stacks.items():
        layers = max(map(len, kernels.values()))
        each = [', '.join(f'{name} {one[layer]:.3f}' for name, one in kernels.items()) for layer in range(layers)]
        if len(set(each)) == 1:
            lines.append(f'weights left in each layer of {where}: {each[0]}')
        else:
            lines += [f'weights left in layer {layer} of {where}: {shares}' for layer, shares in enumerate(each, 1)]
    return lines

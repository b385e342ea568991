"""Computes the masked parameters of a model from its trained parameters, the scores and the training step.

Training calls two methods of `Pruner`: `choose_masks` once per step, without gradient, and `masked` in each
micro-batch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict
from jax import Array

from efficient_attention.config.prune import PENALISED, PruneConfig
from efficient_attention.models.sharding import path_name
from efficient_attention.pruning.groups import ATTENTION, PrunedKernel, PruningGroup, find_groups
from efficient_attention.pruning.largest_entries import largest_entries_mask, largest_entries_mask_per_layer

LEAST = 0.005  # minimum kept share of a matrix in soft movement (code of Sanh et al. 2020)
PENALTY = 'prune_penalty'  # name of the metric with the penalty
Arrays = dict[str, Array]  # by group path
# Parameters beta, gamma, zeta of the hard concrete distribution (Louizos et al. 2018, arXiv 1712.01312, section 4.1).
TEMPERATURE, LOW, HIGH = 2.0 / 3.0, -0.1, 1.1
START = 2.197  # initial score of 'l0', whose sigmoid is 0.9
NO_DRAW = 1e-6  # minimum distance of uniform random numbers from 0 and 1


@dataclasses.dataclass(frozen=True)
class Pruner:
    """The pruning of a run: computes masked parameters from trained parameters, scores and the training step.

    Args:
        config: the pruning method.
        groups: the entries that are kept or removed together.
        steps: number of training steps of the entire run.
    """

    config: PruneConfig
    groups: tuple[PruningGroup, ...]
    steps: int

    @property
    def final_share_step(self) -> int:
        """The first training step from which the share of kept weights is constant.

        With a penalty, the share may decrease until the last step, so the result is the last step.
        """
        return self.steps if self.has_penalty else self.config.final_step(self.steps)

    @property
    def has_penalty(self) -> bool:
        """Whether the pruning method adds a penalty to the loss."""
        return self.config.method in PENALISED

    def initial_scores(self, rng: Array) -> Any:
        """Returns the pruning scores at step 0 as a nested dict; None for magnitude pruning, which uses the weights as
        scores.
        """
        method = self.config.method
        if method == 'magnitude':
            return None
        if method == 'random':
            keys = jax.random.split(rng, len(self.groups))
            drawn = [jax.random.uniform(key, group.shape) for key, group in zip(keys, self.groups, strict=True)]
        else:
            start = START if method == 'l0' else 0.0
            drawn = [jnp.full(group.shape, start, jnp.float32) for group in self.groups]
        return unflatten_dict({group.path: one for group, one in zip(self.groups, drawn, strict=True)}, sep='/')

    def fixed_scores(self, params: Any) -> Any:
        """Returns the scores of the pruning method 'fixed': 1 for entries that have a nonzero weight in the given
        parameters, 0 for all others.
        """
        return unflatten_dict(
            {path: jnp.float32(sums > 0.0) for path, sums in self.magnitudes(params).items()}, sep='/'
        )

    def pruned(self, params: Any, scores: Any, step: Array | int) -> Any:
        """Returns the masked parameters for an evaluation after `step` training steps."""
        return self.masked(params, scores, self.choose_masks(params, scores, step))

    def choose_masks(self, params: Any, scores: Any, step: Array | int, rng: Array | None = None) -> Arrays:
        """Returns a mask without gradient for each pruning group; for the method 'l0' in training, returns uniform
        random numbers, from which `masked` computes gates.

        `rng` is the PRNG key of the step, None in an evaluation. Without `rng`, 'l0' samples nothing, and its mask is
        True where a gate is not 0.
        """
        method = self.config.method
        if method == 'l0':
            found = flatten_by_path(scores)
            if rng is None:
                return {path: hard_concrete(one, None) > 0.0 for path, one in found.items()}
            keys = jax.random.split(rng, len(self.groups))
            return {
                group.path: sample_open_uniform(key, group.shape) for key, group in zip(keys, self.groups, strict=True)
            }
        if method == 'fixed':
            return {path: one > 0.5 for path, one in flatten_by_path(scores).items()}
        found = self.magnitudes(params) if method == 'magnitude' else flatten_by_path(scores)
        found = {path: jax.lax.stop_gradient(one) for path, one in found.items()}
        done = schedule_progress(self.config, self.steps, step)
        if method == 'soft_movement':
            return {group.path: self.score_threshold_mask(group, found[group.path], done) for group in self.groups}
        if self.config.scope == 'matrix':
            return {group.path: self.largest_scores_mask(group, found[group.path], done) for group in self.groups}
        return self.global_largest_scores_masks(found, done)

    def masked(self, params: Any, scores: Any, choice: Mapping[str, Array]) -> Any:
        """Returns the parameters multiplied by their masks or gates, differentiable with respect to parameters and
        scores.
        """
        flat, found = flatten_by_path(params), flatten_by_path(scores)
        for group in self.groups:
            mask, score = choice[group.path], found.get(group.path)
            if self.config.method == 'l0':
                assert score is not None
                gates = hard_concrete(score, None if mask.dtype == bool else mask)
            elif self.config.has_trained_scores:
                assert score is not None
                gates = straight_through(mask, score)
            else:
                gates = jnp.float32(mask)
            for member in group.members:
                flat[member.path] = flat[member.path] * member.broadcast_entries(
                    self.kernel_gates(group, member, gates)
                )
        return jax.tree_util.tree_map_with_path(lambda path, _: flat[path_name(path)], params)

    def kernel_gates(self, group: PruningGroup, member: PrunedKernel, gates: Array) -> Array:
        """Returns the mask or gates by which one kernel of a pruning group is multiplied.

        The gates of 'l0' are not binary, so they scale only one kernel of a head or unit. Its other kernels get the
        binary mask.
        """
        # The kernel whose rows belong to a head or unit reads the output of that head or unit, so it gets the gates.
        is_gated = len(group.members) == 1 or member.way == 'rows'
        if self.config.method != 'l0' or is_gated:
            return gates
        return jnp.float32(jax.lax.stop_gradient(gates) > 0.0)

    def penalty(self, scores: Any, step: Array | int) -> Array:
        """Returns the pruning penalty, a float32 scalar that is added to the loss once for the full batch."""
        if not self.has_penalty:
            return jnp.float32(0.0)
        chance = open_gate_probability if self.config.method == 'l0' else jax.nn.sigmoid
        means = [chance(one).mean() for one in flatten_by_path(scores).values()]
        return self.config.penalty * schedule_progress(self.config, self.steps, step) * jnp.stack(means).mean()

    def magnitudes(self, params: Any) -> Arrays:
        """Returns the sum of the absolute weights |W| of each entry, for all pruning groups."""
        flat = flatten_by_path(params)
        return {
            group.path: sum(
                (
                    member.sums_per_entry(jnp.abs(jnp.asarray(flat[member.path], jnp.float32)))
                    for member in group.members
                ),
                jnp.float32(0.0),
            )
            for group in self.groups
        }

    def share(self, group: PruningGroup) -> float:
        """Returns the share of a pruning group's entries that is kept at the end of pruning."""
        of_attention = self.config.keep_attention or self.config.keep
        return of_attention if group.kind == ATTENTION else self.config.keep

    def kept_entry_count(self, share: float, entries: int, done: Array) -> Array:
        """Returns how many entries of a pruning group are kept, at least 1, when the pruning schedule has reached the
        progress `done`, from 0 to 1.

        At `done` = 1, the number is exact. Earlier, float32 rounding may miss one entry in ten million.
        """
        kept = 1.0 - (1.0 - share) * done
        on_the_way = jnp.minimum(jnp.round(kept * entries).astype(jnp.int32), entries)
        return jnp.maximum(jnp.where(done < 1.0, on_the_way, round(share * entries)), 1)

    def largest_scores_mask(self, group: PruningGroup, scores: Array, done: Array) -> Array:
        """Returns the mask of a pruning group, which keeps the entries with the largest scores in each layer."""
        count = self.kept_entry_count(self.share(group), group.entries, done)
        return (
            largest_entries_mask_per_layer(scores, count)
            if group.is_stacked
            else largest_entries_mask([scores], count)[0]
        )

    def global_largest_scores_masks(self, scores: Mapping[str, Array], done: Array) -> Arrays:
        """Returns the masks of all pruning groups, which keep the entries with the largest scores across groups.

        Groups compete if they have equally many weights per entry and the same share.
        """
        alike: dict[tuple[int, float], list[str]] = {}
        for group in self.groups:
            alike.setdefault((group.weights_per_entry, self.share(group)), []).append(group.path)
        masks: Arrays = {}
        for (_, share), paths in alike.items():
            arrays = [scores[path] for path in paths]
            count = self.kept_entry_count(share, sum(one.size for one in arrays), done)
            masks |= dict(zip(paths, largest_entries_mask(arrays, count), strict=True))
        return masks

    def score_threshold_mask(self, group: PruningGroup, scores: Array, done: Array) -> Array:
        """Returns the mask of soft movement pruning, which keeps the entries for which the sigmoid of the score exceeds
        the threshold.

        A minimum number of entries with the largest scores is always kept.
        """
        is_above = jax.nn.sigmoid(scores) > self.config.threshold * done
        fewest = jnp.int32(max(round(LEAST * group.entries), 1))
        largest = (
            largest_entries_mask_per_layer(scores, fewest)
            if group.is_stacked
            else largest_entries_mask([scores], fewest)[0]
        )
        return is_above | largest

    def kept_share_per_kernel(self, params: Any, scores: Any, step: Array | int) -> dict[str, Array]:
        """Returns the share of kept weights in each kernel: float32 [N] for N layers, or a scalar if layers share the
        kernel.
        """
        choice = self.choose_masks(params, scores, step)
        shares: dict[str, Array] = {}
        for group in self.groups:
            mask = jnp.float32(choice[group.path])
            axes = tuple(range(int(group.is_stacked), mask.ndim))
            shares |= {member.path: mask.mean(axis=axes) for member in group.members}
        return shares


def flatten_by_path(tree: Any) -> Arrays:
    """Returns the arrays of a pytree as a dict from path to array; an empty dict for None."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def make_pruner(config: PruneConfig, params: Any, *, head_width: int, steps: int) -> Pruner | None:
    """Returns the pruner for a model with these parameters; None if the config turns pruning off.

    Only the shapes of the parameters are used.

    Raises:
        InputError: in the same cases as `find_groups`.
    """
    return Pruner(config, find_groups(params, config, head_width), steps) if config.is_enabled else None


# ---- masks and gates by which kernels are multiplied, with gradients for the scores ----


def straight_through(mask: Array, scores: Array) -> Array:
    """Returns a mask as float32; its gradient with respect to the scores is the straight-through gradient.

    Source: Bengio et al. 2013, arXiv 1308.3432.
    """
    return jnp.float32(mask) + (scores - jax.lax.stop_gradient(scores))


def hard_concrete(scores: Array, uniform: Array | None) -> Array:
    """Returns gates in [0, 1] from the hard concrete distribution, most of them exactly 0 or 1.

    With `uniform`, the gates are samples. Without `uniform`, they are the deterministic gates of an evaluation.
    """
    if uniform is None:
        open_share = jax.nn.sigmoid(scores)
    else:
        logit = jnp.log(uniform) - jnp.log1p(-uniform)
        open_share = jax.nn.sigmoid((logit + scores) / TEMPERATURE)
    return jnp.clip(open_share * (HIGH - LOW) + LOW, 0.0, 1.0)


def open_gate_probability(scores: Array) -> Array:
    """Returns the probability that a gate of the hard concrete distribution is not 0."""
    return jax.nn.sigmoid(scores - TEMPERATURE * jnp.log(-LOW / HIGH))


def sample_open_uniform(rng: Array, shape: tuple[int, ...]) -> Array:
    """Returns uniform random numbers between 0 and 1, excluding 0 and 1."""
    return jax.random.uniform(rng, shape, minval=NO_DRAW, maxval=1.0 - NO_DRAW)


# ---- the pruning schedule ----


def schedule_progress(config: PruneConfig, steps: int, step: Array | int) -> Array:
    """Returns the progress of the pruning schedule, from 0 to 1, towards the final share, threshold or penalty, as
    float32.

    The progress is 1 - (1 - (step - begin) / (end - begin))^3 between begin and end, and constant outside. With begin =
    end, it jumps from 0 to 1. Source: the cubic schedule of Zhu and Gupta 2017 (arXiv 1710.01878, equation 1).

    Args:
        config: `begin` and `end`, as shares of the run.
        steps: number of training steps of the entire run.
        step: int32, number of completed steps.
    """
    # Rounding is needed, because 0.29 * 100 is slightly below 29 in floating point.
    begin, end = int(round(config.begin * steps, 6)), config.final_step(steps)
    share = (jnp.float32(step) - begin) / max(end - begin, 1)
    rising = 1.0 - (1.0 - jnp.clip(share, 0.0, 1.0)) ** 3
    return jnp.where(jnp.asarray(step) >= end, 1.0, rising)

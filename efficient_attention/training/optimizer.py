"""Builds the optimizer of a run: AdamW and LAMB as in the published code of BERT and ALBERT, Adafactor
(`adafactor.py`), or Adadelta.

    BERT:   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  u = m / (sqrt(v) + eps) + decay * w,  w -= rate * u
    ADADELTA: v = b2 v + (1 - b2) g^2,  d = g sqrt(x + eps) / sqrt(v + eps),  u = d + decay * w,  w -= rate * u, where x
            is the same mean of d^2, up to the step before (Zeiler 2012, arXiv 1212.5701; optax's)
    LAMB:   the same u as BERT, then  w -= rate * (|w| / |u|) * u  for each parameter (You et al. 2020, 1904.00962,
            alg. 2)

Two details differ from most libraries and matter for repeating published runs. BERT and ALBERT do not divide the means
m and v by 1 - b^step. Parameters excluded from weight decay (biases, normalisation scales) are also excluded from
LAMB's trust ratio |w| / |u|. The weight norm is not clipped; the ratio is 1 if a norm is 0.
"""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import path_name, path_names
from efficient_attention.objectives.objective import BESIDE, SCORES
from efficient_attention.training.adafactor import scale_by_adafactor
from efficient_attention.training.schedules import make_schedule
from efficient_attention.training.step_extensions import has_running_means, only_running_means, without_running_means

# matches the paths of parameters in scanned layers; the first axis of such a parameter is the layer
STACKED_LAYERS = r'(^|/)layers/'
EMBEDDINGS = r'(^|/)embeddings/'
OF_SCORES = f'^{SCORES}/'
OF_BESIDE = f'^{BESIDE}/'
# Adam's eps for pruning scores must be small, because the pruning penalty has a tiny gradient at each score.
# With L0 pruning of a model with 10.6 million weights, the penalty's gradient at a score starts at 2e-7.
# Sanh et al. (arXiv 2005.07683) use an eps of 1e-8, far below gradients of 2e-7.
EPS_OF_SCORES = 1e-8
DECAY = 0.999  # decay of the running means, per training step
# matches the paths of layers on top of an encoder, which are trained with the learning rate of a head
SENTENCES = r'(^|/)sentences/'


def make_optimizer(
    config: OptimizerConfig, total_steps: int, *, stacked: str | None, scores_rate: float = 0.0
) -> optax.GradientTransformation:
    """Returns the optimizer: gradient clipping by global norm, moment estimates, weight decay, LAMB's trust ratio, and
    learning rate.

    The scores of pruning are clipped together with the parameters. Scores have a separate eps and neither weight decay
    nor trust ratio. Extra arrays that an objective trains are never frozen. Running means have a separate rule
    (`with_running_means`), applied if the optimizer's parameters contain running means.

    Args:
        config: the update rule and its rates.
        total_steps: updates in the whole run, for the schedule.
        stacked: regex found in the paths ('encoder/stack/layers/attention/query/kernel') of parameters that hold one
            array per layer along their first axis (`STACKED_LAYERS`); None if there are none (ALBERT). For these
            parameters LAMB computes one trust ratio per layer, so that stacked and separate layers get equal updates.
        scores_rate: the peak learning rate of scores; above 0 if scores are trained.
    """
    config = dataclasses.replace(config, no_decay=(*config.no_decay, OF_SCORES))
    has_rates = config.layer_decay != 1 or config.frozen_layers or config.frozen
    # Gradients of frozen parameters become zero before clipping, so that the gradient norm ignores them.
    hold = (
        scale_by_layer_decay(dataclasses.replace(config, layer_decay=1.0), stacked) if has_rates else optax.identity()
    )
    parts = [
        hold,
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        _scale_by_update_rule(config, stacked),
        optax.add_decayed_weights(config.weight_decay, mask=lambda params: weight_decay_mask(params, config.no_decay)),
    ]
    if config.name == 'lamb':
        parts.append(
            optax.masked(scale_by_trust_ratio(stacked), lambda params: weight_decay_mask(params, config.no_decay))
        )
    if has_rates:
        parts.append(scale_by_layer_decay(config, stacked))
    if scores_rate:
        # Scaling a gradient by c has the same effect on m / (sqrt(v) + eps) as dividing eps by c.
        parts.insert(2, scale_score_updates(config.eps / EPS_OF_SCORES))
        parts.append(scale_score_updates(scores_rate / config.learning_rate))
    rule = optax.chain(*parts, optax.scale_by_learning_rate(make_schedule(config, total_steps)))
    return with_running_means(rule, hold)


def build_optimizer(config: RunConfig) -> optax.GradientTransformation:
    """Returns the optimizer of a config, whose learning-rate schedule covers the whole run."""
    prune, stacked = config.prune, stacked_param_pattern(config)
    scores_rate = prune.learning_rate if prune.has_trained_scores else 0.0
    rule = make_optimizer(config.optimizer, config.train.steps, stacked=stacked, scores_rate=scores_rate)
    return exclude_pruning_scores(rule) if prune.has_fixed_scores else rule


def stacked_param_pattern(config: RunConfig) -> str | None:
    """Returns a regex for the paths of parameters that stack one array per layer; None if all layers share their
    parameters.
    """
    return STACKED_LAYERS if config.model.is_stacked else None


def scale_by_layer_decay(config: OptimizerConfig, stacked: str | None) -> optax.GradientTransformation:
    """Returns a transformation that multiplies each update by its layer's share of the learning rate; the share is 0
    for frozen parameters.

    With N layers and decay d: heads have 1, layer i of 1 to N has d^(N + 1 - i), embeddings have d^(N + 1) (Clark et
    al. 2020, arXiv 2003.10555, appendix B). Their released code has one more power below the head: d^(N + 2 - i), d^(N
    + 2).

    Args:
        config: only `layer_decay`, `frozen_layers` and `frozen` are used.
        stacked: as in `make_optimizer`. A model without stacked layers shares its layers; they have one rate.
    """

    def scaled(params: optax.Params, updates: optax.Updates) -> optax.Updates:
        layers = layer_count(params, stacked)
        return jax.tree_util.tree_map_with_path(
            lambda path, update: update * layer_lr_factor(path_name(path), update, config, layers), updates
        )

    def update(
        updates: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.EmptyState]:
        if params is None:
            raise ValueError('a rate for each layer needs the parameters: call update(gradients, state, params)')
        return scaled(params, updates), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def scale_score_updates(factor: float) -> optax.GradientTransformation:
    """Returns a transformation that multiplies the updates of pruning scores by a factor, and leaves other updates
    unchanged.
    """

    def scaled(path: tuple, update: jax.Array) -> jax.Array:
        return update * factor if re.search(OF_SCORES, path_name(path)) else update

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scaled, updates))


def exclude_pruning_scores(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns an optimizer that leaves pruning scores unchanged: it keeps no state for the scores, and their updates
    are 0.
    """

    def without_scores(tree: optax.Params) -> optax.Params:
        return {name: group for name, group in tree.items() if name != SCORES}

    def init(params: optax.Params) -> optax.OptState:
        return rule.init(without_scores(params))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        moved, state = rule.update(without_scores(updates), state, None if params is None else without_scores(params))
        return moved | {SCORES: optax.tree.zeros_like(updates[SCORES])}, state

    return optax.GradientTransformation(init, update)


def check_frozen(config: OptimizerConfig, params: optax.Params, stacked: str | None) -> None:
    """Raises InputError if a pattern of `frozen` matches no parameter, or `frozen_layers` exceeds the number of
    layers.
    """
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in config.frozen:
        if not any(re.search(pattern, name) for name in names):
            raise InputError(f'optimizer.frozen has {pattern!r}, which is found in the path of no parameter')
    layers = layer_count(params, stacked)
    if config.frozen_layers > layers or (config.frozen_layers and stacked is None):
        kind = 'layers' if stacked else 'layer, which all share'
        raise InputError(f'optimizer.frozen_layers is {config.frozen_layers}; the model has {layers} {kind}')


def layer_count(params: optax.Params, stacked: str | None) -> int:
    """Returns the model's number of layers, from the first axis of stacked parameters; 1 if all layers share their
    parameters.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if stacked is not None and re.search(stacked, path_name(path)):
            return leaf.shape[0]
    return 1


def layer_lr_factor(name: str, update: jax.Array, config: OptimizerConfig, layers: int) -> jax.Array:
    """Returns the factor by which a parameter's learning rate is multiplied: a scalar or, for stacked layers, an array
    [N, 1, ...].
    """
    dtype = update.dtype
    if re.search(OF_SCORES, name) or re.search(OF_BESIDE, name):
        return jnp.ones((), dtype)
    if any(re.search(pattern, name) for pattern in config.frozen):
        return jnp.zeros((), dtype)
    if re.search(SENTENCES, name):
        return jnp.ones((), dtype)
    if re.search(EMBEDDINGS, name):
        return jnp.asarray(0.0 if config.frozen_layers else config.layer_decay ** (layers + 1), dtype)
    if re.search(STACKED_LAYERS, name):
        numbers = jnp.arange(layers)
        scale_N = jnp.asarray(config.layer_decay, dtype) ** (layers - numbers).astype(dtype)
        scale_N = scale_N * (numbers >= config.frozen_layers).astype(dtype)
        return scale_N.reshape(layers, *[1] * (update.ndim - 1)) if layers > 1 else scale_N[0]
    return jnp.ones((), dtype)


def weight_decay_mask(params: optax.Params, no_decay: tuple[str, ...]) -> optax.Params:
    """Returns a tree like `params` that is True where weight decay applies: where no regex in `no_decay` matches the
    parameter's path.
    """

    def is_decayed(name: str) -> bool:
        return not any(re.search(pattern, name) for pattern in no_decay)

    return jax.tree.map(is_decayed, path_names(params))


def scale_by_uncorrected_moments(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """Returns Adam's scaling of gradients, m / (sqrt(v) + eps), without bias correction, which `optax.scale_by_adam`
    always applies.

    As m and v start at 0, the first update of a gradient g is (1 - b1) g / (sqrt((1 - b2) g^2) + eps): about
    3.16 sign(g) for b1 = 0.9 and b2 = 0.999, falling towards 1 over some 1 / (1 - b2) steps.
    """

    def init(params: optax.Params) -> optax.ScaleByAdamState:
        zeros = optax.tree.zeros_like(params)
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=zeros, nu=zeros)

    def update(
        updates: optax.Updates, state: optax.ScaleByAdamState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
        del params
        mu = optax.tree.update_moment(updates, state.mu, beta1, 1)
        nu = optax.tree.update_moment(updates, state.nu, beta2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_trust_ratio(stacked: str | None) -> optax.GradientTransformation:
    """Returns LAMB's scaling of each update u of a parameter w by |w| / |u|, computed in float32; the factor is 1 if
    either norm is 0.

    `stacked` as in `make_optimizer`: for these parameters the norms run over all axes except the first.
    """

    def scale(path: tuple, update: jax.Array, param: jax.Array) -> jax.Array:
        is_stacked = stacked is not None and re.search(stacked, path_name(path)) is not None
        axes = tuple(range(1 if is_stacked else 0, param.ndim))
        param_norm, update_norm = _norm(param, axes), _norm(update, axes)
        is_defined = (param_norm > 0) & (update_norm > 0)
        ratio = jnp.where(is_defined, param_norm / jnp.where(is_defined, update_norm, 1), 1)
        return update * ratio.astype(update.dtype)

    def update(
        updates: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.EmptyState]:
        if params is None:
            raise ValueError('the trust ratio needs the parameters: call update(gradients, state, params)')
        return jax.tree_util.tree_map_with_path(scale, updates, params), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def _scale_by_update_rule(config: OptimizerConfig, stacked: str | None) -> optax.GradientTransformation:
    if config.name == 'adafactor':
        return scale_by_adafactor(stacked)
    if config.name == 'adadelta':
        return optax.scale_by_adadelta(rho=config.beta2, eps=config.eps)
    make = optax.scale_by_adam if config.bias_correction else scale_by_uncorrected_moments
    return make(config.beta1, config.beta2, config.eps)


def _norm(array: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(array.astype(jnp.float32)), axes, keepdims=True))


# ---- running means of batch statistics, which are stored as parameters ----


def with_running_means(
    rule: optax.GradientTransformation, hold: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Returns an optimizer that updates running means by a moving average, and all other parameters with `rule`.

    A running mean is a point on the unit sphere. It follows the mean of the vectors assigned to it,

        mu <- u / |u|  with  u = 0.999 mu + 0.001 sum / count

    once per step that is not skipped. A point without assigned vectors stays. Sum and count arrive in the places of the
    point's gradients (`Operand` of attention/mechanism.py). They therefore cover the global batch, all devices, all
    micro-batches and all layers that share a point. Running means have no learning rate, decay, clipping or moments.
    Without running means among the parameters, the result behaves as `rule`, which keeps state only for other
    parameters.

    Source: Roy et al. 2020, arXiv 2003.05997, section 4.1, with its decay.

    Args:
        rule: the optimizer of all other parameters, from gradients to updates.
        hold: a transformation without state that zeroes the gradients of frozen parameters.
    """

    def init(params: optax.Params) -> optax.OptState:
        return rule.init(without_running_means(params) if has_running_means(params) else params)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            raise ValueError('running means need the parameters: call update(gradients, state, params)')
        if not has_running_means(params):
            return rule.update(updates, state, params)
        means = only_running_means(params)
        moved, state = rule.update(without_running_means(updates), state, without_running_means(params))
        statistics, _ = hold.update(only_running_means(updates), hold.init(means), means)
        steps = jax.tree.map(running_mean_update, means, statistics)
        merged = jax.tree.map(lambda move, step: step if move is None else move, moved, steps, is_leaf=is_none)
        return merged, state

    return optax.GradientTransformation(init, update)


def is_none(leaf: Any) -> bool:
    """Returns whether a leaf of a tree is None."""
    return leaf is None


def running_mean_update(
    mean: Float[Array, '*points X'], statistics: Float[Array, '*points X']
) -> Float[Array, '*points X']:
    """Returns the change of each running mean in one training step: the new vector minus the old vector, with a 0
    appended, [..., K + 1].

    `statistics` holds the sums of assigned vectors and, in the last column, their counts.
    """
    count = statistics[..., -1:]
    point = mean[..., :-1]
    moved = DECAY * point + (1.0 - DECAY) * statistics[..., :-1] / jnp.maximum(count, 1.0)
    length = jnp.linalg.norm(moved, axis=-1, keepdims=True)
    step = jnp.where(count > 0.0, moved / length - point, 0.0)
    return jnp.concatenate([step, jnp.zeros_like(count)], axis=-1)

"""Computes the cross-entropy of an adaptive softmax without the logits of tail clusters that contain no target.

Each row's positions are sorted by the cluster of their target, so most chunks have targets of only one or two clusters.
A chunk's logits in a tail are computed only if one of its targets is in that tail. The loss is exact for any batch; in
the worst case every chunk computes every tail.
"""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import is_axis_sharded, shard_activations
from efficient_attention.models.adaptive_softmax import VocabularyCluster
from efficient_attention.objectives.chunked_loss import split_into_position_chunks
from efficient_attention.objectives.objective import weighted_sums


def adaptive_softmax_loss_sums(
    clusters: tuple[VocabularyCluster, ...], hidden_BLE: Array, targets_BL: Array, weights_BL: Array, *, chunk: int
) -> dict[str, Array]:
    """Returns the sums of loss (nats) and correct predictions over all positions, each position times its weight.

    'accuracy' counts a target if no word of the first cluster or of the target's cluster is more probable. Words of
    other tails are not compared, so the result may be too high.

    Args:
        clusters: from `AdaptiveHead.clusters_and_inputs`.
        hidden_BLE: input vectors of the clusters.
        targets_BL: ids below V.
        weights_BL: weight per position; not differentiable at positions of weight 0.
        chunk: positions per row and chunk, whose logits the backward pass recomputes; 0 = all.
    """
    cluster_BL, place_BL = target_cluster_and_index(targets_BL, clusters)
    # A position of weight 0 counts as a target of the first cluster, so that no tail is computed for it.
    cluster_BL = jnp.where(weights_BL == 0, 0, cluster_BL)
    place_BL = jnp.where(weights_BL == 0, 0, place_BL)
    # targets are sorted within a row, so that sharded rows stay on their devices
    order_BL = jnp.argsort(cluster_BL, axis=1)
    chunk = min(chunk or targets_BL.shape[1], targets_BL.shape[1])
    chunks = tuple(
        split_into_position_chunks(jnp.take_along_axis(x_BL, order_BL, axis=1), chunk)
        for x_BL in (cluster_BL, place_BL, weights_BL)
    )
    hidden_nBcE = split_into_position_chunks(jnp.take_along_axis(hidden_BLE, order_BL[..., None], axis=1), chunk)

    @jax.checkpoint
    def sums_of(
        clusters: tuple[VocabularyCluster, ...],
        hidden_BcE: Array,
        cluster_Bc: Array,
        place_Bc: Array,
        weights_Bc: Array,
    ) -> dict[str, Array]:
        if is_axis_sharded('L'):  # Without sharded positions, each device would compute the full chunk.
            hidden_BcE = shard_activations(hidden_BcE, 'BLE')
        losses_Bc, is_correct_Bc = adaptive_softmax_losses(clusters, hidden_BcE, cluster_Bc, place_Bc)
        return weighted_sums(losses_Bc, is_correct_Bc, weights_Bc)

    def add(total: dict[str, Array], arrays: tuple[Array, ...]) -> tuple[dict[str, Array], None]:
        return jax.tree.map(jnp.add, total, sums_of(clusters, *arrays)), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(add, {'loss': zero, 'accuracy': zero}, (hidden_nBcE, *chunks))[0]


def adaptive_softmax_losses(
    clusters: tuple[VocabularyCluster, ...], hidden_BLE: Array, cluster_BL: Array, place_BL: Array
) -> tuple[Array, Array]:
    """Returns each target's loss, and whether the target is the most probable word among its own cluster and the first
    cluster."""
    first, *tails = clusters
    logits_BLn = first.logits(hidden_BLE)
    words = logits_BLn.shape[-1] - len(tails)
    entry_BL = jnp.where(cluster_BL == 0, place_BL, words + cluster_BL - 1)
    lse_BL = jax.nn.logsumexp(logits_BLn, axis=-1)
    log_p_BL = take_target_logits(logits_BLn, entry_BL) - lse_BL
    best_BL = logits_BLn[..., :words].max(axis=-1) - lse_BL
    is_best_BL = logits_BLn[..., :words].argmax(axis=-1) == place_BL
    for number, tail in enumerate(tails, start=1):
        is_inside_BL = cluster_BL == number
        within_BL, is_first_BL = jax.lax.cond(
            is_inside_BL.any(), tail_losses, skipped_tail_losses, tail, hidden_BLE, jnp.where(is_inside_BL, place_BL, 0)
        )
        log_p_BL = log_p_BL + jnp.where(is_inside_BL, within_BL, 0.0)
        is_best_BL = jnp.where(is_inside_BL, is_first_BL & (log_p_BL > best_BL), is_best_BL)
    return -log_p_BL, is_best_BL


def tail_losses(tail: VocabularyCluster, hidden_BLE: Array, place_BL: Array) -> tuple[Array, Array]:
    """Returns each target's log-probability within a tail cluster, and whether the target is the most probable word of
    that cluster."""
    logits_BLn = tail.logits(hidden_BLE)
    log_p_BL = take_target_logits(logits_BLn, place_BL) - jax.nn.logsumexp(logits_BLn, axis=-1)
    return log_p_BL, logits_BLn.argmax(axis=-1) == place_BL


def skipped_tail_losses(tail: VocabularyCluster, hidden_BLE: Array, place_BL: Array) -> tuple[Array, Array]:  # noqa: ARG001  like tail_losses
    """Returns zeros in place of the results of `tail_losses`, for a tail cluster without targets."""
    return jnp.zeros(place_BL.shape, jnp.float32), jnp.zeros(place_BL.shape, bool)


def target_cluster_and_index(targets_BL: Array, clusters: tuple[VocabularyCluster, ...]) -> tuple[Array, Array]:
    """Returns the number of each target's cluster, and the target's index in that cluster."""
    first, *tails = clusters
    sizes = [first.table_ne.shape[0] - len(tails), *(tail.table_ne.shape[0] for tail in tails)]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    cluster_BL = jnp.zeros_like(targets_BL)
    for start in starts[1:]:
        cluster_BL = cluster_BL + (targets_BL >= start).astype(targets_BL.dtype)
    return cluster_BL, targets_BL - jnp.asarray(starts, targets_BL.dtype)[cluster_BL]


def take_target_logits(logits_BLn: Array, place_BL: Array) -> Array:
    """Returns the logit of each position's target, [rows, positions], given the target's index `place_BL` among the
    logits."""
    return jnp.take_along_axis(logits_BLn, place_BL[..., None], axis=-1)[..., 0]

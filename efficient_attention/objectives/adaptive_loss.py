"""Cross-entropy of an adaptive softmax without the logits of tails that no target of a chunk is in.

Each row's positions are ordered by the cluster of their target, so that most chunks of them have targets of one or two
clusters; a tail's logits are computed for a chunk only if one of its targets is in that tail. The loss is exact for any
batch, whatever its targets: in the worst case every chunk computes every tail.
"""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.models.adaptive import Part
from efficient_attention.objectives.chunked_loss import by_chunks
from efficient_attention.objectives.cross_entropy import weighted_sums


def adaptive_sums(
    parts: tuple[Part, ...], hidden_BLE: Array, targets_BL: Array, weights_BL: Array, *, chunk: int
) -> dict[str, Array]:
    """Sums over all positions: 'loss' (nats) and 'accuracy', each position times its weight.

    'accuracy' counts a target that is the most probable among the words of the first cluster and of its own; whether a
    word of another tail is more probable still is not looked at, so that it may be too high.

    Args:
        parts: of `AdaptiveHead.parts`.
        hidden_BLE: vectors as the parts read them.
        targets_BL: ids below V.
        weights_BL: how much each position counts; not differentiable at those of weight 0.
        chunk: positions of each row at a time, whose logits the backward pass computes again; 0 = all.
    """
    cluster_BL, place_BL = clusters_of(targets_BL, parts)
    # A position that weighs nothing needs no tail.
    cluster_BL = jnp.where(weights_BL == 0, 0, cluster_BL)
    place_BL = jnp.where(weights_BL == 0, 0, place_BL)
    order_BL = jnp.argsort(cluster_BL, axis=1)  # within a row: a batch spread over devices stays where it is
    rows = (cluster_BL, place_BL, weights_BL)
    chunk = min(chunk or targets_BL.shape[1], targets_BL.shape[1])
    chunks = tuple(by_chunks(jnp.take_along_axis(x_BL, order_BL, axis=1), chunk) for x_BL in rows)
    hidden_nBcE = by_chunks(jnp.take_along_axis(hidden_BLE, order_BL[..., None], axis=1), chunk)

    @jax.checkpoint
    def sums_of(parts: tuple[Part, ...], part: tuple[Array, ...]) -> dict[str, Array]:
        hidden, cluster, place, weights = part
        losses, is_correct = losses_of(parts, hidden, cluster, place)
        return weighted_sums(losses, is_correct, weights)

    def add(total: dict[str, Array], part: tuple[Array, ...]) -> tuple[dict[str, Array], None]:
        return jax.tree.map(jnp.add, total, sums_of(parts, part)), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(add, {'loss': zero, 'accuracy': zero}, (hidden_nBcE, *chunks))[0]


def losses_of(parts: tuple[Part, ...], hidden_BLE: Array, cluster_BL: Array, place_BL: Array) -> tuple[Array, Array]:
    """Each target's loss, and whether no word of the first cluster or of its own is more probable."""
    first, *tails = parts
    logits_BLn = first.logits(hidden_BLE)
    words = logits_BLn.shape[-1] - len(tails)
    entry_BL = jnp.where(cluster_BL == 0, place_BL, words + cluster_BL - 1)
    lse_BL = jax.nn.logsumexp(logits_BLn, axis=-1)
    log_p_BL = take(logits_BLn, entry_BL) - lse_BL
    best_BL = logits_BLn[..., :words].max(axis=-1) - lse_BL
    is_best_BL = logits_BLn[..., :words].argmax(axis=-1) == place_BL
    for number, tail in enumerate(tails, start=1):
        is_own_BL = cluster_BL == number
        within_BL, is_first_BL = jax.lax.cond(
            is_own_BL.any(), tail_losses, skipped, tail, hidden_BLE, jnp.where(is_own_BL, place_BL, 0)
        )
        log_p_BL = log_p_BL + jnp.where(is_own_BL, within_BL, 0.0)
        is_best_BL = jnp.where(is_own_BL, is_first_BL & (log_p_BL > best_BL), is_best_BL)
    return -log_p_BL, is_best_BL


def tail_losses(tail: Part, hidden_BLE: Array, place_BL: Array) -> tuple[Array, Array]:
    """Each place's log-probability within the tail, and whether it is the largest."""
    logits_BLn = tail.logits(hidden_BLE)
    log_p_BL = take(logits_BLn, place_BL) - jax.nn.logsumexp(logits_BLn, axis=-1)
    return log_p_BL, logits_BLn.argmax(axis=-1) == place_BL


def skipped(tail: Part, hidden_BLE: Array, place_BL: Array) -> tuple[Array, Array]:  # noqa: ARG001  tail_losses' form
    """What `tail_losses` gives where nothing reads it."""
    return jnp.zeros(place_BL.shape, jnp.float32), jnp.zeros(place_BL.shape, bool)


def clusters_of(targets_BL: Array, parts: tuple[Part, ...]) -> tuple[Array, Array]:
    """The number of each target's cluster, and its place in it."""
    first, *tails = parts
    sizes = [first.table_nE.shape[0] - len(tails), *(tail.table_nE.shape[0] for tail in tails)]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    cluster_BL = jnp.zeros_like(targets_BL)
    for start in starts[1:]:
        cluster_BL = cluster_BL + (targets_BL >= start).astype(targets_BL.dtype)
    return cluster_BL, targets_BL - jnp.asarray(starts, targets_BL.dtype)[cluster_BL]


def take(logits_BLn: Array, place_BL: Array) -> Array:
    """The logits at one place of each row, [B, L]."""
    return jnp.take_along_axis(logits_BLn, place_BL[..., None], axis=-1)[..., 0]

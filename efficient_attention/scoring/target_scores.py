"""Computes the log-probabilities of target tokens from hidden states, on a few positions at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.objectives.chunked_loss import split_into_position_chunks

MOST_LOGITS = 2**25  # number of logits that are in memory at a time


def score_targets(
    logits_of: Callable[[Array], Array], vocab_size: int, hidden_BPD: Array, targets_BP: Array, counts_B: Array
) -> tuple[Array, Array]:
    """Returns the summed log-probability of each row's targets, float32 [B], and whether all targets are the most
    probable tokens, bool [B].

    Args:
        logits_of: function from hidden states [B, c, D] to float32 logits [B, c, V].
        vocab_size: V.
        hidden_BPD: the states that predict the targets.
        targets_BP: ids below V.
        counts_B: number of targets per row; later ones are padding.
    """
    batch, length = targets_BP.shape
    chunk = max(1, min(length, MOST_LOGITS // (batch * vocab_size)))

    def score_chunk(arrays: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden_BcD, targets_Bc = arrays
        logits_BcV = logits_of(hidden_BcD)
        chosen_Bc = jnp.take_along_axis(logits_BcV, targets_Bc[..., None], axis=-1)[..., 0]
        log_probs_Bc = chosen_Bc - jax.nn.logsumexp(logits_BcV, axis=-1)
        return log_probs_Bc, logits_BcV.argmax(axis=-1) == targets_Bc

    chunks = split_into_position_chunks(hidden_BPD, chunk), split_into_position_chunks(targets_BP, chunk)
    log_probs_BP, is_best_BP = (
        x_nBc.swapaxes(0, 1).reshape(batch, -1)[:, :length] for x_nBc in jax.lax.map(score_chunk, chunks)
    )
    is_target_BP = jnp.arange(length)[None] < counts_B[:, None]
    return jnp.where(is_target_BP, log_probs_BP, 0).sum(axis=1), (is_best_BP | ~is_target_BP).all(axis=1)

"""Causal language modelling: the cross-entropy of each next token."""

from jax import Array
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.memory import AnyMemory, empty_memory
from efficient_attention.objectives.adaptive_loss import adaptive_sums
from efficient_attention.objectives.chunked_loss import chunked_sums
from efficient_attention.objectives.objective import Batch, Objective, Sums
from efficient_attention.objectives.weighted_sums import is_best, weighted_sums


class LanguageModelling(Objective):
    """Cross-entropy of `targets` given all tokens up to their place, each times its weight; padding weighs 0.

    `model` is the config of a decoder whose memory goes from batch to batch; None where batches know nothing of others.
    """

    def __init__(self, model: ModelConfig | None = None) -> None:
        self.model = model

    def weights(self, batch: Batch) -> dict[str, Array]:
        """How many tokens are predicted ('causal_lm')."""
        return {'causal_lm': batch['weights'].sum()}

    def initial_carry(self, rows: int) -> AnyMemory | None:
        """An empty memory, for a decoder that keeps one."""
        return empty_memory(self.model, rows) if self.model and self.model.memory_length else None

    def sums(
        self, model: Decoder, batch: Batch, carry: AnyMemory | None, rng: Array | None, step: Array | int = 0
    ) -> tuple[Sums, AnyMemory | None]:
        """Loss (nats) and correct predictions, and the memory after the batch where `carry` is the one before it.

        With `unigram_losses` in the batch also their sum.
        """
        tokens_BL, segments_BL = batch['tokens'], batch['segments']
        if carry is None:
            hidden_BLD = model.hidden(tokens_BL, segments_BL, rng=rng, step=step)
        else:
            hidden_BLD, carry = model.continued(tokens_BL, segments_BL, carry, rng=rng)
        sums = output_sums(model, hidden_BLD, batch['targets'], batch['weights'])
        if 'unigram_losses' in batch:  # held-out batches: what a unigram model loses on the same tokens
            sums['unigram_loss'] = (batch['unigram_losses'] * batch['weights']).sum()
        return {'causal_lm': sums}, carry


def output_sums(model: Decoder, hidden_BLD: Array, targets_BL: Array, weights_BL: Array) -> dict[str, Array]:
    """'loss' and 'accuracy', of `model.config.loss_chunk` positions of each row at a time where it is above 0."""
    chunk = model.config.loss_chunk
    clustered = model.head.clustered(hidden_BLD, model.embeddings.token) if chunk else None
    if clustered is not None:
        return adaptive_sums(*clustered, targets_BL, weights_BL, chunk=chunk)

    def sums_of(hidden_BcD: Array, targets_Bc: Array, weights_Bc: Array) -> dict[str, Array]:
        logits_BcV = model.logits(hidden_BcD)
        return weighted_sums(cross_entropy(logits_BcV, targets_Bc), is_best(logits_BcV, targets_Bc), weights_Bc)

    return chunked_sums(sums_of, hidden_BLD, targets_BL, weights_BL, chunk=chunk)

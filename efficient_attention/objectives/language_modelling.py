"""Causal language modelling: the cross-entropy of each next token."""

from jax import Array

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.memory import Memory, empty_memory
from efficient_attention.objectives.adaptive_loss import adaptive_sums
from efficient_attention.objectives.chunked_loss import chunked_sums
from efficient_attention.objectives.objective import Batch, Objective, Sums


class LanguageModelling(Objective):
    """Cross-entropy of `targets` given all tokens up to their place, each times its weight; padding weighs 0.

    `model` is the config of a decoder whose memory goes from batch to batch; None where batches know nothing of others.
    """

    def __init__(self, model: ModelConfig | None = None) -> None:
        self.model = model

    def weights(self, batch: Batch) -> dict[str, Array]:
        """How many tokens are predicted ('causal_lm')."""
        return {'causal_lm': batch['weights'].sum()}

    def sums(self, model: Decoder, batch: Batch, rng: Array | None, step: Array | int = 0) -> Sums:
        """Loss (nats) and correct predictions; with `unigram_losses` in the batch also their sum."""
        return self.of_hidden(model, batch, model.hidden(batch['tokens'], batch['segments'], rng=rng, step=step))

    def initial_carry(self, rows: int) -> Memory | None:
        """An empty memory, for a decoder that keeps one."""
        return empty_memory(self.model, rows) if self.model and self.model.memory_length else None

    def sums_and_carry(
        self, model: Decoder, batch: Batch, carry: Memory | None, rng: Array | None, step: Array | int = 0
    ) -> tuple[Sums, Memory | None]:
        """`sums` of the segments that follow on a memory, and the memory after them."""
        if carry is None:
            return self.sums(model, batch, rng, step), None
        hidden_BLD, memory = model.continued(batch['tokens'], batch['segments'], carry, rng=rng)
        return self.of_hidden(model, batch, hidden_BLD), memory

    def of_hidden(self, model: Decoder, batch: Batch, hidden_BLD: Array) -> Sums:
        """The sums from the vectors that the output layer reads."""
        sums = output_sums(model, hidden_BLD, batch['targets'], batch['weights'])
        if 'unigram_losses' in batch:  # held-out batches: what a unigram model loses on the same tokens
            sums['unigram_loss'] = (batch['unigram_losses'] * batch['weights']).sum()
        return {'causal_lm': sums}


def output_sums(model: Decoder, hidden_BLD: Array, targets_BL: Array, weights_BL: Array) -> dict[str, Array]:
    """'loss' and 'accuracy', of `model.config.loss_chunk` positions of each row at a time where it is above 0."""
    chunk = model.config.loss_chunk
    clustered = model.head.clustered(hidden_BLD, model.embeddings.token) if chunk else None
    if clustered is not None:
        return adaptive_sums(*clustered, targets_BL, weights_BL, chunk=chunk)
    return chunked_sums(model.logits, hidden_BLD, targets_BL, weights_BL, chunk=chunk)

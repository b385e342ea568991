"""Causal language modelling: the cross-entropy of each next token."""

from jax import Array

from efficient_attention.models.decoder import Decoder
from efficient_attention.objectives.chunked_loss import chunked_sums
from efficient_attention.objectives.objective import Batch, Objective, Sums


class LanguageModelling(Objective):
    """Cross-entropy of `targets` given all tokens up to their place, each times its weight; padding weighs 0."""

    def weights(self, batch: Batch) -> dict[str, Array]:
        """How many tokens are predicted ('causal_lm')."""
        return {'causal_lm': batch['weights'].sum()}

    def sums(self, model: Decoder, batch: Batch, rng: Array | None, step: Array | int = 0) -> Sums:
        """Loss (nats) and correct predictions; with `unigram_losses` in the batch also their sum."""
        hidden_BLD = model.hidden(batch['tokens'], batch['segments'], rng=rng, step=step)
        sums = chunked_sums(model.logits, hidden_BLD, batch['targets'], batch['weights'], chunk=model.config.loss_chunk)
        if 'unigram_losses' in batch:  # held-out batches: what a unigram model loses on the same tokens
            sums['unigram_loss'] = (batch['unigram_losses'] * batch['weights']).sum()
        return {'causal_lm': sums}

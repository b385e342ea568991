"""Losses of masked language modelling, with or without a sentence-pair label (next sentence or sentence order)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax import Array
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.models.pretraining import PretrainingModel, pad_predictions_to_devices
from efficient_attention.objectives.objective import Batch, Objective, Sums, is_top_prediction, weighted_sums


@dataclasses.dataclass(frozen=True)
class Pretraining(Objective):
    """Cross-entropy of masked tokens, plus cross-entropy of the sentence-pair label if there are pairs.

    The two terms have equal weight, as in BERT's code.
    """

    has_pairs: bool

    def weights(self, batch: Batch) -> dict[str, Array]:
        """Returns the number of masked tokens ('masked_lm') and of labelled sentence pairs ('pair') in the batch."""
        weights = {'masked_lm': batch['masked_weights'].sum()}
        return weights | {'pair': batch['pair_weights'].sum()} if self.has_pairs else weights

    def sums(
        self, model: PretrainingModel, batch: Batch, carry: Any, rng: Array | None, step: Array | int = 0
    ) -> tuple[Sums, Any]:
        """Returns the sums of losses and of correct predictions over the batch, and `carry` unchanged."""
        return self.sums_of(model.outputs(batch, rng=rng, step=step), batch), carry

    def sums_of(self, outputs: Mapping[str, Array], batch: Batch) -> Sums:
        """Returns the sums of losses and correct predictions, from the outputs of a `PretrainingModel`."""
        batch = pad_predictions_to_devices(batch)
        logits_BPV = outputs['masked_lm']
        tokens_BP, weights_BP = batch['masked_tokens'], batch['masked_weights']
        losses_BP = cross_entropy(logits_BPV, tokens_BP)
        sums = {'masked_lm': weighted_sums(losses_BP, is_top_prediction(logits_BPV, tokens_BP), weights_BP)}
        if 'unigram_losses' in batch:  # Validation batches also contain a unigram model's losses on the same tokens.
            sums['masked_lm']['unigram_loss'] = (batch['unigram_losses'] * weights_BP).sum()
        if self.has_pairs:
            logits_BC, labels_B = outputs['pair'], batch['pair_labels']
            losses_B = cross_entropy(logits_BC, labels_B)
            sums['pair'] = weighted_sums(losses_B, is_top_prediction(logits_BC, labels_B), batch['pair_weights'])
        return sums

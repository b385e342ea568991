"""Causal language modelling: the cross-entropy of each next token."""

import jax.numpy as jnp
from jax import Array
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.attention.request import segments_of_batch
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.bidirectional_lm import TwoWayLanguageModel
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.segment_memory import AnyMemory, empty_memory
from efficient_attention.modules.memory_compression import AuxLosses, auxiliary_losses
from efficient_attention.objectives.adaptive_softmax_loss import adaptive_softmax_loss_sums
from efficient_attention.objectives.chunked_loss import chunked_sums
from efficient_attention.objectives.objective import Batch, Objective, Sums, is_top_prediction, weighted_sums

LanguageModel = Decoder | TwoWayLanguageModel


class LanguageModelling(Objective):
    """The cross-entropy of each next token given all earlier tokens, times the token's weight; padding has weight 0.

    A bidirectional language model has a second term: it also predicts each token from the later tokens of the row.

    `model` is the config of a decoder with memory across batches, or of a bidirectional model. It is None if batches
    are independent.
    """

    def __init__(self, model: ModelConfig | None = None) -> None:
        self.model = model
        self.is_two_way = model is not None and model.directions_apart
        self.aux_losses = {} if model is None else auxiliary_losses(model)

    def weights(self, batch: Batch) -> dict[str, Array]:
        """Returns the number of tokens predicted forwards ('causal_lm') and backwards ('backward_lm').

        Auxiliary layer losses have weight 1 per token that is not padding.
        """
        weights = {'causal_lm': batch['weights'].sum()}
        weights |= {'backward_lm': backward_weights(batch).sum()} if self.is_two_way else {}
        return weights | {term: (batch['segments'] > 0).astype(jnp.float32).sum() for term in self.aux_losses}

    def loss_factor(self, term: str) -> float:
        """Returns the configured factor of an auxiliary layer loss; 1 for other loss terms."""
        return self.aux_losses.get(term, 1.0)

    def initial_carry(self, rows: int) -> AnyMemory | None:
        """Returns an empty memory for a decoder with memory across batches; otherwise None."""
        return empty_memory(self.model, rows) if self.model and self.model.memory_length else None

    def sums(
        self, model: LanguageModel, batch: Batch, carry: AnyMemory | None, rng: Array | None, step: Array | int = 0
    ) -> tuple[Sums, AnyMemory | None]:
        """Returns the sums of losses (nats) and correct predictions of a language model over a batch, and the segment
        memory for the next batch.

        `carry` is the memory before the batch. If the batch has `unigram_losses`, their sum is included. Each auxiliary
        layer loss is a separate term.
        """
        aux_losses: AuxLosses = {}
        tokens_BL, segments_BL = batch['tokens'], batch['segments']
        if carry is None:
            hidden_BLD = model.hidden(tokens_BL, segments_of_batch(batch), rng=rng, step=step)
        else:
            assert isinstance(model, Decoder)  # only a decoder has memory
            hidden_BLD, carry, aux_losses = model.continue_with_aux_losses(tokens_BL, segments_BL, carry, rng=rng)
        back_BLD = None
        if self.is_two_way:
            hidden_BLD, back_BLD = jnp.split(hidden_BLD, 2, axis=-1)
        sums = next_token_loss_sums(model, hidden_BLD, batch['targets'], batch['weights'])
        if 'unigram_losses' in batch:  # Validation batches also contain a unigram model's losses on the same tokens.
            sums['unigram_loss'] = (batch['unigram_losses'] * batch['weights']).sum()
        of_layers = {term: {'loss': total} for term, total in aux_losses.items()}
        if back_BLD is None:
            return {'causal_lm': sums} | of_layers, carry
        back = next_token_loss_sums(model, back_BLD[:, 1:], tokens_BL[:, :-1], backward_weights(batch))
        return {'causal_lm': sums, 'backward_lm': back}, carry


def backward_weights(batch: Batch) -> Array:
    """Returns the loss weights of a backward model, which predicts each token from the tokens after it: float32 [rows,
    tokens - 1].

    The loss weight of token t is the weight of token t + 1, or 0 if the tokens belong to different texts. The last
    token of a row has no later token in the row.
    """
    segments_BL = batch['segments']
    is_one_text = (segments_BL[:, 1:] == segments_BL[:, :-1]) & (segments_BL[:, 1:] > 0)
    return batch['weights'][:, 1:] * is_one_text.astype(jnp.float32)


def next_token_loss_sums(
    model: LanguageModel, hidden_BLD: Array, targets_BL: Array, weights_BL: Array
) -> dict[str, Array]:
    """Returns the sums of the loss ('loss') and of correct predictions ('accuracy') of next tokens.

    They are computed in chunks of `model.config.loss_chunk` positions if it is above 0.
    """
    chunk = model.config.loss_chunk
    clustered = model.head.clusters_and_inputs(hidden_BLD, model.embeddings.token) if chunk else None
    if clustered is not None:
        return adaptive_softmax_loss_sums(*clustered, targets_BL, weights_BL, chunk=chunk)

    def sums_of(hidden_BcD: Array, targets_Bc: Array, weights_Bc: Array) -> dict[str, Array]:
        logits_BcV = model.logits(hidden_BcD)
        return weighted_sums(
            cross_entropy(logits_BcV, targets_Bc), is_top_prediction(logits_BcV, targets_Bc), weights_Bc
        )

    return chunked_sums(sums_of, hidden_BLD, targets_BL, weights_BL, chunk=chunk)

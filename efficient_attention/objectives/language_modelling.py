"""Causal language modelling: the cross-entropy of each next token."""

import jax.numpy as jnp
from jax import Array
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.memory import AnyMemory, empty_memory
from efficient_attention.models.two_way import TwoWayLanguageModel
from efficient_attention.modules.compression import Told, told_losses
from efficient_attention.objectives.adaptive_loss import adaptive_sums
from efficient_attention.objectives.chunked_loss import chunked_sums
from efficient_attention.objectives.objective import Batch, Objective, Sums, is_best, weighted_sums

LanguageModel = Decoder | TwoWayLanguageModel


class LanguageModelling(Objective):
    """Cross-entropy of `targets` given all tokens up to their place, each times its weight; padding weighs 0.

    A model of both directions also predicts each token from those behind it in the row, a term of its own.

    `model` is the config of a decoder whose memory goes from batch to batch, or of a model of both directions; None
    where batches know nothing of others.
    """

    def __init__(self, model: ModelConfig | None = None) -> None:
        self.model = model
        self.is_two_way = model is not None and model.directions_apart
        self.told = {} if model is None else told_losses(model)

    def weights(self, batch: Batch) -> dict[str, Array]:
        """How many tokens are predicted ('causal_lm'), and how many from those behind them ('backward_lm').

        The losses that layers tell have a weight of 1 for each token that is read.
        """
        weights = {'causal_lm': batch['weights'].sum()}
        weights |= {'backward_lm': backward_weights(batch).sum()} if self.is_two_way else {}
        return weights | {term: (batch['segments'] > 0).astype(jnp.float32).sum() for term in self.told}

    def factor(self, term: str) -> float:
        """That of a loss that layers tell is in the config; others count as they are."""
        return self.told.get(term, 1.0)

    def initial_carry(self, rows: int) -> AnyMemory | None:
        """An empty memory, for a decoder that keeps one."""
        return empty_memory(self.model, rows) if self.model and self.model.memory_length else None

    def sums(
        self, model: LanguageModel, batch: Batch, carry: AnyMemory | None, rng: Array | None, step: Array | int = 0
    ) -> tuple[Sums, AnyMemory | None]:
        """Loss (nats) and correct predictions of a `Decoder` or a `TwoWayLanguageModel`.

        Handed on is the memory after the batch, where `carry` is the one before it.

        With `unigram_losses` in the batch also their sum. What layers tell are terms of their own.
        """
        told: Told = {}
        tokens_BL, segments_BL = batch['tokens'], batch['segments']
        if carry is None:
            hidden_BLD = model.hidden(tokens_BL, segments_BL, rng=rng, step=step)
        else:
            assert isinstance(model, Decoder)  # the other keeps no memory
            hidden_BLD, carry, told = model.telling(tokens_BL, segments_BL, carry, rng=rng)
        back_BLD = None
        if self.is_two_way:
            hidden_BLD, back_BLD = jnp.split(hidden_BLD, 2, axis=-1)
        sums = output_sums(model, hidden_BLD, batch['targets'], batch['weights'])
        if 'unigram_losses' in batch:  # held-out batches: what a unigram model loses on the same tokens
            sums['unigram_loss'] = (batch['unigram_losses'] * batch['weights']).sum()
        of_layers = {term: {'loss': total} for term, total in told.items()}
        if back_BLD is None:
            return {'causal_lm': sums} | of_layers, carry
        back = output_sums(model, back_BLD[:, 1:], tokens_BL[:, :-1], backward_weights(batch))
        return {'causal_lm': sums, 'backward_lm': back}, carry


def backward_weights(batch: Batch) -> Array:
    """float32 [B, L - 1]: how much token t counts that is predicted from token t + 1 and those behind it.

    Both are of one text, and token t + 1 counts itself. A row's last token is behind nothing that the row has.
    """
    segments_BL = batch['segments']
    is_one_text = (segments_BL[:, 1:] == segments_BL[:, :-1]) & (segments_BL[:, 1:] > 0)
    return batch['weights'][:, 1:] * is_one_text.astype(jnp.float32)


def output_sums(model: LanguageModel, hidden_BLD: Array, targets_BL: Array, weights_BL: Array) -> dict[str, Array]:
    """'loss' and 'accuracy', of `model.config.loss_chunk` positions of each row at a time where it is above 0."""
    chunk = model.config.loss_chunk
    clustered = model.head.clustered(hidden_BLD, model.embeddings.token) if chunk else None
    if clustered is not None:
        return adaptive_sums(*clustered, targets_BL, weights_BL, chunk=chunk)

    def sums_of(hidden_BcD: Array, targets_Bc: Array, weights_Bc: Array) -> dict[str, Array]:
        logits_BcV = model.logits(hidden_BcD)
        return weighted_sums(cross_entropy(logits_BcV, targets_Bc), is_best(logits_BcV, targets_Bc), weights_Bc)

    return chunked_sums(sums_of, hidden_BLD, targets_BL, weights_BL, chunk=chunk)

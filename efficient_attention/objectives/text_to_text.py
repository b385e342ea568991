"""The loss of text to text: the cross-entropy of each target token, given the source and the earlier target tokens."""

import jax
import jax.numpy as jnp
from jax import Array
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.attention.request import segments_of_batch
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.objectives.chunked_loss import chunked_sums
from efficient_attention.objectives.objective import Batch, Objective, Sums, is_top_prediction
from efficient_attention.objectives.reinforce import surrogate

TERM = 'target'


class TextToText(Objective):
    """The cross-entropy of each target token, times the token's weight; padding has weight 0.

    Args:
        label_smoothing: share e of the label distributed over the full vocabulary: (1 - e) [v = target] + e / V
            (Szegedy et al. 2015, arXiv 1512.00567, section 7; Vaswani et al. 2017, section 5.4).
        z_loss: factor of the square of each softmax's log normaliser, which keeps logits near 0 (T5's code: 1e-4).
    """

    def __init__(self, *, label_smoothing: float = 0.0, z_loss: float = 0.0) -> None:
        self.label_smoothing, self.z_loss = label_smoothing, z_loss

    def weights(self, batch: Batch) -> dict[str, Array]:
        """Returns the number of predicted target tokens."""
        return {TERM: batch['weights'].sum()}

    def sums(
        self, model: EncoderDecoder, batch: Batch, carry: None, rng: Array | None, step: Array | int = 0
    ) -> tuple[Sums, None]:
        """Returns the sums of the training loss, of the cross-entropy (nats) and of correct predictions of targets.

        The training loss includes label smoothing and z-loss. The names are 'loss', 'cross_entropy' and 'accuracy'.

        If cross-attention samples keys, 'loss' includes a surrogate term of value 0. It adds the gradient of the
        sampling.
        """
        hidden_BLD, drawn_BL = model.hidden_and_draws(
            batch['source'],
            segments_of_batch(batch, 'source_'),
            batch['tokens'],
            segments_of_batch(batch),
            positions=(batch.get('source_positions'), batch.get('positions')),
            rng=rng,
            step=step,
        )

        def sums_of(hidden_BcD: Array, targets_Bc: Array, weights_Bc: Array) -> dict[str, Array]:
            logits_BcV = model.logits(hidden_BcD)
            loss_Bc, cross_entropy_Bc = self.losses(logits_BcV, targets_Bc)
            is_correct_Bc = is_top_prediction(logits_BcV, targets_Bc).astype(jnp.float32)
            found = {'loss': loss_Bc, 'cross_entropy': cross_entropy_Bc, 'accuracy': is_correct_Bc}
            sums = {name: (value_Bc * weights_Bc).sum() for name, value_Bc in found.items()}
            # With sampled attention, there is only one chunk; check_sampled_attention of the config ensures it.
            if drawn_BL is not None:
                draws = surrogate(drawn_BL, loss_Bc * weights_Bc, batch['segments'])
                sums['loss'] = sums['loss'] + model.config.reinforce_weight * draws
            return sums

        chunk = model.config.loss_chunk
        return {TERM: chunked_sums(sums_of, hidden_BLD, batch['targets'], batch['weights'], chunk=chunk)}, carry

    def losses(self, logits_BLV: Array, targets_BL: Array) -> tuple[Array, Array]:
        """Returns each target's loss with label smoothing and z-loss, and its plain cross-entropy, float32 [B, L]."""
        loss_BL = cross_entropy_BL = cross_entropy(logits_BLV, targets_BL)
        normaliser_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
        if self.label_smoothing:
            uniform_BL = normaliser_BL - logits_BLV.mean(axis=-1)
            loss_BL = (1.0 - self.label_smoothing) * cross_entropy_BL + self.label_smoothing * uniform_BL
        if self.z_loss:
            loss_BL = loss_BL + self.z_loss * jnp.square(normaliser_BL)
        return loss_BL, cross_entropy_BL

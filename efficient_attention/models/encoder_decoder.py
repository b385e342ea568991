"""An encoder-decoder with cross-attention: Vaswani's Transformer, T5 or BART, depending on the config."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import gather_parameter
from efficient_attention.attention.foreign_keywords import refuse_foreign_keywords
from efficient_attention.attention.request import AnySegments, segments_and_lengths
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder, DecoderOptions
from efficient_attention.models.encoder import Encoder, EncoderOptions
from efficient_attention.models.segment_memory import StateMemory
from efficient_attention.modules.layer import CROSS_ATTENTION, sub_layers_of
from efficient_attention.modules.layer_constructors import kernel_init
from efficient_attention.modules.layer_context import EncodedSource, fold_into_key
from efficient_attention.recurrence.cell_interface import States
from efficient_attention.recurrence.cells import find_cell


class EncoderDecoder(nnx.Module):
    """A model that maps source ids and target ids to next-token logits, [B, M] and [B, L] -> [B, L, V].

    Sources: Vaswani et al. 2017, arXiv 1706.03762; Raffel et al. 2019, arXiv 1910.10683; Lewis et al. 2019, arXiv
    1910.13461.

    Raises:
        InputError: the config has no decoder, or its decoder reads later positions.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        sub_layers = sub_layers_of(config.decoder, reads_other=config.source_reading == 'layers')
        self.decoder = Decoder(config.decoder, sub_layers=sub_layers, rngs=rngs)
        self.encoder = Encoder(config.encoder, rngs=rngs)
        self.initial = DecoderInitialState(config, rngs=rngs) if config.initial_state != 'zeros' else None
        if config.shared_table:
            self.encoder.embeddings.token = self.decoder.embeddings.token

    @refuse_foreign_keywords
    def __call__(
        self,
        source_BM: Array,
        source_segments_BM: AnySegments,
        tokens_BL: Array,
        segments_BL: AnySegments,
        *,
        positions: tuple[Array | None, Array | None] = (None, None),
        rng: Array | None = None,
        step: Array | int = 0,
    ) -> Array:
        """Returns float32 logits [B, L, V] of the next target token.

        The logits at position t depend on the source and on target tokens 0 ... t. The arguments are the same as for
        `hidden`.
        """
        sequences = source_BM, source_segments_BM, tokens_BL, segments_BL
        return self.logits(self.hidden(*sequences, positions=positions, rng=rng, step=step))

    def hidden(
        self,
        source_BM: Array,
        source_segments_BM: AnySegments,
        tokens_BL: Array,
        segments_BL: AnySegments,
        *,
        positions: tuple[Array | None, Array | None] = (None, None),
        rng: Array | None = None,
        step: Array | int = 0,
    ) -> Array:
        """Returns the decoder's final hidden states [B, L, D], from which `logits` computes the logits.

        Args:
            source_BM: ids for the encoder.
            source_segments_BM: 0 = padding; 1, 2, ... = packed sources; an array or `Lengths`. A target reads only the
                source with its number.
            tokens_BL: ids for the decoder, with the start symbol first.
            segments_BL: the same for the targets.
            positions: positions of the tokens in their texts, [B, M] of sources and [B, L] of targets; 0, 1, ... by
                default.
            rng: PRNG key, or one per row; enables dropout.
            step: training step, which determines the samples of random mechanisms; 0 outside training.
        """
        source = source_BM, source_segments_BM
        return self.decoder.hidden(tokens_BL, segments_BL, **self.decoder_options(source, positions, rng, step))

    def hidden_and_draws(
        self,
        source_BM: Array,
        source_segments_BM: AnySegments,
        tokens_BL: Array,
        segments_BL: AnySegments,
        *,
        positions: tuple[Array | None, Array | None] = (None, None),
        rng: Array | None = None,
        step: Array | int = 0,
    ) -> tuple[Array, Array | None]:
        """Returns the decoder's final hidden states, and the summed log-probability [B, L] of the cross-attention keys
        that each position sampled.

        The log-probability is None if nothing is sampled: the cross-attention samples no keys, or `rng` is None.
        """
        read = self.decoder_options((source_BM, source_segments_BM), positions, rng, step)
        if rng is None or not self.config.cross_mechanism.randomness.in_training:
            return self.decoder.hidden(tokens_BL, segments_BL, **read), None
        if self.config.source_reading != 'layers':
            hidden_BLD, operands = self.decoder.hidden_and_source_operands(tokens_BL, segments_BL, **read)
            assert operands is not None and operands.drawn_BHL is not None
            return hidden_BLD, operands.drawn_BHL.sum(axis=1)
        hidden_BLD, activations = self.decoder.with_layer_activations(tokens_BL, segments_BL, **read)
        drawn_NBHL = activations.attention[CROSS_ATTENTION.name].drawn_BHL
        assert drawn_NBHL is not None
        return hidden_BLD, drawn_NBHL.sum(axis=(0, 2))

    def decoder_options(
        self,
        source: tuple[Array, AnySegments],
        positions: tuple[Array | None, Array | None],
        rng: Array | None,
        step: Array | int,
    ) -> DecoderOptions:
        """Returns the keyword arguments for the decoder, including the encoded source.

        `source` holds ids and segments; the other arguments are the same as for `hidden`.
        """
        other = self.encode(*source, rng=fold_into_key(rng, 0), step=step, positions_BM=positions[0])
        return {'other': other, 'positions_BL': positions[1], 'rng': fold_into_key(rng, 1), 'step': step}

    @jax.named_scope('encoder')
    def encode(
        self,
        source_BM: Array,
        segments_BM: AnySegments,
        *,
        positions_BM: Array | None = None,
        rng: Array | None = None,
        step: Array | int = 0,
    ) -> EncodedSource:
        """Returns the encoded source, which the decoder's cross-attention reads.

        One encoded source can be used for several targets. The arguments are the same as for `hidden`.
        """
        read: EncoderOptions = {'positions_BL': positions_BM, 'rng': rng, 'step': step}
        array_BM, lengths_B = segments_and_lengths(segments_BM, source_BM.shape[1])
        if self.initial is None:
            states_BMD = self.encoder(source_BM, segments_BM, **read)
            return EncodedSource(states_BMD, array_BM, positions_BM, lengths_B=lengths_B)
        states_BMD, last = self.encoder.with_recurrent_states(source_BM, segments_BM, **read)
        return EncodedSource(states_BMD, array_BM, positions_BM, self.initial(last), lengths_B)

    def logits(self, hidden_BLD: Array) -> Array:
        """Returns float32 logits [B, L, V] from the decoder's hidden states of all or some positions."""
        return self.decoder.logits(hidden_BLD)


class DecoderInitialState(nnx.Module):
    """The initial recurrent states of a decoder, computed from the final states of its encoder.

    The initial states are copies ('copy'), or tanh(W s) with a matrix W per layer and state array. Bahdanau et al. 2014
    (arXiv 1409.0473, A.2.2) map the state of the backward direction at the first token ('map_backward'). 'map' reads
    all directions. Luong et al. 2015 and Sutskever et al. 2014 copy.

    Args:
        config: the config of the encoder-decoder.
        rngs: generators of the initial values.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.form, self.layers = config.initial_state, config.layers
        self.kernel = None if self.form == 'copy' else self.initial_values(config, rngs)

    def initial_values(self, config: ModelConfig, rngs: nnx.Rngs) -> nnx.Param:
        """Returns the parameter with the matrices W that map the encoder's final states to the decoder's initial
        states.
        """
        encoder, decoder = config.encoder, config.decoder
        read = encoder.recurrent_state_width * (1 + (self.form == 'map' and encoder.bidirectional))
        shape = (
            find_cell(decoder.cell, decoder.width, decoder.recurrent_state_width).states,
            config.layers,
            read,
            decoder.recurrent_state_width,
        )
        return nnx.Param(kernel_init(config, 1.0 / math.sqrt(read))(rngs.params(), shape, jnp.float32))

    def __call__(self, last: StateMemory) -> States:
        """Returns the decoder's state arrays before its first token, float32 [B, N, U] each, for N layers of U
        units.
        """
        directions = last.vectors_BNU[-1:] if self.form == 'map_backward' else last.vectors_BNU
        if self.kernel is None:
            return directions[0]
        joined = [jnp.concatenate(arrays, axis=-1) for arrays in zip(*directions, strict=True)]
        kernel = gather_parameter(jnp.asarray(self.kernel[...]), 'DE')
        return tuple(jnp.tanh(project_layer_states(x_BNI, one)) for x_BNI, one in zip(joined, kernel, strict=True))


def project_layer_states(x_BNI: Array, kernel_NIU: Array) -> Array:
    """Returns each layer's state vector multiplied by this layer's matrix: [B, N, U] for N layers of U units."""
    return jnp.einsum('bni,niu->bnu', x_BNI, kernel_NIU, preferred_element_type=jnp.float32)

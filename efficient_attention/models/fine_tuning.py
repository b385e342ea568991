"""The fine-tuning model: an encoder with an output head for sequences, pairs, tokens, spans, choices or multi-hop
answers.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dropout import dropout
from efficient_attention.attention.request import segments_of_batch
from efficient_attention.config.head import POOLED, HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder, EncoderOptions
from efficient_attention.models.layer_activations import DistillationActivations
from efficient_attention.models.quantized import set_quantization
from efficient_attention.models.sentence_level_encoder import SentenceLevelEncoder, flatten_sentences
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS
from efficient_attention.modules.layer_constructors import linear, make_norm
from efficient_attention.modules.layer_context import fold_into_key
from efficient_attention.modules.pooling import Pooler, Pooling

OF_SEVERAL = ('towers', 'choice')  # head kinds for which one example is several encoder rows
JOINED = 4  # number of vectors in the features of a pair: a, b, a * b, a - b
ANSWER_TYPES = 3  # number of answer types of 'multi_hop': a text span, yes, no
READ = ('tokens', 'segments', 'lengths', 'token_types', 'is_global')  # batch arrays that the encoder reads
NOWHERE = -1e9  # logit that masks padding and missing choices
TOKEN_OUTPUTS = {
    'token': frozenset({'logits'}),
    'span': frozenset({'logits'}),
    'multi_hop': frozenset({'logits', 'support'}),
}


class FineTuningModel(nnx.Module):
    """An encoder with an output head; some heads read one pooled vector per row, others read the vector of each token.

    For a pooled vector, a pooling layer and an optional pooler precede the head. The pooler is the dense layer that
    pretraining may have trained. With `sentence_layers`, a row is a list of sentences. The encoder and the pooling give
    one vector per sentence, and a second level combines these vectors (models/sentence_level_encoder.py).
    """

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.mix = LayerMix(config.layers) if head.features == 'mix' else None
        is_pooled = head.kind in POOLED
        self.pooling = Pooling(config, head.pooling if is_pooled else 'first', rngs=rngs)
        self.sentences = SentenceLevelEncoder(config, head, rngs=rngs) if head.sentence_layers else None
        has_pooler = is_pooled and head.transform != 'none'
        joined = JOINED if head.kind == 'towers' else 1
        self.pooler = Pooler(config, activation=head.transform, vectors=joined, rngs=rngs) if has_pooler else None
        self.head = FineTuningHead(config, head, rngs=rngs)
        if self.pooler is not None:
            set_quantization(self.pooler, config, 'pooler')

    def __call__(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """Returns the head's float32 outputs for a batch, by name.

        Args:
            batch: 'tokens', 'segments' and 'token_types' [B, L]; [B, A, L] for choices, [B, 2, L] for towers, [B, S, L]
                for sentences. 'is_global' if tokens may be global. 'lengths' [B], [B, A], [B, 2] or [B, S] if the
                segments are 1 for a row's tokens, then 0.
            rng: a PRNG key per row; enables dropout.
            step: training step, which determines the samples of random mechanisms.

        Returns:
            'logits' [B, C] ('sequence', 'towers'), [B, L, C] ('token'), [B, L, 2] ('span', 'multi_hop') or [B, A]
                ('choice'). For 'multi_hop' also 'type' [B, 3] and 'support' [B, L].
        """
        if self.sentences is not None:
            x_BD = self.text_vectors(batch, rng, step)
            return self.head(x_BD if self.pooler is None else self.pooler(x_BD), rng=fold_into_key(rng, 1))
        rows, keys = self.encoder_rows(batch, rng)
        return self.head_outputs(self.encode(rows, fold_into_key(keys, 0), step), batch, keys)

    def encoder_rows(self, batch: dict[str, Array], rng: Array | None) -> tuple[dict[str, Array], Array | None]:
        """Returns the batch as encoder rows with a PRNG key per row. If an example has several choices, or two texts
        for two towers, each of them becomes a separate row.
        """
        return flatten_sentences(batch, rng, READ) if self.head.config.kind in OF_SEVERAL else (batch, rng)

    def head_outputs(self, x_BLD: Array, batch: dict[str, Array], keys_B: Array | None) -> dict[str, Array]:
        """Returns the head's outputs, computed from the encoder's hidden states of all rows; the PRNG keys `keys_B`
        enable dropout.
        """
        kind = self.head.config.kind
        if kind not in POOLED:
            return self.head(x_BLD, rng=fold_into_key(keys_B, 1))
        x_BD = self.pooling(x_BLD, batch['segments'].reshape(x_BLD.shape[:2]))
        if kind == 'towers':
            x_BD = pair_features(x_BD)
            keys_B = None if keys_B is None else keys_B[::2]
        outputs = self.head(x_BD if self.pooler is None else self.pooler(x_BD), rng=fold_into_key(keys_B, 1))
        return outputs if kind != 'choice' else {'logits': outputs['logits'].reshape(batch['tokens'].shape[:2])}

    @property
    def token_outputs(self) -> frozenset[str]:
        """The names of the outputs that have a token axis."""
        return token_output_names(self.head.config)

    def outputs(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """Returns the model's outputs for losses and predictions; the logits of padding are masked."""
        return self.mask_padding_logits(self(batch, rng=rng, step=step), batch)

    def with_hidden_states(
        self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0
    ) -> tuple[dict[str, Array], DistillationActivations]:
        """Returns the model's outputs with padding masked, and the activations by which distillation compares student
        and teacher.

        Rows of sentences are not supported.
        """
        rows, keys = self.encoder_rows(batch, rng)
        x_BLD, inside = self.encoder.with_hidden_states(
            rows['tokens'], segments_of_batch(rows), **self.encoder_options(rows, fold_into_key(keys, 0), step)
        )
        if self.mix is not None:
            x_BLD = self.mix(inside.states_NBLD)
        return self.mask_padding_logits(self.head_outputs(x_BLD, batch, keys), batch), inside

    def mask_padding_logits(self, outputs: dict[str, Array], batch: dict[str, Array]) -> dict[str, Array]:
        """Returns the outputs with the logits of padded positions and missing choices set to a large negative
        number.
        """
        kind = self.head.config.kind
        if kind in ('span', 'multi_hop'):
            is_padding = batch['segments'] == 0
            outputs['logits'] = jnp.where(is_padding[..., None], NOWHERE, outputs['logits'])
        if kind == 'choice':
            outputs['logits'] = jnp.where((batch['segments'] > 0).any(axis=-1), outputs['logits'], NOWHERE)
        return outputs

    def encode(self, batch: dict[str, Array], rng: Array | None = None, step: Array | int = 0) -> Array:
        """Returns the encoder's hidden states [B, L, D] for the head: the last layer's output, or a learned mix of all
        layers.

        Token types are ignored if the model has none.
        """
        read = self.encoder_options(batch, rng, step)
        if self.mix is None:
            return self.encoder(batch['tokens'], segments_of_batch(batch), **read)
        _, inside = self.encoder.with_hidden_states(batch['tokens'], segments_of_batch(batch), **read)
        return self.mix(inside.states_NBLD)

    def encoder_options(self, batch: dict[str, Array], rng: Array | None, step: Array | int) -> EncoderOptions:
        """Returns the encoder's keyword arguments from a batch: token types, global tokens, PRNG key and step."""
        types_BL = batch['token_types'] if self.encoder.config.token_types > 1 else None
        return {'token_types_BL': types_BL, 'rng': rng, 'step': step, 'is_global_BL': batch.get('is_global')}

    def text_vectors(self, batch: dict[str, Array], rng: Array | None = None, step: Array | int = 0) -> Array:
        """Returns one vector per text [B, D], pooled from the vectors of its sentences."""
        assert self.sentences is not None
        x_BSD = self.sentence_vectors(batch, rng, step)
        return self.sentences(x_BSD, sentence_mask(batch), rng=fold_into_key(rng, 2))

    def sentence_vectors(self, batch: dict[str, Array], rng: Array | None = None, step: Array | int = 0) -> Array:
        """Returns one vector per sentence [B, S, D], pooled from the hidden states of its tokens."""
        flat, keys = flatten_sentences(batch, rng, READ)
        x_BD = self.pooling(self.encode(flat, fold_into_key(keys, 0), step), flat['segments'])
        return x_BD.reshape(*batch['tokens'].shape[:2], -1)

    def pooling_weights(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Returns a dict of float32 pooling weights: 'words' [B, L], and for rows of sentences also 'sentences' [B, S].

        'words' is the weight of each token in the vector of its row or sentence; [B, S, L] for rows of sentences.
        'sentences' is the weight of each sentence in the text's vector.
        """
        if self.sentences is None:
            return {'words': self.pooling.pooling_weights(self.encode(batch), batch['segments'])}
        flat, segments_BS = flatten_sentences(batch, None, READ)[0], sentence_mask(batch)
        words_BL = self.pooling.pooling_weights(self.encode(flat), flat['segments'])
        x_BSD = self.sentences.encode(self.sentence_vectors(batch), segments_BS)
        sentences_BS = self.sentences.pooling.pooling_weights(x_BSD, segments_BS)
        return {'words': words_BL.reshape(batch['tokens'].shape), 'sentences': sentences_BS}


def sentence_mask(batch: dict[str, Array]) -> Array:
    """Returns the mask of sentences, int32 [B, S]: 1 for a sentence, 0 for a sentence of only padding."""
    return (batch['segments'] > 0).any(axis=-1).astype(jnp.int32)


def pair_features(x_BD: Array) -> Array:
    """Returns the features [a, b, a * b, a - b] of each pair of consecutive vectors a and b: [2 B, D] -> [B, 4 D]."""
    a_BD, b_BD = x_BD[::2], x_BD[1::2]
    return jnp.concatenate([a_BD, b_BD, a_BD * b_BD, a_BD - b_BD], axis=1)


def token_output_names(head: HeadConfig) -> frozenset[str]:
    """Returns the names of a head's outputs that have a token axis, such as the logits of a token head."""
    return TOKEN_OUTPUTS.get(head.kind, frozenset())


class FineTuningHead(nnx.Module):
    """The output head: dropout and a dense layer on the vector of a row or of each token, with optional extra
    layers.
    """

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> None:
        outputs = {'span': 2, 'multi_hop': 2, 'choice': 1}.get(head.kind, head.outputs)
        self.config, self.activation = head, config.activation
        self.inner = linear(config, config.width, config.feed_forward_width, rngs) if head.feed_forward else None
        self.outer = linear(config, config.feed_forward_width, config.width, rngs) if head.feed_forward else None
        self.norm = make_norm(config, config.width, rngs) if head.feed_forward else None
        self.out = linear(config, config.width, outputs, rngs, in_float32=True)
        is_multi_hop = head.kind == 'multi_hop'
        self.type = linear(config, config.width, ANSWER_TYPES, rngs, in_float32=True) if is_multi_hop else None
        self.support = linear(config, config.width, 1, rngs, in_float32=True) if is_multi_hop else None

    @jax.named_scope('head')
    def __call__(self, x: Float[Array, '... D'], *, rng: Array | None = None) -> dict[str, Array]:
        """Returns the head's float32 outputs from vectors [B, D] or [B, L, D]; `FineTuningModel` explains the
        names of the outputs.
        """
        x = dropout(x, self.config.dropout_rate, rng)
        if self.inner is not None and self.outer is not None and self.norm is not None:
            x = self.norm(x + self.outer(ACTIVATION_FUNCTIONS[self.activation](self.inner(x))))
        outputs = {'logits': self.out(x)}
        if self.type is not None and self.support is not None:
            outputs['type'] = self.type(x[:, 0])
            outputs['support'] = self.support(x)[..., 0]
        return outputs


class LayerMix(nnx.Module):
    """A learned weighted sum of the embeddings and the outputs of all layers, [N + 1, B, L, D] -> [B, L, D].

    The sum is gamma sum_j s_j h_j with s = softmax(w), and starts as the mean. Source: Peters et al. 2018 (ELMo), arXiv
    1802.05365, equation 1.
    """

    def __init__(self, layers: int) -> None:
        self.weights = nnx.Param(jnp.zeros(layers + 1, jnp.float32))
        self.scale = nnx.Param(jnp.ones((), jnp.float32))

    def __call__(self, states_NBLD: Array) -> Array:
        """Returns a learned mix of the hidden states of all layers, [B, L, D]: summed in float32, then cast to the
        dtype of the hidden states.
        """
        shares_N = jax.nn.softmax(self.weights[...]) * self.scale[...]
        mixed_BLD = jnp.einsum('N,NBLD->BLD', shares_N, states_NBLD.astype(jnp.float32))
        return mixed_BLD.astype(states_NBLD.dtype)

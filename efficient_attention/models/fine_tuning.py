"""The model that is fine-tuned: an encoder with a head for rows, pairs of them, tokens, spans, choices or answers."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dropout import dropout
from efficient_attention.config.head import POOLED, HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder, EncoderOptions
from efficient_attention.models.quantized import set_quantization
from efficient_attention.models.sentences import SentenceLevel, folded
from efficient_attention.models.taps import Inside
from efficient_attention.modules.context import fold
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS
from efficient_attention.modules.parameters import linear, make_norm
from efficient_attention.modules.pooling import Pooler, Pooling

OF_SEVERAL = ('towers', 'choice')  # kinds whose rows are several rows for the encoder
JOINED = 4  # vectors that two rows give to their head
ANSWER_TYPES = 3  # of 'multi_hop': a span of the text, yes, no
READ = ('tokens', 'segments', 'token_types', 'is_global')  # of a batch, by the encoder
NOWHERE = -1e9  # the logit of a position or choice that is padding
TOKEN_OUTPUTS = {
    'token': frozenset({'logits'}),
    'span': frozenset({'logits'}),
    'multi_hop': frozenset({'logits', 'support'}),
}


class FineTuningModel(nnx.Module):
    """An encoder, for kinds that read rows a pooling and the pooler that pretraining may have left, and a head.

    With `sentence_layers` a row is a list of sentences: the encoder and the pooling make a vector of each, and a second
    level one of these (models/sentences.py).
    """

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.mix = LayerMix(config.layers) if head.features == 'mix' else None
        is_pooled = head.kind in POOLED
        self.pooling = Pooling(config, head.pooling if is_pooled else 'first', rngs=rngs)
        self.sentences = SentenceLevel(config, head, rngs=rngs) if head.sentence_layers else None
        has_pooler = is_pooled and head.transform != 'none'
        joined = JOINED if head.kind == 'towers' else 1
        self.pooler = Pooler(config, activation=head.transform, vectors=joined, rngs=rngs) if has_pooler else None
        self.head = Head(config, head, rngs=rngs)
        if self.pooler is not None:
            set_quantization(self.pooler, config, 'pooler')

    def __call__(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """The head's float32 outputs for a batch.

        Args:
            batch: 'tokens', 'segments' and 'token_types' [B, L], of choices [B, A, L], of towers [B, 2, L], with
                sentences [B, S, L]; 'is_global' where tokens are.
            rng: a key for each row; turns dropout on.
            step: training step, which decides what random attention mechanisms draw.

        Returns:
            'logits' [B, C] ('sequence', 'towers'), [B, L, C] ('token'), [B, L, 2] ('span', 'multi_hop') or [B, A]
            ('choice'); of 'multi_hop' also 'type' [B, 3] and 'support' [B, L].
        """
        if self.sentences is not None:
            x_BD = self.text_vectors(batch, rng, step)
            return self.head(x_BD if self.pooler is None else self.pooler(x_BD), rng=fold(rng, 1))
        rows, keys = self.rows_of(batch, rng)
        return self.of_vectors(self.encode(rows, fold(keys, 0), step), batch, keys)

    def rows_of(self, batch: dict[str, Array], rng: Array | None) -> tuple[dict[str, Array], Array | None]:
        """The rows that the encoder reads and their keys: each choice, and each of two towers, is a row of its own."""
        return folded(batch, rng, READ) if self.head.config.kind in OF_SEVERAL else (batch, rng)

    def of_vectors(self, x_BLD: Array, batch: dict[str, Array], keys_B: Array | None) -> dict[str, Array]:
        """The head's outputs from the encoder's features of all rows; `keys_B` of these turn dropout on."""
        kind = self.head.config.kind
        if kind not in POOLED:
            return self.head(x_BLD, rng=fold(keys_B, 1))
        x_BD = self.pooling(x_BLD, batch['segments'].reshape(x_BLD.shape[:2]))
        if kind == 'towers':
            x_BD = joined_vectors(x_BD)
            keys_B = None if keys_B is None else keys_B[::2]
        outputs = self.head(x_BD if self.pooler is None else self.pooler(x_BD), rng=fold(keys_B, 1))
        return outputs if kind != 'choice' else {'logits': outputs['logits'].reshape(batch['tokens'].shape[:2])}

    @property
    def token_outputs(self) -> frozenset[str]:
        """The outputs with an axis of tokens."""
        return token_outputs(self.head.config)

    def outputs(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """As a call, with those of padding out of reach of any softmax: what losses and predictions read."""
        return self.without_padding(self(batch, rng=rng, step=step), batch)

    def with_inside(
        self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0
    ) -> tuple[dict[str, Array], Inside]:
        """The `outputs`, and what a student and its teacher are compared by; not of rows of sentences."""
        rows, keys = self.rows_of(batch, rng)
        x_BLD, inside = self.encoder.with_inside(
            rows['tokens'], rows['segments'], **self.read(rows, fold(keys, 0), step)
        )
        if self.mix is not None:
            x_BLD = self.mix(inside.states_NBLD)
        return self.without_padding(self.of_vectors(x_BLD, batch, keys), batch), inside

    def without_padding(self, outputs: dict[str, Array], batch: dict[str, Array]) -> dict[str, Array]:
        """Outputs whose logits of padding are out of reach of any softmax."""
        kind = self.head.config.kind
        if kind in ('span', 'multi_hop'):
            is_padding = batch['segments'] == 0
            outputs['logits'] = jnp.where(is_padding[..., None], NOWHERE, outputs['logits'])
        if kind == 'choice':
            outputs['logits'] = jnp.where((batch['segments'] > 0).any(axis=-1), outputs['logits'], NOWHERE)
        return outputs

    def encode(self, batch: dict[str, Array], rng: Array | None = None, step: Array | int = 0) -> Array:
        """The encoder's features [B, L, D]: its last layer's, or all of them mixed.

        Token types are left out where the model has none.
        """
        read = self.read(batch, rng, step)
        if self.mix is None:
            return self.encoder(batch['tokens'], batch['segments'], **read)
        _, inside = self.encoder.with_inside(batch['tokens'], batch['segments'], **read)
        return self.mix(inside.states_NBLD)

    def read(self, batch: dict[str, Array], rng: Array | None, step: Array | int) -> EncoderOptions:
        """What the encoder reads beside tokens and segments."""
        types_BL = batch['token_types'] if self.encoder.config.token_types > 1 else None
        return {'token_types_BL': types_BL, 'rng': rng, 'step': step, 'is_global_BL': batch.get('is_global')}

    def text_vectors(self, batch: dict[str, Array], rng: Array | None = None, step: Array | int = 0) -> Array:
        """One vector for each row [B, D]: its pooled sentences."""
        assert self.sentences is not None
        x_BSD = self.sentence_vectors(batch, rng, step)
        return self.sentences(x_BSD, sentence_segments(batch), rng=fold(rng, 2))

    def sentence_vectors(self, batch: dict[str, Array], rng: Array | None = None, step: Array | int = 0) -> Array:
        """One vector for each of a row's rows, [B, S, D]: its pooled tokens."""
        flat, keys = folded(batch, rng, READ)
        x_BD = self.pooling(self.encode(flat, fold(keys, 0), step), flat['segments'])
        return x_BD.reshape(*batch['tokens'].shape[:2], -1)

    def pooling_weights(self, batch: dict[str, Array]) -> dict[str, Array]:
        """How much each token weighs in its row's vector or in its sentence's: float32 'words' [B, L] or [B, S, L].

        Of sentences also 'sentences' [B, S]: how much each weighs in its text's vector.
        """
        if self.sentences is None:
            return {'words': self.pooling.weights(self.encode(batch), batch['segments'])}
        flat, segments_BS = folded(batch, None, READ)[0], sentence_segments(batch)
        words_BL = self.pooling.weights(self.encode(flat), flat['segments'])
        x_BSD = self.sentences.encode(self.sentence_vectors(batch), segments_BS)
        sentences_BS = self.sentences.pooling.weights(x_BSD, segments_BS)
        return {'words': words_BL.reshape(batch['tokens'].shape), 'sentences': sentences_BS}


def sentence_segments(batch: dict[str, Array]) -> Array:
    """int32 [B, S]: 1 where there is a sentence, 0 where all its places are padding."""
    return (batch['segments'] > 0).any(axis=-1).astype(jnp.int32)


def joined_vectors(x_BD: Array) -> Array:
    """Vectors of rows that stand in pairs, [2 B, D], as what a head compares: [a, b, a * b, a - b], [B, 4 D]."""
    a_BD, b_BD = x_BD[::2], x_BD[1::2]
    return jnp.concatenate([a_BD, b_BD, a_BD * b_BD, a_BD - b_BD], axis=1)


def token_outputs(head: HeadConfig) -> frozenset[str]:
    """The names of a head's outputs with an axis of tokens."""
    return TOKEN_OUTPUTS.get(head.kind, frozenset())


class Head(nnx.Module):
    """Dropout and a dense layer on the vector of a row or of each token, with what `HeadConfig` adds."""

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

    def __call__(self, x: Float[Array, '... D'], *, rng: Array | None = None) -> dict[str, Array]:
        """float32 outputs from vectors [B, D] or [B, L, D], as `FineTuningModel` gives them."""
        x = dropout(x, self.config.dropout_rate, rng)
        if self.inner is not None and self.outer is not None and self.norm is not None:
            x = self.norm(x + self.outer(ACTIVATION_FUNCTIONS[self.activation](self.inner(x))))
        outputs = {'logits': self.out(x)}
        if self.type is not None and self.support is not None:
            outputs['type'] = self.type(x[:, 0])
            outputs['support'] = self.support(x)[..., 0]
        return outputs


class LayerMix(nnx.Module):
    """gamma sum_j s_j h_j with s = softmax(w) over the embeddings and the N layers, [N + 1, B, L, D] -> [B, L, D].

    At first it is their mean. Source: Peters et al. 2018 (ELMo), arXiv 1802.05365, equation 1.
    """

    def __init__(self, layers: int) -> None:
        self.weights = nnx.Param(jnp.zeros(layers + 1, jnp.float32))
        self.scale = nnx.Param(jnp.ones((), jnp.float32))

    def __call__(self, states_NBLD: Array) -> Array:
        """The vectors, in the dtype of the states; their sum is float32."""
        shares_N = jax.nn.softmax(self.weights[...]) * self.scale[...]
        mixed_BLD = jnp.einsum('N,NBLD->BLD', shares_N, states_NBLD.astype(jnp.float32))
        return mixed_BLD.astype(states_NBLD.dtype)

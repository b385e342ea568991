"""The config fields of one transformer layer and their checks; `ModelConfig` adds the fields of a whole model."""

import dataclasses
import functools
import math
from typing import Any

import jax.numpy as jnp

from efficient_attention.attention.attend import BACKENDS
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism, required_model_settings
from efficient_attention.config.field_metadata import CHANGEABLE, EXPORTED, field_read_by_tasks, field_with_marks
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError, require
from efficient_attention.recurrence.cells import CELLS

WITHOUT_BACKENDS = ('auto', 'blocked', 'reference')  # attention backends that can compute every mechanism
RELATIVE = ('none', 'alibi', 't5', 'tupe', 'tupe_r', 'transformer_xl')
BUCKETED = ('t5', 'tupe_r')  # values of `relative` that learn one bias per bucket of query-key distances
UNTIED = ('tupe', 'tupe_r')  # values of the field `relative` that add a product of positions to the product of contents
BIASES = ('none', 'alibi', 't5')  # values of the field `relative` that add a bias to the logits of any score
SCORES = ('dot', 'general', 'additive', 'location')
UNSCALED = ('additive', 'location')  # names of attention scores that are not multiplied by 1 / sqrt(K)
# field -> its required value with any score other than 'dot'
DOT_ALONE = {'shared_qk': False, 'rotary': False, 'global_tokens': 0}
ADDITIVE_BACKENDS = ('auto', 'reference', 'dense')
ACTIVATIONS = ('gelu_tanh', 'gelu_erf', 'gelu_sigmoid', 'relu', 'silu')
# field -> its required value in a layer without a feed-forward sub-layer; feed_forward_width must then be 4 x width
OF_FEED_FORWARD: dict[str, Any] = {
    'feed_forward_chunk': 0,
    'feed_forward_bias': True,
    'feed_forward_gate': False,
    'feed_forward_dropout_rate': 0.0,
}
OF_CELLS = ('bidirectional', 'state_width', 'state_dropout_rate', 'recurrent_chunk')
READINGS = ('layers', 'state', 'before', 'after')
INITIAL_STATES = ('zeros', 'copy', 'map', 'map_backward')
READOUTS = ('none', 'maxout')
OF_READINGS = ('source_reading', 'input_feeding', 'initial_state', 'readout')
COMPRESSIONS = ('none', 'convolution', 'mean', 'max')
OF_COMPRESSIONS = ('compressed_length', 'compression_rate', 'reconstruction_weight')
NORMS = ('post', 'pre', 'none')
NORM_KINDS = ('layer', 'rms')
KERNEL_INITS = ('fixed', 'fan_in')
DTYPES = ('float32', 'bfloat16')
# metadata key: with which values of `relative` a field is read; a field without this key is always read
KINDS = 'kinds'


def field_of_relative_attention(*kinds: str, default: Any) -> Any:
    """Returns a dataclass field that is read only with these values of `relative`; with any other value it must keep
    its default.
    """
    return dataclasses.field(default=default, metadata={KINDS: kinds})


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """Config of one layer: its sub-layers, sizes, norms, initial values and dtypes.

    The defaults are BERT's (Devlin et al. 2018, arXiv 1810.04805, and its released code). Each group of fields has its
    checks in a method below, in the same order.

    Scores: 'dot' is q k. 'general' is q W k (Luong et al. 2015, arXiv 1508.04025, equation 8). 'additive' is
    v tanh(q + k) (Bahdanau et al. 2014, arXiv 1409.0473). 'location' is q t, with a learned vector t per key position
    (Luong, equation 9).

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # -- Attention --

    width: int = 128  # D, the width of hidden states
    heads: int = 2  # H, the number of attention heads
    head_width: int = 0  # K, the width of a head; 0 = width / heads
    # attention mechanism as text; layers alternate between several mechanisms, separated by ';'
    attention: str = field_with_marks(EXPORTED, default='full')
    # how attention is computed: 'auto' | 'reference' | 'dense' | 'blocked' | 'jax_nn' | 'cudnn' | 'mosaic' | 'splash'
    attention_backend: str = field_with_marks(CHANGEABLE, EXPORTED, default='auto')
    # mechanism of cross-attention: full, favor or linear attention, or compressed keys (linformer, induced)
    # Cross-attention can also use a window by positions, or another distribution over its keys, such as entmax.
    # Cross-attention can also be local_p, which predicts for each target token where its window in the source is.
    cross_attention: str = field_read_by_tasks('text_to_text', default='full', marks=(EXPORTED,))
    attention_bias: bool = True  # biases in the query, key, value and output projections; Reformer has none
    scaled_logits: bool = True  # multiply products of queries and keys by 1 / sqrt(K); T5 does not
    shared_qk: bool = False  # one projection for queries and keys, with keys of unit length; required by LSH attention
    # maximum number of global tokens per row; above 0, global tokens have separate projections
    global_tokens: int = field_read_by_tasks('fine_tuning', default=0, marks=(EXPORTED,))
    rotary: bool = False  # rotate queries and keys by position (Su et al. 2021, arXiv 2104.09864)
    attention_dropout_rate: float = 0.1  # dropout of the attention weights

    # -- Relative positions in attention --

    # how relative positions change the logits: 'none' | 'alibi' | 't5' | 'tupe' | 'tupe_r' | 'transformer_xl'
    relative: str = 'none'
    # number of distance buckets of 't5' and 'tupe_r'; an encoder uses half of the buckets per direction
    relative_buckets: int = field_of_relative_attention(*BUCKETED, default=32)
    # distance, in positions, from which on all distances share one bucket
    relative_max_distance: int = field_of_relative_attention(*BUCKETED, default=128)
    # with 'transformer_xl': True = one pair of biases u and v for all layers; False = one pair per layer
    relative_shared_biases: bool = field_of_relative_attention('transformer_xl', default=True)
    # with 'transformer_xl': larger distances count as this distance, in positions; 0 = no limit
    clamp_length: int = field_of_relative_attention('transformer_xl', default=0)
    # True = with a memory of M positions, each token attends to M keys, itself included.
    # False = with a memory of M positions, each token attends to the M memory positions and to its segment so far
    same_length: bool = False
    # with 'tupe' and 'tupe_r': learned terms replace the position terms of [CLS] (position 0 of an encoder's row)
    relative_cls_reset: bool = field_of_relative_attention(*UNTIED, default=True)

    # -- Scores that compare queries and keys, in all attentions of the model --

    # score that compares a query with a key: 'dot' | 'general' | 'additive' | 'location'.
    # If `scaled_logits` is True, the scores 'dot' and 'general' are multiplied by 1 / sqrt(K).
    score: str = 'dot'
    location_length: int = 512  # the score 'location' learns a vector for each key position up to this number
    # factor of the REINFORCE gradient of sampled cross-attention; 1 = the gradient of the expected loss
    reinforce_weight: float = 1.0

    # -- Feed-forward sub-layer --

    feed_forward: bool = True  # False = layers without a feed-forward sub-layer
    feed_forward_width: int = 0  # F, the width of the feed-forward layer; 0 = 4 x width
    # positions that the feed-forward layer computes at a time; 0 = all at once
    feed_forward_chunk: int = field_with_marks(EXPORTED, default=0)
    feed_forward_bias: bool = True  # biases in the feed-forward layer; T5 has none
    feed_forward_gate: bool = False  # compute activation(x W_gate) * x W_up instead of activation(x W_up) (T5 1.1)
    feed_forward_dropout_rate: float = 0.0  # dropout of the feed-forward layer's inner activations (T5, BART)
    # activation function: 'gelu_tanh' (BERT, ALBERT) | 'gelu_erf' (ELECTRA, BART) | 'gelu_sigmoid' | 'relu' | 'silu'.
    # Marian calls the activation function 'silu' swish.
    activation: str = 'gelu_tanh'

    # -- Recurrent sub-layer, in place of self-attention --

    # recurrent cell: 'tanh' | 'gru' | 'lstm' | 'sru1' | 'sru2'; 'none' = layers mix positions by attention
    cell: str = 'none'
    bidirectional: bool = False  # True = an encoder has a second cell, which reads each row backwards
    # True = one stack of layers per reading direction, each over half of the width; the stacks never exchange states.
    # Separate stacks allow a language model to have both directions (ELMo).
    directions_apart: bool = field_read_by_tasks('language_modelling', 'fine_tuning', default=False)
    # U, the width of the recurrent state per direction; 0 = the width, or half of the width with two directions.
    # If the states of all directions together are not as wide as the layer, a learned matrix maps them to its width.
    state_width: int = 0
    # dropout of the recurrent state, with one mask for all positions of a row (Gal & Ghahramani 2016)
    state_dropout_rate: float = 0.0
    # number of positions per chunk of a row, in recurrent layers; 0 = the whole row is one chunk.
    # The backward pass stores a cell's products and states for only one chunk at a time, and recomputes other chunks.
    recurrent_chunk: int = field_with_marks(CHANGEABLE, default=0)

    # -- How a decoder of recurrent layers reads the source --

    # how a recurrent decoder reads the source: 'layers' | 'state' | 'before' | 'after'
    # 'layers' = cross-attention in every layer; 'state' = the decoder reads only its initial state.
    # 'before' (Bahdanau et al. 2014) = one attention over the source; its query is the last layer's previous state.
    # With source_reading 'before', the recurrent cells read the result of this attention.
    # 'after' (Luong et al. 2015) = one attention over the source; its query is the last layer's output.
    # With 'after', the output layer reads the last layer's output concatenated with the result of this attention.
    source_reading: str = field_read_by_tasks('text_to_text', default='layers')
    # with source_reading 'after': True = the first layer also reads the output layer's input at the previous position
    input_feeding: bool = field_read_by_tasks('text_to_text', default=False)
    # initial states of a recurrent decoder: 'zeros', or from the encoder's last states: 'copy' | 'map' | 'map_backward'
    # 'copy' = the encoder's states, layer by layer; 'map' = tanh of a learned map of the states of all directions.
    # 'map_backward' = tanh of a learned map of the backward direction's states (Bahdanau et al. 2014).
    initial_state: str = field_read_by_tasks('text_to_text', default='zeros')
    # readout before the output layer: 'none' | 'maxout'.
    # With 'maxout', the output layer reads the maximum of each pair of features (Bahdanau et al. 2014).
    # 'maxout' maps the last hidden state, the previous word's embedding and the attention result to these features.
    readout: str = field_read_by_tasks('text_to_text', default='none')

    # -- Compression of tokens that leave a decoder's memory (Rae et al. 2019, arXiv 1911.05507) --

    # how old tokens are compressed to fewer positions: 'convolution' | 'mean' | 'max' | 'none' (drops old tokens).
    # The compression 'convolution' is learned, with a kernel as wide as its stride; 'mean' and 'max' are pooling.
    compression: str = field_read_by_tasks('language_modelling', default='none')
    # number of compressed vectors in each layer's memory, before the uncompressed ones; each counts as one position
    compressed_length: int = field_read_by_tasks('language_modelling', default=0)
    compression_rate: int = field_read_by_tasks('language_modelling', default=4)  # tokens per compressed position
    # weight of the auxiliary loss of the compression 'convolution'.
    # The loss is the squared difference between attention to compressed vectors and attention to the original tokens.
    reconstruction_weight: float = field_read_by_tasks('language_modelling', default=0.0)

    # -- Residual connections, norms, initial values, dtypes --

    # norms: 'post' (after the residual sum, as in BERT) | 'pre' (before each sub-layer) | 'none'
    norm: str = 'post'
    # True = add each sub-layer's input to its output; early papers on stacked recurrent cells do not add it
    residual: bool = True
    # kind of norm: 'layer' (layer normalisation) | 'rms' (division by the root mean square, as in T5)
    norm_kind: str = 'layer'
    norm_epsilon: float = 1e-12  # small number that norms add to the variance
    dropout_rate: float = 0.1  # dropout of each sub-layer's output and of the embeddings
    final_dropout: bool = False  # also apply dropout after the final norm of a pre-norm stack (T5)
    # standard deviation of initial weights (truncated normal); with kernel_init 'fan_in', only of embedding tables
    init_std: float = 0.02
    # standard deviation of initial matrices: 'fixed' (init_std) | 'fan_in' (1 / sqrt(number of inputs)).
    # With 'fan_in' and scaled_logits False, query matrices get the deviation 1 / sqrt(number of inputs x head width).
    kernel_init: str = 'fixed'
    # dtype of activations and matrix products; parameters and statistics are always float32
    dtype: str = field_with_marks(EXPORTED, default='float32')

    def __post_init__(self) -> None:
        self._check_attention()
        self._check_relative_positions()
        self._check_score()
        self._check_feed_forward()
        self._check_recurrent()
        self._check_source_reading()
        self._check_compression()
        self._check_residual()

    @functools.cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Returns the parsed mechanisms between which the layers alternate."""
        return tuple(parse_mechanism(text) for text in self.attention.split(';'))

    @functools.cached_property
    def cross_mechanism(self) -> Mechanism:
        """Returns the mechanism of the cross-attention, which all layers share."""
        return parse_mechanism(self.cross_attention)

    @property
    def logit_scale(self) -> float:
        """Returns the factor by which products of queries and keys are multiplied, in addition to attention's factor 1
        / sqrt(K)."""
        return 1.0 if self.scaled_logits else math.sqrt(self.head_width)

    @property
    def query_scale(self) -> float:
        """Returns the factor by which queries are multiplied, in addition to attention's factor 1 / sqrt(K).

        Untied positions add a second product to the logits and so halve both variances (Ke et al. 2020, equation 7).
        """
        return self.logit_scale * math.sqrt(0.5) if self.relative in UNTIED else self.logit_scale

    @property
    def is_affected_by_padding(self) -> bool:
        """Whether padding at the end of a row may change the attention of its tokens."""
        return any(mechanism.key_access.by_length for mechanism in self.mechanisms)

    @property
    def recurrent_state_width(self) -> int:
        """Returns U, the width of the recurrent state of one direction."""
        return self.state_width or self.width // (1 + self.bidirectional)

    @property
    def has_sequential_decoder(self) -> bool:
        """Whether the decoder must compute one position after another, because each position reads outputs of the
        previous position."""
        return self.source_reading == 'before' or self.input_feeding

    @property
    def compute_dtype(self) -> jnp.dtype:
        """Returns the dtype of activations and matrix products."""
        return jnp.dtype(self.dtype)

    def _check_attention(self) -> None:
        require(self.heads >= 1, 'model.heads', self.heads, 'at least 1')
        is_divisor = self.width % self.heads == 0
        allowed = f'a divisor of model.width {self.width}, or set model.head_width'
        require(is_divisor or self.head_width > 0, 'model.heads', self.heads, allowed)
        object.__setattr__(self, 'head_width', self.head_width or self.width // self.heads)
        for name in ('width', 'head_width'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        rate = self.attention_dropout_rate
        require(0.0 <= rate < 1.0, 'model.attention_dropout_rate', rate, 'in [0, 1)')
        fits = not self.rotary or self.head_width % 2 == 0
        require(fits, 'model.head_width', self.head_width, 'even for rotary positions')
        check_one_of('model.attention_backend', self.attention_backend, ('auto', *BACKENDS))
        require(self.global_tokens >= 0, 'model.global_tokens', self.global_tokens, '0 or more')
        if self.global_tokens and not all(mechanism.capabilities.merges for mechanism in self.mechanisms):
            raise InputError(
                f'model.global_tokens is {self.global_tokens}; model.attention {self.attention!r} has none'
            )
        self._check_learned_operands()
        for mechanism in self.mechanisms:
            self._check_mechanism(mechanism)
            self._check_backend('model.attention', self.attention, mechanism)
        self._check_backend('model.cross_attention', self.cross_attention, self.cross_mechanism)
        self._check_cross_mechanism()

    def _check_learned_operands(self) -> None:
        learning = [one for one in self.mechanisms if one.learned_operands(self.heads, self.head_width)]
        if learning and len(self.mechanisms) > 1:
            raise InputError(
                f'model.attention {self.attention!r}: {learning[0].name} learns arrays, and '
                'layers that alternate between mechanisms must have the same parameters; use it as the only mechanism'
            )
        operands = self.cross_mechanism.learned_operands(self.heads, self.head_width)
        if any(operand.is_shared for operand in operands.values()):
            raise InputError(
                f'model.cross_attention {self.cross_attention!r}: arrays that all layers share work '
                'only in model.attention'
            )

    def _check_mechanism(self, mechanism: Mechanism) -> None:
        if mechanism.randomness.in_training:
            raise InputError(
                f'model.attention {self.attention!r} samples keys, which only model.cross_attention can be trained '
                'with; remove sampled=True here'
            )
        if not mechanism.key_access.own_row:
            raise InputError(
                f'model.attention {self.attention!r} predicts positions in another sequence: use it as '
                'model.cross_attention, and window(w) here'
            )
        mechanism.check_heads(self.heads)
        self._check_query_key_fields(mechanism)
        has_keys = self.shared_qk or not mechanism.requirements.shared_qk
        has_dropout = mechanism.capabilities.has_dropout or self.attention_dropout_rate == 0.0
        if not (has_keys and has_dropout):
            name = type(mechanism).__name__
            raise InputError(f'model.attention {self.attention!r}: {name} needs {required_model_settings(mechanism)}')
        if not self.scaled_logits and mechanism.requirements.shared_qk:
            raise InputError(
                f'model.scaled_logits is False; it must be True with model.attention {self.attention!r}, which makes '
                'keys of unit length'
            )

    def _check_query_key_fields(self, mechanism: Mechanism) -> None:
        if mechanism.key_access.queries and mechanism.key_access.keys:
            return
        needed = {'shared_qk': False, 'rotary': False, 'score': 'dot', 'scaled_logits': True}
        for name, value in needed.items():
            found = getattr(self, name)
            allowed = f'{value!r} with model.attention {self.attention!r}, which compares no queries with keys'
            require(found == value, f'model.{name}', found, allowed)
        is_free = self.relative != 'transformer_xl'
        allowed = f'another with model.attention {self.attention!r}, which compares no queries with keys'
        require(is_free, 'model.relative', 'transformer_xl', allowed)

    def _check_backend(self, field: str, text: str, mechanism: Mechanism) -> None:
        backend = self.attention_backend
        if backend not in WITHOUT_BACKENDS and not mechanism.capabilities.has_backends:
            raise InputError(
                f'model.attention_backend {backend!r} works only with softmax attention; for {field} {text!r} use '
                f'{", ".join(WITHOUT_BACKENDS)}'
            )

    def _check_cross_mechanism(self) -> None:
        mechanism, text = self.cross_mechanism, self.cross_attention
        if not mechanism.can_cross_attend:
            raise InputError(
                f'model.cross_attention {text!r} {mechanism.key_access.why_one_row}; use full, '
                'window(w), sparsemax(full), '
                'favor, linear, linformer(rank, length) or induced, none of them causal'
            )
        mechanism.check_heads(self.heads)
        if not mechanism.capabilities.has_dropout and self.attention_dropout_rate:
            raise InputError(f'model.cross_attention {text!r} needs model.attention_dropout_rate=0.0')

    def _check_relative_positions(self) -> None:
        kind = self.relative
        check_one_of('model.relative', kind, RELATIVE)
        if kind != 'none' and not all(mechanism.capabilities.has_logits for mechanism in self.mechanisms):
            raise InputError(f'model.relative is {kind!r}; attention {self.attention!r} takes no bias on its logits')
        if kind != 'none' and self.global_tokens:
            raise InputError(f"model.relative is {kind!r}; it must be 'none' with model.global_tokens")
        for field in dataclasses.fields(LayerConfig):
            if kind not in field.metadata.get(KINDS, RELATIVE):
                allowed = f'{field.default!r} with model.relative {kind!r}, which does not read it'
                value = getattr(self, field.name)
                require(value == field.default, f'model.{field.name}', value, allowed)
        fits = self.scaled_logits or kind != 'transformer_xl'
        require(fits, 'model.scaled_logits', False, "True with model.relative 'transformer_xl'")
        require(self.clamp_length >= 0, 'model.clamp_length', self.clamp_length, '0 or more')
        even = kind != 'transformer_xl' or self.width % 2 == 0
        require(even, 'model.width', self.width, 'even for the sinusoids of transformer_xl')
        count, most = self.relative_buckets, self.relative_max_distance
        require(count >= 4 and count % 2 == 0, 'model.relative_buckets', count, 'even and at least 4')
        require(most > count // 2, 'model.relative_max_distance', most, 'above half of model.relative_buckets')

    def _check_score(self) -> None:
        check_one_of('model.score', self.score, SCORES)
        check_in_interval('model.reinforce_weight', self.reinforce_weight, 0)
        is_read = self.cross_mechanism.randomness.in_training or self.reinforce_weight == 1.0
        allowed = '1.0 without a model.cross_attention that draws, such as hard(full, sampled=True)'
        require(is_read, 'model.reinforce_weight', self.reinforce_weight, allowed)
        length, default = self.location_length, LayerConfig.location_length
        require(length >= 1, 'model.location_length', length, 'at least 1')
        is_read = self.score == 'location' or length == default
        require(is_read, 'model.location_length', length, f"{default} without model.score 'location', which reads it")
        if self.score == 'dot':
            return
        why = f'with model.score {self.score!r}'
        for name, needed in DOT_ALONE.items():
            require(getattr(self, name) == needed, f'model.{name}', getattr(self, name), f'{needed!r} {why}')
        require(self.relative in BIASES, 'model.relative', self.relative, f'one of {", ".join(BIASES)} {why}')
        is_read = self.scaled_logits or self.score not in UNSCALED
        require(is_read, 'model.scaled_logits', self.scaled_logits, f'True {why}, which is never scaled')
        self._check_additive_score(why)

    def _check_additive_score(self, why: str) -> None:
        if self.score != 'additive':
            return
        backends = ', '.join(ADDITIVE_BACKENDS)
        fits = self.attention_backend in ADDITIVE_BACKENDS
        require(fits, 'model.attention_backend', self.attention_backend, f'one of {backends} {why}')
        allowed = f'a distribution over the logits of a pattern {why}'
        has_logits = all(mechanism.capabilities.has_logits for mechanism in self.mechanisms)
        require(has_logits, 'model.attention', self.attention, allowed)
        require(self.cross_mechanism.capabilities.has_logits, 'model.cross_attention', self.cross_attention, allowed)

    def _check_feed_forward(self) -> None:
        object.__setattr__(self, 'feed_forward_width', self.feed_forward_width or 4 * self.width)
        if not self.feed_forward:
            for name, needed in ({'feed_forward_width': 4 * self.width} | OF_FEED_FORWARD).items():
                allowed = f'{needed!r} with model.feed_forward False, which has no such sub-layer'
                require(getattr(self, name) == needed, f'model.{name}', getattr(self, name), allowed)
        require(self.feed_forward_width >= 1, 'model.feed_forward_width', self.feed_forward_width, 'at least 1')
        require(self.feed_forward_chunk >= 0, 'model.feed_forward_chunk', self.feed_forward_chunk, '0 or more')
        check_in_interval('model.feed_forward_dropout_rate', self.feed_forward_dropout_rate, 0, 1, high_is_open=True)
        has_chunks = self.feed_forward_chunk > 0 and self.feed_forward_dropout_rate > 0
        allowed = '0 with model.feed_forward_dropout_rate'
        require(not has_chunks, 'model.feed_forward_chunk', self.feed_forward_chunk, allowed)
        check_one_of('model.activation', self.activation, ACTIVATIONS)

    def _check_recurrent(self) -> None:
        check_one_of('model.cell', self.cell, ('none', *CELLS))
        check_in_interval('model.state_dropout_rate', self.state_dropout_rate, 0, 1, high_is_open=True)
        require(self.recurrent_chunk >= 0, 'model.recurrent_chunk', self.recurrent_chunk, '0 or more')
        require(self.state_width >= 0, 'model.state_width', self.state_width, '0 or more')
        if self.cell == 'none':
            self._check_fields_at_default(OF_CELLS, 'model.cell')
            return
        fits = not self.bidirectional or self.state_width or self.width % 2 == 0
        require(bool(fits), 'model.width', self.width, 'even for model.bidirectional, or set model.state_width')
        has_matrix = not self.cell.startswith('sru') or not self.state_dropout_rate
        allowed = f'0 with model.cell {self.cell!r}, whose state no matrix reads'
        require(has_matrix, 'model.state_dropout_rate', self.state_dropout_rate, allowed)

    def _check_source_reading(self) -> None:
        check_one_of('model.source_reading', self.source_reading, READINGS)
        check_one_of('model.initial_state', self.initial_state, INITIAL_STATES)
        check_one_of('model.readout', self.readout, READOUTS)
        if self.cell == 'none':
            self._check_fields_at_default(OF_READINGS, 'model.cell')
        reads = f'with model.source_reading {self.source_reading!r}'
        fits = not self.input_feeding or self.source_reading == 'after'
        require(fits, 'model.input_feeding', True, f'False {reads}')
        fits = self.readout == 'none' or self.source_reading in ('state', 'before')
        require(fits, 'model.readout', self.readout, f"'none' {reads}")
        fits = self.initial_state != 'zeros' or self.source_reading != 'state'
        require(fits, 'model.initial_state', 'zeros', f'copy, map or map_backward {reads}')

    def _check_compression(self) -> None:
        check_one_of('model.compression', self.compression, COMPRESSIONS)
        check_in_interval('model.compressed_length', self.compressed_length, 0)
        check_in_interval('model.compression_rate', self.compression_rate, 1)
        check_in_interval('model.reconstruction_weight', self.reconstruction_weight, 0)
        if self.compression == 'none':
            self._check_fields_at_default(OF_COMPRESSIONS, 'model.compression')
        is_learned, weight = self.compression == 'convolution', self.reconstruction_weight
        allowed = "above 0 with model.compression 'convolution', whose kernel nothing else trains"
        require(weight > 0 or not is_learned, 'model.reconstruction_weight', weight, allowed)
        allowed = f'0 with model.compression {self.compression!r}, which has no parameters'
        require(weight == 0 or is_learned, 'model.reconstruction_weight', weight, allowed)

    def _check_residual(self) -> None:
        require(0.0 <= self.dropout_rate < 1.0, 'model.dropout_rate', self.dropout_rate, 'in [0, 1)')
        check_in_interval('model.init_std', self.init_std, 0, low_is_open=True)
        check_in_interval('model.norm_epsilon', self.norm_epsilon, 0)
        check_one_of('model.norm', self.norm, NORMS)
        require(self.norm == 'pre' or not self.final_dropout, 'model.final_dropout', True, "False without norm 'pre'")
        check_one_of('model.norm_kind', self.norm_kind, NORM_KINDS)
        check_one_of('model.kernel_init', self.kernel_init, KERNEL_INITS)
        check_one_of('model.dtype', self.dtype, DTYPES)

    def _check_fields_at_default(self, names: tuple[str, ...], reader: str) -> None:
        """Raises InputError if a field is set although the setting that makes use of it is missing."""
        for name in names:
            value, default = getattr(self, name), getattr(LayerConfig, name)
            require(value == default, f'model.{name}', value, f'{default!r} without {reader}')

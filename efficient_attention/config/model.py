"""The config of a whole model: its layers, embeddings, output and stack of layers.

All fields of a model are on one level, so each has one flat name: on the command line (`--config.model.width`), in
config.json and in code (`config.width`). `LayerConfig` defines the fields of one layer, this file all others. The
functions below the class check requirements of a run: memory, packed rows, recurrent layers, sampled keys.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.patterns.pattern import Pattern
from efficient_attention.config.field_metadata import CHANGEABLE, EXPORTED, field_read_by_tasks, field_with_marks
from efficient_attention.config.layer import UNTIED, LayerConfig
from efficient_attention.config.value_checks import check_one_of
from efficient_attention.errors import InputError, require

POSITIONS = ('learned', 'sinusoidal', 'axial', 'none')
# field -> its required value unless `positions` is 'axial'
OF_AXIAL = {'axial_shape': (), 'axial_widths': (), 'axial_sum': False}
DECODING = ('language_modelling', 'text_to_text')  # tasks whose models have a decoder
ENCODING = ('pretraining', 'fine_tuning')  # tasks whose models are only an encoder
QUANTIZATIONS = ('none', 'int8', 'int8_weights')
RANK_KINDS = ('query', 'key', 'value', 'out', 'gate', 'up', 'down', 'token')
RANK_ENTRY = re.compile(r'(\w+)=([1-9]\d*)')
# maximum number of layers, far above any real model; it bounds the length of `layer_to_param_index`
MOST_LAYERS = 2**16
SHARING = ('none', 'all')
REMAT_POLICIES = ('none', 'dots', 'full')  # from the most stored activations to the fewest
REMAT = (*REMAT_POLICIES, 'auto')
STACKS = ('plain', 'reversible')
# Recurrent models require the values of OF_SELF_ATTENTION; without cross-attention also the values of OF_ATTENTION.
OF_SELF_ATTENTION = {'shared_qk': False, 'rotary': False, 'relative': 'none', 'global_tokens': 0}
OF_ATTENTION: dict[str, Any] = {
    'heads': 2,
    'attention_bias': True,
    'scaled_logits': True,
    'attention_dropout_rate': 0.1,
}
OF_ATTENTION |= {'score': 'dot', 'location_length': 512, 'attention_backend': 'auto'}
OF_ATTENTION |= {'cross_attention': 'full', 'reinforce_weight': 1.0}


@dataclasses.dataclass(frozen=True)
class ModelConfig(LayerConfig):
    """Config of a model: an encoder, a decoder, or both, with layers, embeddings and output.

    Each group of fields has its checks in a method below.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # -- Tables of tokens, positions and token types below the first layer --

    vocab_size: int = 4096  # V, the vocabulary size
    max_length: int = 512  # number of rows of the learned position table, or of the position table of 'tupe'
    position_offset: int = 0  # unused rows at the start of the learned position table (RoBERTa: 2)
    # number of rows of the token type table; 0 = no table
    token_types: int = field_read_by_tasks(*ENCODING, default=2, unread=0)
    embedding_norm: bool = True  # normalise the sum of the embeddings; GPT-2 does not
    # position embeddings: 'learned' | 'sinusoidal' | 'axial' | 'none' (with rotary or relative)
    positions: str = 'learned'
    # number of positions along each axis of axial embeddings; the product of all axes is the row length
    axial_shape: tuple[int, ...] = ()
    # vector width of each axis of axial embeddings; the widths add up to the embedding width
    axial_widths: tuple[int, ...] = ()
    # True = add the vectors of all axes instead of concatenating them (Sparse Transformer)
    axial_sum: bool = False
    embedding_width: int = 0  # E, the width of factorised embeddings (ALBERT); 0 = width, without a projection
    # encoder and decoder share one token table
    shared_table: bool = field_read_by_tasks('text_to_text', default=True)
    embedding_scale: bool = False  # multiply token vectors by sqrt(width) (Transformer-XL)

    # -- A decoder's softmax over words, and its loss --

    # vocabulary size of an encoder-decoder's decoder; 0 = `vocab_size`, as the encoder
    target_vocab_size: int = field_read_by_tasks('text_to_text', default=0)
    # the decoder's logits come from the token table; False = from a separate dense layer
    tied_output: bool = field_read_by_tasks(*DECODING, default=True)
    # multiply the input of a tied output by 1 / sqrt(width) (T5)
    output_scale: bool = field_read_by_tasks(*DECODING, default=False)
    # add a bias per word to a tied or adaptive output; `dense_output_bias` sets the bias of a dense output layer
    output_bias: bool = field_read_by_tasks(*DECODING, default=False)
    # add a bias per word to an output layer that is neither tied nor adaptive
    dense_output_bias: bool = field_read_by_tasks(*DECODING, default=True)
    # first ids of the tail clusters of a decoder's adaptive softmax; () = one ordinary softmax
    adaptive_cutoffs: tuple[int, ...] = field_read_by_tasks(*DECODING, default=())
    # cluster i of the adaptive softmax has vectors of width E / divisor^i; with divisor 1, all words have width E
    adaptive_divisor: int = 1
    # positions per row whose logits the decoder's loss keeps in memory at a time; 0 = all at once
    loss_chunk: int = field_read_by_tasks(*DECODING, default=0, marks=(EXPORTED,))

    # -- Layers of different sizes, as structured pruning leaves them --

    # number of heads of each layer, such as (4, 0, 12); every head keeps its width; () = `heads`.
    # With sharing 'all', the tuple holds one number, because all layers have the same heads.
    layer_heads: tuple[int, ...] = field_read_by_tasks(*ENCODING, default=(), marks=(EXPORTED,))
    # number of feed-forward units per layer, in the same form as `layer_heads`; () = `feed_forward_width`
    layer_units: tuple[int, ...] = field_read_by_tasks(*ENCODING, default=(), marks=(EXPORTED,))

    # -- Quantization to 8-bit integers --

    # quantization of a model: 'none' | 'int8_weights' | 'int8'
    # 'int8_weights' stores kernels (one scale per output) and embedding tables (one scale per row) in 8 bits.
    # 'int8' also rounds the inputs of dense layers to 8 bits, with one scale per token.
    # In every quantization, norms, biases, matrix products of attention and the last dense layer stay float.
    quantization: str = field_read_by_tasks(*ENCODING, default='none', marks=(EXPORTED,))
    # regular expressions: layers whose path matches stay float, such as 'feed_forward/down' or 'embeddings/position'
    float_layers: tuple[str, ...] = field_read_by_tasks(*ENCODING, default=(), marks=(EXPORTED,))

    # -- Low-rank factorisation of kernels --

    # rank r of each kind of factorised kernel, for example ('up=96', 'token=64').
    # In all layers, each kernel [I, O] of a listed kind is a product of [I, r] and [r, O].
    # The factorised token table is a product of [V, r] and [r, E].
    # A kernel is factorised only if its factors have fewer parameters than the kernel.
    ranks: tuple[str, ...] = field_read_by_tasks(*ENCODING, default=(), marks=(EXPORTED,))

    # -- The stack of layers --

    layers: int = 2  # N, the number of layers
    # parameter sharing: 'none' (N separate layers) | 'all' (one layer applied N times, as in ALBERT)
    sharing: str = 'none'
    # with sharing 'all': number of groups of consecutive layers; only layers of one group share parameters
    layer_groups: int = 1
    inner_layers: int = 1  # with sharing 'all': number of different layers that a group applies in turn, repeatedly
    # stack of layers: 'plain' | 'reversible' (two streams; the backward pass recomputes activations, as in Reformer)
    stack: str = 'plain'
    # number of decoder layers of an encoder-decoder; 0 = no encoder-decoder.
    # The decoder's layers have the encoder's settings, except where a field names the decoder.
    decoder_layers: int = field_read_by_tasks('text_to_text', default=0)
    # mechanisms of the decoder's self-attention, which must be causal
    decoder_attention: str = field_read_by_tasks('text_to_text', default='causal', marks=(EXPORTED,))
    # what the backward pass recomputes in a layer: 'none' | 'dots' (all except matrix products) | 'full' (everything)
    # 'auto' = the first of these whose training step fits the device's memory, on a CPU; 'dots' or else 'full' on an
    # accelerator, where 'none' is slower than 'dots'; the first one if the memory is not known
    remat: str = field_with_marks(CHANGEABLE, EXPORTED, default='none')
    # M, the length of a decoder's memory: the number of earlier tokens that a text segment attends to.
    # For the tokens in the memory, the inputs of all layers are stored.
    # With a recurrent `cell`, memory_length is 0 or 1; 1 = pass the recurrent state from segment to segment.
    memory_length: int = field_read_by_tasks('language_modelling', default=0)
    attention_seed: int = field_with_marks(EXPORTED, default=0)  # seed of the random arrays of LSH and FAVOR
    # training steps that share one sample of the random arrays of LSH and FAVOR; 0 = one sample for the whole run
    attention_redraw_steps: int = field_with_marks(EXPORTED, default=1)
    # layers unrolled per step of the scan over layers; a larger number runs faster and compiles slower
    scan_unroll: int = field_with_marks(CHANGEABLE, EXPORTED, default=1)

    def __post_init__(self) -> None:
        LayerConfig.__post_init__(self)
        self._check_embedding()
        self._check_output()
        self._check_quantization()
        self._check_low_rank()
        self._check_stack()

    @property
    def position_limit(self) -> int | None:
        """Returns the number of positions that the model supports; None if there is no limit."""
        return min(self.position_limits_by_field.values(), default=None)

    @property
    def position_limits_by_field(self) -> dict[str, int]:
        """Returns {config field: number of positions} for each position table and each mechanism with a limited number
        of positions."""
        tables: dict[str, int] = {}
        if self.positions == 'axial':
            tables['model.axial_shape'] = math.prod(self.axial_shape)
        elif self.positions == 'learned' or self.relative in UNTIED:
            tables['model.max_length'] = self.max_length - self.position_offset
        for one in self.mechanisms:
            if one.requirements.longest:
                field = f'model.attention {one.name}'
                tables[field] = min(tables.get(field, one.requirements.longest), one.requirements.longest)
        # the limit of a mechanism that reads no positions concerns only the number of keys, not of queries
        if (cross := self.cross_mechanism).requirements.longest and cross.requirements.positions:
            tables[f'model.cross_attention {cross.name}'] = cross.requirements.longest
        return tables | ({'model.location_length': self.location_length} if self.score == 'location' else {})

    @property
    def has_layer_specific_sizes(self) -> bool:
        """Whether `layer_heads` or `layer_units` gives layers different sizes."""
        return bool(self.layer_heads or self.layer_units)

    @property
    def ranks_by_kind(self) -> tuple[tuple[str, int], ...]:
        """Returns the kernel kind and the rank of each entry of `ranks`, such as ('up', 96)."""
        return tuple((entry.split('=')[0], int(entry.split('=')[1])) for entry in self.ranks)

    def kernel_shape(self, kind: str) -> tuple[int, int]:
        """Returns the number of inputs and of outputs of a kind of kernel; for 'token', the rows and width of the token
        table.
        """
        inner = self.heads * self.head_width
        if kind == 'token':
            return self.vocab_size, self.embedding_width
        wide = self.feed_forward_width if kind in ('gate', 'up', 'down') else inner
        return (wide, self.width) if kind in ('out', 'down') else (self.width, wide)

    def kernel_rank(self, kind: str, inputs: int, outputs: int) -> int:
        """Returns the rank of a kernel of this kind and shape; 0 = the kernel is not factorised."""
        rank = dict(self.ranks_by_kind).get(kind, 0)
        return rank if rank * (inputs + outputs) < inputs * outputs else 0

    @functools.cached_property
    def encoder(self) -> 'ModelConfig':
        """Returns the config of an encoder-decoder's encoder."""
        return dataclasses.replace(
            self,
            decoder_layers=0,
            decoder_attention='causal',
            cross_attention='full',
            reinforce_weight=1.0,
            target_vocab_size=0,
        )

    @functools.cached_property
    def decoder(self) -> 'ModelConfig':
        """Returns the config of an encoder-decoder's decoder; its `attention` is this config's `decoder_attention`.

        The decoder's recurrent layers have one direction.
        """
        if not self.decoder_layers:
            raise InputError('model.decoder_layers is 0; an encoder-decoder has at least 1')
        return dataclasses.replace(
            self,
            attention=self.decoder_attention,
            bidirectional=False,
            layers=self.decoder_layers,
            vocab_size=self.target_vocab_size or self.vocab_size,
            target_vocab_size=0,
            decoder_layers=0,
            decoder_attention='causal',
        )

    @property
    def source_limit(self) -> int | None:
        """Returns the maximum number of source tokens of an encoder-decoder; its encoder positions and cross-attention
        keys set this limit."""
        limits = self.encoder.position_limit, self.cross_mechanism.requirements.longest
        return min((limit for limit in limits if limit), default=None)

    @property
    def is_stacked(self) -> bool:
        """Whether parameter arrays have a leading layer axis; False if all layers share one layer's parameters."""
        return self.sharing == 'none' or self.layer_groups * self.inner_layers > 1

    @property
    def layer_to_param_index(self) -> tuple[int, ...]:
        """Returns, for each of the N layers, the index of its parameters in the stack.

        The formula is from ALBERT's released code, which allows rounds that are no multiple of `layer_groups`.
        """
        if self.sharing == 'none':
            return tuple(range(self.layers))
        inner, rounds = self.inner_layers, self.layers // self.inner_layers
        return tuple(i // inner * self.layer_groups // rounds * inner + i % inner for i in range(self.layers))

    def _check_embedding(self) -> None:
        object.__setattr__(self, 'embedding_width', self.embedding_width or self.width)
        for name in ('vocab_size', 'max_length', 'embedding_width'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        require(self.token_types >= 0, 'model.token_types', self.token_types, '0 or more')
        check_one_of('model.positions', self.positions, POSITIONS)
        is_even = self.positions != 'sinusoidal' or self.embedding_width % 2 == 0
        require(is_even, 'model.embedding_width', self.embedding_width, 'even for sinusoidal positions')
        self._check_positions()

    def _check_positions(self) -> None:
        """Raises InputError if the fields of position embeddings contradict each other."""
        offset = self.position_offset
        fits = 0 <= offset < self.max_length
        require(fits, 'model.position_offset', offset, f'0 or more and below model.max_length {self.max_length}')
        is_read = offset == 0 or self.positions == 'learned'
        require(is_read, 'model.position_offset', offset, "0 without model.positions 'learned'")
        require(
            self.relative not in UNTIED or self.positions == 'none',
            'model.positions',
            self.positions,
            f"'none' with model.relative {self.relative!r}",
        )
        shape, widths, width = self.axial_shape, self.axial_widths, self.embedding_width
        if self.positions != 'axial':
            for name, default in OF_AXIAL.items():
                value = getattr(self, name)
                require(value == default, f'model.{name}', value, f"{default!r} without model.positions 'axial'")
            return
        is_shape = bool(shape) and all(size >= 1 for size in shape)
        require(is_shape, 'model.axial_shape', shape, 'one or more sizes of at least 1')
        if self.axial_sum:
            require(widths == (), 'model.axial_widths', widths, '() with model.axial_sum: each axis has the full width')
            return
        fits = len(widths) == len(shape) and all(size >= 1 for size in widths) and sum(widths) == width
        allowed = f'{len(shape)} widths of at least 1 whose sum is {width}, the width of the embeddings'
        require(fits, 'model.axial_widths', widths, allowed)

    def _check_output(self) -> None:
        require(self.loss_chunk >= 0, 'model.loss_chunk', self.loss_chunk, '0 or more')
        size = self.target_vocab_size
        require(size >= 0, 'model.target_vocab_size', size, '0 or more')
        for name, unread in (('shared_table', False), ('adaptive_cutoffs', ())):
            value, allowed = getattr(self, name), f'{unread!r} with model.target_vocab_size {size}'
            require(not size or value == unread, f'model.{name}', value, allowed)
        self._check_adaptive_softmax()

    def _check_adaptive_softmax(self) -> None:
        """Raises InputError if the fields of the adaptive softmax contradict each other."""
        cutoffs, divisor = self.adaptive_cutoffs, self.adaptive_divisor
        edges = (0, *cutoffs, self.vocab_size)
        require(
            all(low < high for low, high in itertools.pairwise(edges)),
            'model.adaptive_cutoffs',
            cutoffs,
            f'rising ids above 0 and below model.vocab_size {self.vocab_size}',
        )
        if not cutoffs:
            require(divisor == 1, 'model.adaptive_divisor', divisor, '1 without model.adaptive_cutoffs')
        else:
            allowed = f'1 to {self.embedding_width} in its power {len(cutoffs)}, so that each cluster has a width'
            fits = 1 <= divisor and divisor ** len(cutoffs) <= self.embedding_width
            require(fits, 'model.adaptive_divisor', divisor, allowed)
        has_dense = not self.tied_output and not cutoffs
        require(not (self.output_bias and has_dense), 'model.output_bias', True, 'False with a dense output layer')
        is_read = has_dense or self.dense_output_bias
        require(is_read, 'model.dense_output_bias', False, 'True without a dense output layer')
        is_read = (self.tied_output and not cutoffs) or not self.output_scale
        require(is_read, 'model.output_scale', True, 'False without a tied output of one softmax')

    def _check_quantization(self) -> None:
        check_one_of('model.quantization', self.quantization, QUANTIZATIONS)
        if self.quantization == 'none':
            require(not self.float_layers, 'model.float_layers', self.float_layers, 'empty without model.quantization')
            return
        require(self.cell == 'none', 'model.cell', self.cell, "'none' with model.quantization")
        for pattern in self.float_layers:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(
                    f'model.float_layers has {pattern!r}, which is no regular expression: {error}'
                ) from None

    def _check_low_rank(self) -> None:
        for entry in self.ranks:
            match = RANK_ENTRY.fullmatch(entry) if isinstance(entry, str) else None
            if match is None or match[1] not in RANK_KINDS:
                raise InputError(f"model.ranks has {entry!r}; entries are as 'up=96', of {', '.join(RANK_KINDS)}")
            most = min(self.kernel_shape(match[1]))
            require(int(match[2]) <= most, 'model.ranks', self.ranks, f'at most {most} of {match[1]}, its smaller side')
        kinds = [entry.split('=')[0] for entry in self.ranks]
        require(len(set(kinds)) == len(kinds), 'model.ranks', self.ranks, 'one entry per kind')
        missing = {'gate': not (self.feed_forward and self.feed_forward_gate), 'up': not self.feed_forward}
        missing['down'] = missing['up']
        for kind in kinds:
            require(not missing.get(kind, False), 'model.ranks', self.ranks, f'no {kind!r}, which the layers lack')
        served = {'cell': 'none', 'adaptive_cutoffs': (), 'global_tokens': 0}
        for name, needed in served.items() if self.ranks else ():
            require(getattr(self, name) == needed, f'model.{name}', getattr(self, name), f'{needed!r} with model.ranks')

    def _check_stack(self) -> None:
        for name in ('layers', 'scan_unroll'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        require(self.layers <= MOST_LAYERS, 'model.layers', self.layers, f'at most {MOST_LAYERS}')
        for name in ('memory_length', 'attention_seed', 'attention_redraw_steps'):
            require(getattr(self, name) >= 0, f'model.{name}', getattr(self, name), '0 or more')
        has_memory = self.memory_length > 0 or not self.same_length
        require(has_memory, 'model.same_length', self.same_length, 'False without model.memory_length')
        require(self.decoder_layers >= 0, 'model.decoder_layers', self.decoder_layers, '0 or more')
        require(
            self.decoder_layers <= MOST_LAYERS, 'model.decoder_layers', self.decoder_layers, f'at most {MOST_LAYERS}'
        )
        check_one_of('model.sharing', self.sharing, SHARING)
        check_one_of('model.remat', self.remat, REMAT)
        check_one_of('model.stack', self.stack, STACKS)
        self._check_groups()
        allowed = f'a number of mechanisms that divides {self.layers} layers'
        require(self.layers % len(self.mechanisms) == 0, 'model.attention', self.attention, allowed)
        if self.has_layer_specific_sizes:
            self._check_layer_specific_sizes()
        if self.decoder_layers:
            self._check_encoder_decoder()
        if self.stack == 'reversible':
            require(self.norm == 'pre', 'model.norm', self.norm, "'pre' in a reversible stack")
            require(
                self.residual, 'model.residual', False, 'True in a reversible stack, which consists of residual sums'
            )
            allowed = "'none' in a reversible stack, which stores no activations"
            require(self.remat == 'none', 'model.remat', self.remat, allowed)

    def _check_groups(self) -> None:
        """Raises InputError if the fields of parameter sharing contradict each other."""
        for name in ('layer_groups', 'inner_layers'):
            value = getattr(self, name)
            require(value >= 1, f'model.{name}', value, 'at least 1')
            require(self.sharing == 'all' or value == 1, f'model.{name}', value, "1 without model.sharing 'all'")
        inner = self.inner_layers
        require(self.layers % inner == 0, 'model.inner_layers', inner, f'a divisor of model.layers {self.layers}')
        most = self.layers // inner
        allowed = f'at most {most}, the rounds of model.layers {self.layers}'
        require(self.layer_groups <= most, 'model.layer_groups', self.layer_groups, allowed)

    def _check_layer_specific_sizes(self) -> None:
        """Raises InputError if `layer_heads` or `layer_units` do not fit the layers or the model's other fields."""
        count = 1 if self.sharing == 'all' else self.layers  # number of layers with separate parameters
        asked = 'layer_heads' if self.layer_heads else 'layer_units'
        for name, most in (('layer_heads', self.heads), ('layer_units', self.feed_forward_width)):
            sizes = getattr(self, name)
            allowed = f'{count} numbers from 0 to {most}, one for each layer with separate parameters'
            fits = not sizes or (len(sizes) == count and all(0 <= size <= most for size in sizes))
            require(fits, f'model.{name}', sizes, allowed)
        if self.layer_units:
            require(self.feed_forward, 'model.layer_units', self.layer_units, 'empty without model.feed_forward')
        served: dict[str, Any] = {'cell': 'none', 'relative': 'none', 'score': 'dot', 'global_tokens': 0}
        served |= {'directions_apart': False, 'stack': 'plain', 'memory_length': 0, 'decoder_layers': 0}
        for name, needed in served.items():
            require(
                getattr(self, name) == needed, f'model.{name}', getattr(self, name), f'{needed!r} with model.{asked}'
            )
        groups = self.layer_groups * self.inner_layers
        require(groups == 1, 'model.layer_groups x inner_layers', groups, f'1 with model.{asked}')
        require(len(self.mechanisms) == 1, 'model.attention', self.attention, f'one mechanism with model.{asked}')
        if self.layer_heads:
            allowed = 'a mechanism that is the same for every head, whatever their number, with model.layer_heads'
            require(
                not has_head_specific_patterns(self.mechanisms[0], self.heads),
                'model.attention',
                self.attention,
                allowed,
            )
        learned = self.mechanisms[0].learned_operands(self.heads, self.head_width)
        allowed = f'a mechanism without learned arrays with model.{asked}'
        require(not learned, 'model.attention', self.attention, allowed)

    def _check_encoder_decoder(self) -> None:
        """Raises InputError if encoder or decoder do not fit the fields `initial_state` and `source_reading`."""
        value, bidirectional = self.initial_state, self.bidirectional
        if value != 'zeros':
            allowed = f'{self.layers}, model.layers, with model.initial_state {value!r}'
            require(self.decoder_layers == self.layers, 'model.decoder_layers', self.decoder_layers, allowed)
        fits = value != 'copy' or not bidirectional
        require(fits, 'model.initial_state', value, 'zeros, map or map_backward with model.bidirectional')
        fits = value != 'map_backward' or bidirectional
        require(fits, 'model.initial_state', value, 'zeros, copy or map without model.bidirectional')
        if self.source_reading == 'before':
            allowed = "0 or model.width with model.source_reading 'before', whose queries are states"
            require(self.state_width in (0, self.width), 'model.state_width', self.state_width, allowed)
        if self.has_sequential_decoder:
            allowed = '0 where the decoder reads one position after another (model.source_reading, input_feeding)'
            require(not self.recurrent_chunk, 'model.recurrent_chunk', self.recurrent_chunk, allowed)
        if value != 'zeros' or self.source_reading != 'layers':
            allowed = "'plain' with model.source_reading or model.initial_state"
            require(self.stack == 'plain', 'model.stack', self.stack, allowed)


def has_head_specific_patterns(mechanism: Mechanism, heads: int) -> bool:
    """Whether heads have different patterns, or share one random sample that depends on the number of heads."""
    pattern = getattr(mechanism, 'pattern', None)
    forms = {pattern.for_head(head, heads) for head in range(heads)} if isinstance(pattern, Pattern) else set()
    return len(forms) > 1 or mechanism.randomness.for_all_heads


def check_decoder(config: ModelConfig) -> None:
    """Raises InputError unless the mechanisms of `decoder_attention` are causal and fit the decoder's layers."""
    texts = config.decoder_attention.split(';')
    try:
        mechanisms = config.decoder.mechanisms
    except (InputError, ValueError) as error:
        raise InputError(
            f'model.decoder_attention {config.decoder_attention!r} does not fit a decoder: {error}'
        ) from None
    for text, mechanism in zip(texts, mechanisms, strict=True):
        if not mechanism.is_causal:
            advice = mechanism.causal_alternative_text(text.strip())
            raise InputError(f'model.decoder_attention {text.strip()!r} is not causal; write {advice}')


def check_sampled_attention(model: ModelConfig) -> None:
    """Raises InputError if a field is set that rules out cross-attention with keys sampled in training."""
    if not model.cross_mechanism.randomness.in_training:
        return
    why = f'with model.cross_attention {model.cross_attention!r}, whose samples need the loss of each target'
    require(model.loss_chunk == 0, 'model.loss_chunk', model.loss_chunk, f'0 {why}')
    require(model.stack == 'plain', 'model.stack', model.stack, f"'plain' {why}")


def check_recurrent(model: ModelConfig) -> None:
    """Raises InputError if a field is set although recurrent layers do not support it."""
    fits = model.bidirectional or not model.directions_apart
    require(fits, 'model.directions_apart', True, 'False without model.bidirectional')
    if model.cell == 'none':
        return
    reason = f'with model.cell {model.cell!r}, whose layers do not read it'
    for field, text in (('attention', model.attention), ('decoder_attention', model.decoder_attention)):
        require(text in ('full', 'causal'), f'model.{field}', text, f"'full' or 'causal' {reason}")
    has_attention = model.decoder_layers > 0 and model.source_reading != 'state'
    for field, value in (OF_SELF_ATTENTION | ({} if has_attention else OF_ATTENTION)).items():
        require(getattr(model, field) == value, f'model.{field}', getattr(model, field), f'{value!r} {reason}')
    if not has_attention:
        allowed = f'0, or model.width / model.heads, {reason}'
        require(model.head_width == model.width // model.heads, 'model.head_width', model.head_width, allowed)
    has_memory = model.directions_apart and model.memory_length > 0
    allowed = '0 with model.directions_apart: one direction reads later tokens, which memory never has'
    require(not has_memory, 'model.memory_length', model.memory_length, allowed)


def check_memory(config: ModelConfig) -> None:
    """Raises InputError if the layers do not work with the configured memory or Transformer-XL positions."""
    if config.relative == 'transformer_xl' and not all(
        mechanism.key_access.one_band for mechanism in config.mechanisms
    ):
        raise InputError(
            f"model.relative is 'transformer_xl'; model.attention {config.attention!r} must be causal or "
            'causal & window(w)'
        )
    if config.memory_length:
        check_can_attend_to_memory(config)
    if config.compression != 'none':
        allowed = f"'none' with model.cell {config.cell!r}, whose state already summarises all earlier tokens"
        require(config.cell == 'none', 'model.compression', config.compression, allowed)
        allowed = '0 without model.memory_length, whose oldest tokens it compresses'
        fits = config.memory_length > 0 or config.compressed_length == 0
        require(fits, 'model.compressed_length', config.compressed_length, allowed)


def check_compression(config: ModelConfig, lengths: Mapping[str, int]) -> None:
    """Raises InputError if a compressed memory has no positions, or if the compression rate does not divide a length.

    lengths: field name -> length of the segments, in tokens; each must be a multiple of the compression rate.
    """
    if config.compression == 'none':
        return
    allowed = f'above 0 with model.compression {config.compression!r}'
    require(config.compressed_length > 0, 'model.compressed_length', config.compressed_length, allowed)
    check_compression_rate(config, lengths)


def check_compression_rate(config: ModelConfig, lengths: Mapping[str, int]) -> None:
    """Raises InputError if a segment length is no multiple of the compression rate of a compressed memory."""
    for name, length in lengths.items() if config.compressed_length else ():
        allowed = f'a multiple of model.compression_rate {config.compression_rate}, which compresses whole segments'
        require(length % config.compression_rate == 0, name, length, allowed)


def check_can_attend_to_memory(config: ModelConfig) -> None:
    """Raises InputError if the layers cannot attend to memory of earlier tokens in the same way as to the current
    segment."""
    asked = f'model.memory_length is {config.memory_length}; ' if config.memory_length else ''
    if config.cell != 'none':
        allowed = f'0, or 1 with model.cell {config.cell!r}: the state, which summarises all earlier tokens'
        require(config.memory_length <= 1, 'model.memory_length', config.memory_length, allowed)
        allowed = f'False with model.cell {config.cell!r}, whose state has no single tokens'
        require(not config.same_length, 'model.same_length', True, allowed)
    elif not all(mechanism.key_access.by_distance for mechanism in config.mechanisms):
        raise InputError(
            f'{asked}model.attention {config.attention!r} cannot use memory: use causal, window or strided '
            'attention, which depend only on distance'
        )
    if config.score == 'location':
        raise InputError(
            f"{asked}model.score 'location' has vectors for positions of a text, and tokens in memory have no position"
        )
    if config.stack != 'plain':
        raise InputError(f'{asked}a {config.stack} stack (model.stack) cannot use memory')
    if config.positions != 'none' or config.relative in UNTIED:
        raise InputError(
            f'{asked}positions must be relative (model.positions none, with model.relative or model.rotary): '
            'tokens in memory have no absolute positions'
        )


def check_packing(model: ModelConfig) -> None:
    """Raises InputError if packing several pairs into a row would change the attention within a pair."""
    allowed = "'zeros' with pairs.packed: a row of several pairs has one last state"
    require(model.initial_state == 'zeros', 'model.initial_state', model.initial_state, allowed)
    if model.cross_mechanism.requirements.whole_rows:
        raise InputError(
            f'pairs.packed is True; model.cross_attention {model.cross_attention!r} needs a row for each pair: it '
            'mixes the tokens of a row'
        )
    for field in ('attention', 'decoder_attention'):
        stack = model.encoder if field == 'attention' else model.decoder
        for mechanism, text in zip(stack.mechanisms, getattr(model, field).split(';'), strict=True):
            if is_position_dependent(mechanism):
                why = 'it depends on the position in the row, or on the row length'
                raise InputError(
                    f'pairs.packed is True; model.{field} {text.strip()!r} needs a row for each pair: {why}'
                )


def check_packed_documents(model: ModelConfig) -> None:
    """Raises InputError if attention would mix the documents of a packed row."""
    for mechanism in model.mechanisms:
        if mechanism.requirements.whole_rows:
            raise InputError(
                f"data.pairs is 'none', which packs documents into full rows; model.attention {model.attention!r} "
                "mixes the tokens of a row: use 'nsp' or 'sop'"
            )


def check_cut_at_documents(model: ModelConfig) -> None:
    """Raises InputError if attention would mix documents although `data.cut_at_documents` forbids it."""
    for mechanism in model.mechanisms:
        if mechanism.requirements.whole_rows:
            raise InputError(
                f'data.cut_at_documents is True; model.attention {model.attention!r} mixes the tokens of a row, so '
                'that its documents would read one another: use False, or another attention'
            )


def is_position_dependent(mechanism: Mechanism) -> bool:
    """Whether attention within a text depends on its position in the row, the row's length, or other texts."""
    # Mechanisms without logits compute their sums of feature maps separately for each text of a row.
    is_pattern = mechanism.capabilities.has_logits
    is_placed = is_pattern and mechanism.requirements.positions and not mechanism.key_access.by_distance
    is_by_row = mechanism.requirements.whole_rows or mechanism.key_access.by_other_texts
    return is_placed or mechanism.key_access.by_length or is_by_row

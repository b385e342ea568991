"""The fields of a config's `model` group."""

import dataclasses
import itertools
import math

from efficient_attention.config.checks import check_one_of
from efficient_attention.config.layer import UNTIED, LayerConfig, require

POSITIONS = ('learned', 'sinusoidal', 'axial', 'none')
SHARING = ('none', 'all')
REMAT = ('none', 'full', 'dots')
STACKS = ('plain', 'reversible')


@dataclasses.dataclass(frozen=True)
class ModelConfig(LayerConfig):
    """An encoder or decoder: its layers, embeddings and how the layers are stacked.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    vocab_size: int = 4096  # V
    max_length: int = 512  # rows of the learned position table, and of that of 'tupe'
    position_offset: int = 0  # rows of the learned table before that of position 0, which nobody reads (RoBERTa: 2)
    token_types: int = 2  # rows of the token type table; 0 = none
    embedding_norm: bool = True  # normalise the sum of the embeddings; GPT-2 does not
    positions: str = 'learned'  # 'learned' | 'sinusoidal' | 'axial' | 'none' (with rotary or relative)
    axial_shape: tuple[int, ...] = ()  # positions along each axis of 'axial'; their product is the length
    axial_widths: tuple[int, ...] = ()  # features of each axis, E in all
    axial_sum: bool = False  # add the axes' vectors, each of width E, instead of joining them (Sparse Transformer)
    embedding_width: int = 0  # E of factorised embeddings (ALBERT); 0 = width, without a projection
    embedding_scale: bool = False  # token vectors times sqrt(width) (Transformer-XL)
    tied_output: bool = True  # a decoder's logits from the token table, or from a dense layer of their own
    output_bias: bool = False  # a bias for each word with a tied or an adaptive output; the dense layer has one anyway
    adaptive_cutoffs: tuple[int, ...] = ()  # first ids of the tail clusters of a decoder's softmax; () = one softmax
    adaptive_divisor: int = 1  # cluster i has vectors of width E / divisor^i; 1 = one table
    layers: int = 2  # N
    sharing: str = 'none'  # 'none' = N separate layers | 'all' = one layer applied N times (ALBERT)
    layer_groups: int = 1  # of sharing 'all': parts of the stack, each of which shares layers of its own
    inner_layers: int = 1  # of sharing 'all': different layers that a part applies in turn, again and again
    stack: str = (
        'plain'  # 'plain' | 'reversible' = two streams, whose activations the backward pass recovers (Reformer)
    )
    remat: str = (
        'none'  # what the backward pass recomputes in a layer: nothing | 'full' all | 'dots' all but matrix products
    )
    memory_length: int = 0  # tokens before a segment whose layer inputs a decoder keeps and reads again (M)
    loss_chunk: int = 0  # positions of each row whose logits a decoder's loss holds at a time; 0 = all at once
    attention_seed: int = 0  # of what LSH and FAVOR draw
    attention_redraw_steps: int = 1  # training steps that share one draw; 0 = one draw for the whole run
    scan_unroll: int = 1  # layers unrolled in one step of the scan; more is faster to run and slower to compile

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, 'embedding_width', self.embedding_width or self.width)
        for name in ('vocab_size', 'max_length', 'embedding_width', 'layers', 'scan_unroll'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        for name in ('memory_length', 'loss_chunk', 'attention_seed', 'attention_redraw_steps'):
            require(getattr(self, name) >= 0, f'model.{name}', getattr(self, name), '0 or more')
        require(self.token_types >= 0, 'model.token_types', self.token_types, '0 or more')
        has_memory = self.memory_length > 0 or not self.same_length
        require(has_memory, 'model.same_length', self.same_length, 'False without model.memory_length')
        require(
            self.positions != 'sinusoidal' or self.embedding_width % 2 == 0,
            'model.embedding_width',
            self.embedding_width,
            'even for sinusoidal positions',
        )
        self.check_clusters()
        self.check_positions()
        self.check_groups()
        turns = len(self.mechanisms)
        require(
            self.layers % turns == 0,
            'model.attention',
            self.attention,
            f'a number of mechanisms that divides {self.layers} layers',
        )
        check_one_of('model.positions', self.positions, POSITIONS)
        check_one_of('model.sharing', self.sharing, SHARING)
        check_one_of('model.remat', self.remat, REMAT)
        check_one_of('model.stack', self.stack, STACKS)
        if self.stack == 'reversible':
            require(self.norm == 'pre', 'model.norm', self.norm, "'pre' in a reversible stack")
            require(
                self.remat == 'none', 'model.remat', self.remat, "'none' in a reversible stack, which keeps nothing"
            )

    def check_clusters(self) -> None:
        """Raises InputError where the fields of the adaptive softmax do not fit one another."""
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

    @property
    def position_limit(self) -> int | None:
        """How many positions the model has a place for; None where any number of them."""
        if self.positions == 'axial':
            return math.prod(self.axial_shape)
        is_limited = self.positions == 'learned' or self.relative in UNTIED
        return self.max_length - self.position_offset if is_limited else None

    @property
    def is_stacked(self) -> bool:
        """Whether the stack has several layers' parameters, along a leading axis, or one layer's for all."""
        return self.sharing == 'none' or self.layer_groups * self.inner_layers > 1

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """Which of the stack's layers of parameters each of the N layers uses.

        A group's share of the stack goes by ALBERT's released code, where the number of rounds need not divide.
        """
        if self.sharing == 'none':
            return tuple(range(self.layers))
        inner, rounds = self.inner_layers, self.layers // self.inner_layers
        return tuple(i // inner * self.layer_groups // rounds * inner + i % inner for i in range(self.layers))

    def check_groups(self) -> None:
        """Raises InputError where the fields of shared layers do not fit together."""
        for name in ('layer_groups', 'inner_layers'):
            value = getattr(self, name)
            require(value >= 1, f'model.{name}', value, 'at least 1')
            require(self.sharing == 'all' or value == 1, f'model.{name}', value, "1 without model.sharing 'all'")
        inner = self.inner_layers
        require(self.layers % inner == 0, 'model.inner_layers', inner, f'a divisor of model.layers {self.layers}')
        most = self.layers // inner
        allowed = f'at most {most}, the rounds of model.layers {self.layers}'
        require(self.layer_groups <= most, 'model.layer_groups', self.layer_groups, allowed)

    def check_positions(self) -> None:
        """Raises InputError where the fields of positions do not fit together."""
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
            for name, default in (('axial_shape', ()), ('axial_widths', ()), ('axial_sum', False)):
                value = getattr(self, name)
                require(value == default, f'model.{name}', value, f"{default!r} without model.positions 'axial'")
            return
        is_shape = bool(shape) and all(size >= 1 for size in shape)
        require(is_shape, 'model.axial_shape', shape, 'one or more sizes of at least 1')
        if self.axial_sum:
            require(widths == (), 'model.axial_widths', widths, '() with model.axial_sum: each axis has the full width')
            return
        fits = len(widths) == len(shape) and all(own >= 1 for own in widths) and sum(widths) == width
        allowed = f'{len(shape)} widths of at least 1 whose sum is {width}, the width of the embeddings'
        require(fits, 'model.axial_widths', widths, allowed)

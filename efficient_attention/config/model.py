"""A model's whole config: layers, embeddings, output, and how the layers are stacked.

The groups of model fields inherit from one another (AttentionConfig <- RelativeConfig <- ScoreConfig <-
FeedForwardConfig <- RecurrentConfig <- SourceReadingConfig <- CompressionConfig <- LayerConfig <- EmbeddingConfig <-
OutputConfig <- UnevenConfig <- QuantizationConfig <- LowRankConfig <- ModelConfig), a file for each, and are not fields
of one another.
So a field has one flat name everywhere, on the command line (`--config.model.width`), in config.json and in code
(`config.width`), without a table that maps flat names to groups; a module asks for the smallest config that has what it
reads, and takes any larger one; and a group can check its fields against those below it, such as `adaptive_divisor`
against `embedding_width`.
"""

import dataclasses

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config.checks import check_one_of
from efficient_attention.config.fields import CHANGEABLE, EXPORTED, marked, read_by
from efficient_attention.config.low_rank import LowRankConfig
from efficient_attention.errors import InputError, require

MOST_LAYERS = 2**16  # far above any model's; a layer's number is kept for each
SHARING = ('none', 'all')
REMAT = ('none', 'full', 'dots')
STACKS = ('plain', 'reversible')


@dataclasses.dataclass(frozen=True)
class ModelConfig(LowRankConfig):
    """An encoder or decoder. Its fields are those of this stack and of the groups below it, all on one level:
    `AttentionConfig`, `RelativeConfig`, `ScoreConfig`, `FeedForwardConfig`, `RecurrentConfig`, `SourceReadingConfig`,
    `CompressionConfig`, `LayerConfig`, `EmbeddingConfig`, `OutputConfig`, `UnevenConfig`, `QuantizationConfig`,
    `LowRankConfig`.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    layers: int = 2  # N
    sharing: str = 'none'  # 'none' = N separate layers | 'all' = one layer applied N times (ALBERT)
    layer_groups: int = 1  # of sharing 'all': parts of the stack, each of which shares layers of its own
    inner_layers: int = 1  # of sharing 'all': different layers that a part applies in turn, again and again
    # 'plain' | 'reversible' = two streams, whose activations the backward pass recovers (Reformer)
    stack: str = 'plain'
    # layers of an encoder-decoder's decoder, which has the encoder's sizes and choices; 0 = there is no such decoder
    decoder_layers: int = read_by('text_to_text', default=0)
    # its mechanisms, each causal
    decoder_attention: str = read_by('text_to_text', default='causal', marks=(EXPORTED,))
    # what the backward pass recomputes in a layer: nothing | 'full' all | 'dots' all but matrix products
    remat: str = marked(CHANGEABLE, EXPORTED, default='none')
    # tokens before a segment whose layer inputs a decoder keeps and reads again (M); with `cell` 1 = it goes on from
    # its state
    memory_length: int = read_by('language_modelling', default=0)
    attention_seed: int = marked(EXPORTED, default=0)  # of what LSH and FAVOR draw
    # training steps that share one draw; 0 = one draw for the whole run
    attention_redraw_steps: int = marked(EXPORTED, default=1)
    # layers unrolled in one step of the scan; more is faster to run and slower to compile
    scan_unroll: int = marked(CHANGEABLE, EXPORTED, default=1)

    def __post_init__(self) -> None:
        LowRankConfig.__post_init__(self)
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
        self.check_groups()
        allowed = f'a number of mechanisms that divides {self.layers} layers'
        require(self.layers % len(self.mechanisms) == 0, 'model.attention', self.attention, allowed)
        if self.is_uneven:
            groups = self.layer_groups * self.inner_layers
            others = {'stack': (self.stack, 'plain'), 'memory_length': (self.memory_length, 0)}
            others |= {'decoder_layers': (self.decoder_layers, 0), 'layer_groups x inner_layers': (groups, 1)}
            self.check_uneven(1 if self.sharing == 'all' else self.layers, others)
        if self.decoder_layers:
            self.check_source_reading()
        if self.stack == 'reversible':
            require(self.norm == 'pre', 'model.norm', self.norm, "'pre' in a reversible stack")
            require(self.residual, 'model.residual', False, 'True in a reversible stack, which is made of its sums')
            allowed = "'none' in a reversible stack, which keeps nothing"
            require(self.remat == 'none', 'model.remat', self.remat, allowed)

    def check_source_reading(self) -> None:
        """Raises InputError where an encoder-decoder's stacks do not fit how the one reads the other."""
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
        if self.is_stepwise:
            allowed = '0 where the decoder reads one position after another (model.source_reading, input_feeding)'
            require(not self.recurrent_chunk, 'model.recurrent_chunk', self.recurrent_chunk, allowed)
        if value != 'zeros' or self.source_reading != 'layers':
            allowed = "'plain' with model.source_reading or model.initial_state"
            require(self.stack == 'plain', 'model.stack', self.stack, allowed)

    @property
    def encoder(self) -> 'ModelConfig':
        """The config of an encoder-decoder's encoder."""
        return dataclasses.replace(
            self,
            decoder_layers=0,
            decoder_attention='causal',
            cross_attention='full',
            reinforce_weight=1.0,
            target_vocab_size=0,
        )

    @property
    def source_limit(self) -> int | None:
        """The longest source of an encoder-decoder: of its encoder's positions and its cross-attention's keys."""
        limits = self.encoder.position_limit, self.cross_mechanism.needs.longest
        return min((limit for limit in limits if limit), default=None)

    @property
    def decoder(self) -> 'ModelConfig':
        """The config of an encoder-decoder's decoder, whose attention to itself is `attention` there.

        Its recurrent layers have one direction.
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


def check_decoder(config: ModelConfig) -> None:
    """Raises InputError unless `decoder_attention` is causal and fits the decoder's layers; names that field."""
    texts = config.decoder_attention.split(';')
    try:
        mechanisms = [parse_mechanism(text) for text in texts]
        _ = config.decoder
    except (InputError, ValueError) as error:
        raise InputError(f'model.decoder_attention {config.decoder_attention!r} does not serve: {error}') from None
    for text, mechanism in zip(texts, mechanisms, strict=True):
        if not mechanism.is_causal:
            advice = mechanism.causal_form(text.strip())
            raise InputError(f'model.decoder_attention {text.strip()!r} is not causal; write {advice}')

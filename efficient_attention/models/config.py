"""The fields of a config's `model` group."""

import dataclasses

from efficient_attention.field_checks import check_one_of
from efficient_attention.modules.config import LayerConfig, require

POSITIONS = ('learned', 'sinusoidal', 'none')
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
    max_length: int = 512  # rows of the learned position table
    token_types: int = 2  # rows of the token type table; 0 = none
    embedding_norm: bool = True  # normalise the sum of the embeddings; GPT-2 does not
    positions: str = 'learned'  # 'learned' | 'sinusoidal' | 'none' (with rotary)
    embedding_width: int = 0  # E of factorised embeddings (ALBERT); 0 = width, without a projection
    tied_output: bool = True  # a decoder's logits from the token table, or from a dense layer of their own
    layers: int = 2  # N
    sharing: str = 'none'  # 'none' = N separate layers | 'all' = one layer applied N times (ALBERT)
    stack: str = (
        'plain'  # 'plain' | 'reversible' = two streams, whose activations the backward pass recovers (Reformer)
    )
    remat: str = (
        'none'  # what the backward pass recomputes in a layer: nothing | 'full' all | 'dots' all but matrix products
    )
    loss_chunk: int = 0  # positions of each row whose logits a decoder's loss holds at a time; 0 = all at once
    attention_seed: int = 0  # of what LSH and FAVOR draw
    attention_redraw_steps: int = 1  # training steps that share one draw; 0 = one draw for the whole run
    scan_unroll: int = 1  # layers unrolled in one step of the scan; more is faster to run and slower to compile

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, 'embedding_width', self.embedding_width or self.width)
        for name in ('vocab_size', 'max_length', 'embedding_width', 'layers', 'scan_unroll'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        for name in ('loss_chunk', 'attention_seed', 'attention_redraw_steps'):
            require(getattr(self, name) >= 0, f'model.{name}', getattr(self, name), '0 or more')
        require(self.token_types >= 0, 'model.token_types', self.token_types, '0 or more')
        require(
            self.positions != 'sinusoidal' or self.embedding_width % 2 == 0,
            'model.embedding_width',
            self.embedding_width,
            'even for sinusoidal positions',
        )
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

"""Fields of the config group `head`: the layers on top of an encoder for fine-tuning."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.feed_forward import ACTIVATIONS
from efficient_attention.errors import require

KINDS = ('none', 'sequence', 'towers', 'token', 'span', 'choice', 'multi_hop')
POOLED = ('sequence', 'towers', 'choice')  # that read one vector for each row
OF_ROWS = ('sequence', 'towers')  # that give C numbers for each row
TRANSFORMS = ('none', 'tanh', *ACTIVATIONS)
MOST_SENTENCE_LAYERS = 2**10
FEATURES = ('last', 'mix')
POOLINGS = ('first', 'mean', 'attention', 'multihead')


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The head of a fine-tuned encoder.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # 'none' | 'sequence' C numbers a row | 'towers' C numbers of two rows, each read by itself | 'token' C a token
    # | 'span' start and end | 'choice' one of A texts | 'multi_hop' span, answer type and supporting sentences
    kind: str = 'none'
    # what of the encoder the head reads: its 'last' layer's vectors | a 'mix' of the embeddings and all layers with
    # learned weights (ELMo), also of an encoder that stays as it is (optimizer.frozen '^encoder/')
    features: str = 'last'
    outputs: int = 2  # C of 'sequence', 'towers' and 'token'; one class = regression
    # of 'sequence', 'towers' and 'choice': a row's vector is that of its 'first' token | the 'mean' of its tokens'
    # | their mean by the weights of an 'attention' with a learned query | what a learned vector reads by 'multihead'
    # attention, with a feed-forward layer (Set Transformer)
    pooling: str = 'first'
    # of 'sequence': layers, of the encoder's kind, over one vector for each sentence of a row; 0 = no such level
    sentence_layers: int = 0
    # of 'sequence' and 'choice': the activation of a dense layer D -> D on the row's vector; 'none' = no layer; of
    # 'towers', which needs one: of a dense layer 4 D -> D on [a, b, a * b, a - b] of both rows' vectors
    transform: str = 'tanh'
    feed_forward: bool = False  # of 'span': a feed-forward layer of its own first (BigBird)
    dropout_rate: float = 0.1  # before the last dense layer

    def __post_init__(self) -> None:
        check_one_of('head.kind', self.kind, KINDS)
        check_one_of('head.transform', self.transform, TRANSFORMS)
        check_one_of('head.features', self.features, FEATURES)
        check_one_of('head.pooling', self.pooling, POOLINGS)
        check_within('head.sentence_layers', self.sentence_layers, 0, MOST_SENTENCE_LAYERS)
        check_within('head.outputs', self.outputs, 1)
        is_joined = self.kind != 'towers' or self.transform != 'none'
        require(is_joined, 'head.transform', self.transform, "an activation with head.kind 'towers'")
        check_within('head.dropout_rate', self.dropout_rate, 0, 1, high_is_open=True)

"""Fields of the config group `head`: the layers on top of an encoder for fine-tuning."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.feed_forward import ACTIVATIONS

KINDS = ('none', 'sequence', 'token', 'span', 'choice', 'multi_hop')
TRANSFORMS = ('none', 'tanh', *ACTIVATIONS)
MOST_SENTENCE_LAYERS = 2**10
FEATURES = ('last', 'mix')
POOLINGS = ('first', 'mean', 'attention')


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The head of a fine-tuned encoder.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # 'none' | 'sequence' C numbers a row | 'token' C a token | 'span' start and end | 'choice' one of A texts
    # | 'multi_hop' span, answer type and supporting sentences
    kind: str = 'none'
    # what of the encoder the head reads: its 'last' layer's vectors | a 'mix' of the embeddings and all layers with
    # learned weights (ELMo), also of an encoder that stays as it is (optimizer.frozen '^encoder/')
    features: str = 'last'
    outputs: int = 2  # C of 'sequence' and 'token'; one class = regression
    # of 'sequence' and 'choice': a row's vector is that of its 'first' token | the 'mean' of its tokens' | their mean
    # by the weights of an 'attention' with a learned query
    pooling: str = 'first'
    # of 'sequence': layers, of the encoder's kind, over one vector for each sentence of a row; 0 = no such level
    sentence_layers: int = 0
    # of 'sequence' and 'choice': the activation of a dense layer D -> D on the row's vector; 'none' = no layer
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
        check_within('head.dropout_rate', self.dropout_rate, 0, 1, high_is_open=True)

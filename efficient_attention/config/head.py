"""Fields of the config group `head`: the output layers for fine-tuning, and their checks against model and data."""

import dataclasses

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.layer import ACTIVATIONS
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError, require

KINDS = ('none', 'sequence', 'towers', 'token', 'span', 'choice', 'multi_hop')
POOLED = ('sequence', 'towers', 'choice')  # heads that pool each row into one vector
OF_ROWS = ('sequence', 'towers')  # heads with C outputs per row, one per class
TRANSFORMS = ('none', 'tanh', *ACTIVATIONS)
MOST_SENTENCE_LAYERS = 2**10
FEATURES = ('last', 'mix')
ONE_TEXT = ('classification', 'regression')  # problems whose texts may be split into sentences
POOLINGS = ('first', 'mean', 'attention', 'multihead')


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The output layers on top of a fine-tuned encoder.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # kind of head: 'none' | 'sequence' | 'towers' | 'token' | 'span' | 'choice' | 'multi_hop'
    # 'sequence' has C outputs per row, 'towers' has C per pair of separately encoded rows, 'token' has C per token.
    # 'span' predicts start and end; 'choice' chooses one of several texts.
    # 'multi_hop' predicts a span, its type and the supporting sentences.
    kind: str = 'none'
    # input of the head: 'last' (last hidden states) | 'mix' (learned mix of embeddings and all layers, as in ELMo).
    # The learned mix also works with a frozen encoder (optimizer.frozen '^encoder/').
    features: str = 'last'
    outputs: int = 2  # C, the number of outputs of the heads 'sequence', 'towers' and 'token'; one class = regression
    # how the heads 'sequence', 'towers' and 'choice' pool a row: 'first' token | 'mean' | 'attention' | 'multihead'.
    # The pooling 'attention' is a mean weighted by attention with a learned query.
    # The pooling 'multihead' is multi-head attention with a learned query and a feed-forward layer (Set Transformer).
    pooling: str = 'first'
    # number of encoder-like layers of the head 'sequence', over one vector per sentence of a text; 0 = none
    sentence_layers: int = 0
    # activation of the dense layer on the pooled vector, D -> D for 'sequence' and 'choice'; 'none' = no such layer
    # 'towers' needs an activation: its dense layer 4 D -> D reads [a, b, a * b, a - b] of the pooled vectors a and b.
    transform: str = 'tanh'
    feed_forward: bool = False  # the head 'span' has a feed-forward layer before its output layer (BigBird)
    dropout_rate: float = 0.1  # dropout before the last dense layer

    def __post_init__(self) -> None:
        check_one_of('head.kind', self.kind, KINDS)
        check_one_of('head.transform', self.transform, TRANSFORMS)
        check_one_of('head.features', self.features, FEATURES)
        check_one_of('head.pooling', self.pooling, POOLINGS)
        check_in_interval('head.sentence_layers', self.sentence_layers, 0, MOST_SENTENCE_LAYERS)
        check_in_interval('head.outputs', self.outputs, 1)
        is_joined = self.kind != 'towers' or self.transform != 'none'
        require(is_joined, 'head.transform', self.transform, "an activation with head.kind 'towers'")
        check_in_interval('head.dropout_rate', self.dropout_rate, 0, 1, high_is_open=True)


def check_pooling(head: HeadConfig, model: ModelConfig, examples: ExamplesConfig, mesh: MeshConfig) -> None:
    """Raises InputError if the pooling of a head does not fit the rows or the encoder, or lacks a field that it
    needs.
    """
    is_one_way = model.cell != 'none' and not model.bidirectional
    if head.kind in POOLED and is_one_way:
        allowed = f"'mean' or 'attention' with one direction of model.cell {model.cell!r}: a first token reads no other"
        require(head.pooling != 'first', 'head.pooling', head.pooling, allowed)
    if head.pooling == 'multihead' and model.cell != 'none':
        allowed = f"another with model.cell {model.cell!r}: 'multihead' has the heads of the encoder's attention"
        raise InputError(f"head.pooling is 'multihead'; it must be {allowed}")
    if examples.sentences:
        check_sentence_rows(examples, model, mesh)
    if head.kind == 'none':
        return
    if head.sentence_layers and not examples.sentences:
        raise InputError(
            f'head.sentence_layers is {head.sentence_layers}, and the rows have no sentence borders: '
            'examples.sentences is 0; it must say how many sentences a row has at most'
        )
    if not examples.sentences:
        return
    require(head.sentence_layers > 0, 'head.sentence_layers', 0, 'above 0 with examples.sentences')
    allowed = "'mean' or 'attention' with head.sentence_layers: the first sentence does not stand for all"
    require(head.pooling != 'first', 'head.pooling', head.pooling, allowed)
    for field, limit in model.position_limits_by_field.items():
        if field == 'model.location_length' or field.startswith('model.attention'):
            allowed = f'at most {field} {limit}, the size of a table that sentence layers also read'
            require(examples.sentences <= limit, 'examples.sentences', examples.sentences, allowed)


def check_sentence_rows(examples: ExamplesConfig, model: ModelConfig, mesh: MeshConfig) -> None:
    """Raises InputError if texts cannot be split into sentences with this problem, model or mesh."""
    reason = f'with examples.sentences {examples.sentences}'
    if examples.problem not in ONE_TEXT:
        raise InputError(
            f'examples.sentences is {examples.sentences}; examples.problem {examples.problem!r} reads none'
        )
    require(not examples.text_pair, 'examples.text_pair', examples.text_pair, f"'' {reason}: rows are of one text")
    is_free = not model.is_affected_by_padding
    require(is_free, 'model.attention', model.attention, f'one that does not depend on the length of a row {reason}')
    require(mesh.sequence == 1, 'mesh.sequence', mesh.sequence, f'1 {reason}, whose rows are short')
    fits = model.positions == 'none' or model.width % 2 == 0
    require(fits, 'model.width', model.width, f'even {reason} and positions')

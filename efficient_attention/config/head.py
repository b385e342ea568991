"""Fields of the config group `head`: the layers on top of an encoder for fine-tuning, and whether they fit it."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.layer import ACTIVATIONS
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError, require

KINDS = ('none', 'sequence', 'towers', 'token', 'span', 'choice', 'multi_hop')
POOLED = ('sequence', 'towers', 'choice')  # that read one vector for each row
OF_ROWS = ('sequence', 'towers')  # that give C numbers for each row
TRANSFORMS = ('none', 'tanh', *ACTIVATIONS)
MOST_SENTENCE_LAYERS = 2**10
FEATURES = ('last', 'mix')
ONE_TEXT = ('classification', 'regression')  # problems whose rows may be sentences
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


def check_pooling(head: HeadConfig, model: ModelConfig, examples: ExamplesConfig, mesh: MeshConfig) -> None:
    """Raises InputError where a head asks for what the rows or the encoder do not have; a bare encoder has no head."""
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
    for field, limit in model.position_tables.items():
        if field == 'model.location_length' or field.startswith('model.attention'):
            allowed = f'at most {field} {limit}, whose table the layers over sentences read, too'
            require(examples.sentences <= limit, 'examples.sentences', examples.sentences, allowed)


def check_sentence_rows(examples: ExamplesConfig, model: ModelConfig, mesh: MeshConfig) -> None:
    """Raises InputError where rows cannot be lists of sentences."""
    reason = f'with examples.sentences {examples.sentences}'
    if examples.problem not in ONE_TEXT:
        raise InputError(
            f'examples.sentences is {examples.sentences}; examples.problem {examples.problem!r} reads none'
        )
    require(not examples.text_pair, 'examples.text_pair', examples.text_pair, f"'' {reason}: rows are of one text")
    is_free = not model.reads_length
    require(is_free, 'model.attention', model.attention, f'one that does not read the length of a row {reason}')
    require(mesh.sequence == 1, 'mesh.sequence', mesh.sequence, f'1 {reason}, whose rows are short')
    fits = model.positions == 'none' or model.width % 2 == 0
    require(fits, 'model.width', model.width, f'even {reason} and positions')

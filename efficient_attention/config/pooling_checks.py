"""Checks that rows, encoder and head agree on what a row's vector is made of, and on sentences."""

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import POOLED, HeadConfig
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError, require

ONE_TEXT = ('classification', 'regression')  # problems whose rows may be sentences


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

"""The floating-point operations of a model's forward pass; a multiply-add counts two."""

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.directions import direction_config
from efficient_attention.models.uneven import layer_sizes
from efficient_attention.recurrence.cells import cell_of


def encoder_flops(config: ModelConfig, length: int, *, predictions: int) -> float:
    """Matrix-product operations of one row of `length` tokens through encoder and masked-LM head at `predictions`
    positions.

    Each layer's attention counts what its mechanism computes on the blocked backend (`multiply_adds` of
    attention/registry.py): a `Softmax` the pairs of the tiles that its pattern keeps, LSH those of its chunks, FAVOR
    its features. Random patterns differ little in number from layer to layer, so the first layer's counts for all. A
    recurrent layer counts its products with the input and, where that is a matrix, with the state. Norms, activations,
    embedding look-ups and tokens that data mark as global are left out.
    """
    inner = config.heads * config.head_width
    wide = (2 + config.feed_forward_gate) * config.width * config.feed_forward_width * config.feed_forward
    wide //= 1 + config.directions_apart  # two of half the widths
    if config.cell == 'none':
        # A shared projection of queries and keys is one, not two.
        mixing = (4 - config.shared_qk) * config.width * inner
        mixing += general_of_layer(config) - unread_keys_of_layer(config)
        turns = config.mechanisms
        mixing -= (2 - turns[0].reads.queries - turns[0].reads.keys) * config.width * inner
        scores = (config.layers // len(turns)) * sum(attention_of(config, mechanism, length) for mechanism in turns)
    else:
        mixing, scores = cell_of_layer(config), 0
    projections = mixing + wide
    # Keys and values of the memory; the distances' projection is one for all rows and left out.
    memory = 2 * slots_of(config) * config.layers * config.width * inner * (config.cell == 'none')
    memory += config.layers * compression_of_layer(config, length)
    factorised = config.embedding_width * config.width if config.embedding_width != config.width else 0
    head = config.width * config.embedding_width + config.embedding_width * config.vocab_size
    all_projections = config.layers * (projections - saved_by_ranks(config, config.heads, config.feed_forward_width))
    if config.is_uneven:
        all_projections, scores = uneven_layers(config, length)
    return 2.0 * (length * (all_projections + factorised) + scores + memory + predictions * head)


def uneven_layers(config: ModelConfig, length: int) -> tuple[int, float]:
    """Multiply-adds of the matrices of all layers for a token, and of all their attention, where layers differ."""
    projections, scores, rounds = 0, 0.0, config.layers if config.sharing == 'all' else 1
    [mechanism] = config.mechanisms
    for heads, units in layer_sizes(config):
        projections += (4 - config.shared_qk) * config.width * heads * config.head_width
        projections += (2 + config.feed_forward_gate) * config.width * units * config.feed_forward
        projections -= saved_by_ranks(config, heads, units)
        scores += multiply_adds(mechanism, length, heads, config.head_width) if heads else 0.0
    return rounds * projections, rounds * scores


def saved_by_ranks(config: ModelConfig, heads: int, units: int) -> int:
    """Multiply-adds for a token that factors in the place of kernels save in a layer of this size."""
    saved = 0
    for kind in ('query', 'key', 'value', 'out', 'gate', 'up', 'down') if config.ranks else ():
        wide = units if kind in ('gate', 'up', 'down') else heads * config.head_width
        inputs, outputs = (wide, config.width) if kind in ('out', 'down') else (config.width, wide)
        is_there = kind != 'gate' or config.feed_forward_gate
        rank = config.rank_of(kind, inputs, outputs) if is_there else 0
        saved += inputs * outputs - rank * (inputs + outputs) if rank else 0
    return saved


def encoder_decoder_flops(config: ModelConfig, source_length: int, target_length: int) -> float:
    """Matrix-product operations of one pair through an encoder-decoder, the logits of all of the target included.

    As `encoder_flops`; cross-attention counts its projections and all pairs of a target's and a source's tokens.
    """
    encoder, decoder = config.encoder, config.decoder
    inner = config.heads * config.head_width
    projected = 2 * (target_length + source_length) * config.width * inner
    projected += target_length * general_of_layer(config) - source_length * unread_keys_of_layer(config)
    projected += target_length * (config.width + 1) * inner * config.cross_mechanism.needs.centres
    readings = {'layers': decoder.layers, 'state': 0}.get(config.source_reading, 1)
    cross = readings * (projected + 2 * target_length * source_length * inner) + apart(config) * target_length
    stacks = encoder_flops(encoder, source_length, predictions=0)
    stacks += encoder_flops(decoder, target_length, predictions=0)
    return stacks + 2.0 * (cross + target_length * config.width * decoder.vocab_size)


def cell_of_layer(config: ModelConfig) -> int:
    """Multiply-adds of one layer's recurrent cells for one token."""
    if config.directions_apart:
        return 2 * cell_of_layer(direction_config(config))
    cell = cell_of(config.cell, config.width, config.units)
    states = 0 if cell.is_diagonal else cell.recurrent * config.units
    wide = (1 + config.bidirectional) * config.units
    return wide * (cell.gates * config.width + states + (wide != config.width) * config.width)


def apart(config: ModelConfig) -> int:
    """Multiply-adds of the matrices beside a decoder's layers, from the source to the output layer, for one token."""
    if config.cell == 'none':
        return 0
    decoder, square = config.decoder, config.width**2
    fed = cell_of(decoder.cell, decoder.width, decoder.units).gates * decoder.units * config.width
    read = 2 + (config.source_reading == 'before')
    readout = 2 * read * square if config.readout != 'none' else 0
    return config.is_stepwise * fed + (config.source_reading == 'after') * 2 * square + readout


def general_of_layer(config: ModelConfig) -> int:
    """Multiply-adds of the matrices of 'general' scores for one query of a layer."""
    return config.heads * config.head_width**2 * (config.score == 'general')


def unread_keys_of_layer(config: ModelConfig) -> int:
    """Multiply-adds of the projection of one key that scores by location do not have."""
    return config.width * config.heads * config.head_width * (config.score == 'location')


def slots_of(config: ModelConfig) -> int:
    """The tokens of a memory and the slots of a compressed one in front of it."""
    return config.memory_length + config.compressed_length


def compression_of_layer(config: ModelConfig, length: int) -> int:
    """Multiply-adds of a layer's convolution over the tokens that leave for so many, and of its loss.

    The loss reads tokens and slots: their keys and values, and two products for each pair of a query with one of them.
    The queries are the layer's.
    """
    if not config.compressed_length or config.compression != 'convolution':
        return 0
    inner, read = config.heads * config.head_width, length + length // config.compression_rate
    return length * config.width**2 + 2 * read * inner * (config.width + length)


def attention_of(config: ModelConfig, mechanism: Mechanism, length: int) -> float:
    """Multiply-adds of one layer's attention over `length` tokens that follow on the config's memory.

    The pairs of queries in memory are taken off those of the whole; relative attention has a third product.
    """
    whole, before = (
        multiply_adds(mechanism, count, config.heads, config.head_width) if count else 0
        for count in (slots_of(config) + length, slots_of(config))
    )
    return (whole - before) * (1.5 if config.relative == 'transformer_xl' else 1.0)

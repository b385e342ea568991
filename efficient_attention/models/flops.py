"""Computes the floating-point operations of a model's forward pass; a multiply-add counts as two operations."""

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.bidirectional_stacks import direction_config
from efficient_attention.models.uneven_stack import layer_sizes
from efficient_attention.recurrence.cells import find_cell


def encoder_flops(config: ModelConfig, length: int, *, predictions: int) -> float:
    """Returns the FLOPs of all matrix products when one row passes through an encoder and its masked-LM head.

    The row has `length` tokens, and the head computes `predictions` positions.

    - Attention counts the products of its mechanism on the blocked backend (`multiply_adds` of attention/registry.py).
      For `Softmax` these are the pairs in the pattern's tiles, for LSH the pairs in its chunks, for FAVOR its features.
    - For random patterns, the first layer's count is used for all layers; the layers differ little.
    - A recurrent layer counts its products with the input and, if it has a recurrent matrix, with the state.
    - Norms, activations, embedding look-ups and tokens marked as global are not counted.
    """
    inner = config.heads * config.head_width
    wide = (2 + config.feed_forward_gate) * config.width * config.feed_forward_width * config.feed_forward
    # With `directions_apart`, each of the two reading directions has half of the width.
    wide //= 1 + config.directions_apart
    if config.cell == 'none':
        # Queries and keys may share one projection.
        mixing = (4 - config.shared_qk) * config.width * inner
        mixing += general_score_multiply_adds(config) - omitted_key_multiply_adds(config)
        turns = config.mechanisms
        mixing -= (2 - turns[0].key_access.queries - turns[0].key_access.keys) * config.width * inner
        scores = (config.layers // len(turns)) * sum(
            attention_multiply_adds(config, mechanism, length) for mechanism in turns
        )
    else:
        mixing, scores = recurrent_cell_multiply_adds(config), 0
    projections = mixing + wide
    # The keys and values of the memory are also projected.
    # The projection of distances is computed once for all rows and is not counted.
    memory = 2 * memory_slot_counts(config) * config.layers * config.width * inner * (config.cell == 'none')
    memory += config.layers * compression_multiply_adds(config, length)
    factorised = config.embedding_width * config.width if config.embedding_width != config.width else 0
    head = config.width * config.embedding_width + config.embedding_width * config.vocab_size
    all_projections = config.layers * (
        projections - low_rank_saved_multiply_adds(config, config.heads, config.feed_forward_width)
    )
    if config.has_layer_specific_sizes:
        all_projections, scores = uneven_layer_multiply_adds(config, length)
    return 2.0 * (length * (all_projections + factorised) + scores + memory + predictions * head)


def uneven_layer_multiply_adds(config: ModelConfig, length: int) -> tuple[int, float]:
    """Returns two counts of multiply-adds for layers of different sizes: of all matrices, per token; and of all
    attentions, per row.
    """
    projections, scores, rounds = 0, 0.0, config.layers if config.sharing == 'all' else 1
    [mechanism] = config.mechanisms
    for heads, units in layer_sizes(config):
        projections += (4 - config.shared_qk) * config.width * heads * config.head_width
        projections += (2 + config.feed_forward_gate) * config.width * units * config.feed_forward
        projections -= low_rank_saved_multiply_adds(config, heads, units)
        scores += multiply_adds(mechanism, length, heads, config.head_width) if heads else 0.0
    return rounds * projections, rounds * scores


def low_rank_saved_multiply_adds(config: ModelConfig, heads: int, units: int) -> int:
    """Returns the multiply-adds per token that low-rank kernels save in one layer with this number of heads and
    units.
    """
    saved = 0
    for kind in ('query', 'key', 'value', 'out', 'gate', 'up', 'down') if config.ranks else ():
        wide = units if kind in ('gate', 'up', 'down') else heads * config.head_width
        inputs, outputs = (wide, config.width) if kind in ('out', 'down') else (config.width, wide)
        is_there = kind != 'gate' or config.feed_forward_gate
        rank = config.kernel_rank(kind, inputs, outputs) if is_there else 0
        saved += inputs * outputs - rank * (inputs + outputs) if rank else 0
    return saved


def encoder_decoder_flops(config: ModelConfig, source_length: int, target_length: int) -> float:
    """Returns the FLOPs of all matrix products when one source and its target pass through an encoder-decoder.

    The logits of all target tokens are included. Products are counted as in `encoder_flops`. Cross-attention counts its
    projections and all pairs of target and source tokens.
    """
    encoder, decoder = config.encoder, config.decoder
    inner = config.heads * config.head_width
    projected = 2 * (target_length + source_length) * config.width * inner
    projected += target_length * general_score_multiply_adds(config) - source_length * omitted_key_multiply_adds(config)
    projected += target_length * (config.width + 1) * inner * config.cross_mechanism.requirements.centres
    readings = {'layers': decoder.layers, 'state': 0}.get(config.source_reading, 1)
    cross = (
        readings * (projected + 2 * target_length * source_length * inner)
        + source_reader_multiply_adds(config) * target_length
    )
    stacks = encoder_flops(encoder, source_length, predictions=0)
    stacks += encoder_flops(decoder, target_length, predictions=0)
    return stacks + 2.0 * (cross + target_length * config.width * decoder.vocab_size)


def recurrent_cell_multiply_adds(config: ModelConfig) -> int:
    """Returns the multiply-adds of one layer's recurrent cells per token."""
    if config.directions_apart:
        return 2 * recurrent_cell_multiply_adds(direction_config(config))
    cell = find_cell(config.cell, config.width, config.recurrent_state_width)
    states = 0 if cell.is_diagonal else cell.recurrent * config.recurrent_state_width
    wide = (1 + config.bidirectional) * config.recurrent_state_width
    return wide * (cell.gate_count * config.width + states + (wide != config.width) * config.width)


def source_reader_multiply_adds(config: ModelConfig) -> int:
    """Returns the multiply-adds per target token of the matrices outside a recurrent decoder's layers, without
    attention and output layer.

    These are the matrices of input feeding, of the attentional hidden state and of the readout.
    """
    if config.cell == 'none':
        return 0
    decoder, square = config.decoder, config.width**2
    fed = (
        find_cell(decoder.cell, decoder.width, decoder.recurrent_state_width).gate_count
        * decoder.recurrent_state_width
        * config.width
    )
    read = 2 + (config.source_reading == 'before')
    readout = 2 * read * square if config.readout != 'none' else 0
    return config.has_sequential_decoder * fed + (config.source_reading == 'after') * 2 * square + readout


def general_score_multiply_adds(config: ModelConfig) -> int:
    """Returns the multiply-adds per query of the score matrices in one layer with 'general' attention scores; 0 for
    other scores.
    """
    return config.heads * config.head_width**2 * (config.score == 'general')


def omitted_key_multiply_adds(config: ModelConfig) -> int:
    """Returns the multiply-adds that 'location' scores save per key, because keys are not projected from the input; 0
    for other scores.
    """
    return config.width * config.heads * config.head_width * (config.score == 'location')


def memory_slot_counts(config: ModelConfig) -> int:
    """Returns the number of memory positions that a segment reads: recent tokens plus compressed positions."""
    return config.memory_length + config.compressed_length


def compression_multiply_adds(config: ModelConfig, length: int) -> int:
    """Returns the multiply-adds with which one layer compresses `length` evicted tokens by a convolution, and computes
    its loss.

    The loss computes keys and values of the tokens and of the compressed positions. It also computes two products per
    pair of a query and a key. The queries are the layer's queries and are not counted again.
    """
    if not config.compressed_length or config.compression != 'convolution':
        return 0
    inner, read = config.heads * config.head_width, length + length // config.compression_rate
    return length * config.width**2 + 2 * read * inner * (config.width + length)


def attention_multiply_adds(config: ModelConfig, mechanism: Mechanism, length: int) -> float:
    """Returns the multiply-adds of one layer's attention over a segment of `length` tokens that follows the memory.

    The result is the count for memory and tokens, minus the count for queries in the memory. Relative attention has a
    third product.
    """
    whole, before = (
        multiply_adds(mechanism, count, config.heads, config.head_width) if count else 0
        for count in (memory_slot_counts(config) + length, memory_slot_counts(config))
    )
    return (whole - before) * (1.5 if config.relative == 'transformer_xl' else 1.0)

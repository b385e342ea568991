"""Tests compressed memory against a definition with lists of slots and against plain memory, and its gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.segment_memory import SegmentMemory, empty_memory_positions
from tests.models.drawn import drawn
from tests.models.test_segment_memory import SMALL, WEIGHTS, XL, no_memory
from tests.tolerances import assert_close

VOCABULARY, LENGTH, SEGMENTS = 20, 12, 4
FIELDS = SMALL | {'norm': 'pre', 'memory_length': LENGTH, 'compression': 'convolution', 'compressed_length': 7}
FIELDS |= {'compression_rate': 3, 'reconstruction_weight': 1.0}
POOLED = {'reconstruction_weight': 0.0}
PLAIN = {'feed_forward': False, 'feed_forward_width': 0, 'attention_bias': False, 'embedding_norm': False}


@functools.cache
def made(fields: tuple) -> Decoder:
    return nnx.merge(*drawn(lambda: Decoder(ModelConfig(**dict(fields)), rngs=nnx.Rngs(0))))


def make(**fields) -> Decoder:
    return made(tuple((FIELDS | fields).items()))


telling = nnx.jit(Decoder.continue_with_aux_losses)


def some_tokens(length: int = LENGTH * SEGMENTS, rows: int = 2):
    return np.random.default_rng(1).integers(0, VOCABULARY, (rows, length), np.int32)


def some_segments(length: int = LENGTH * SEGMENTS):
    """Returns segments: row 0 is one text; row 1 has texts that end within slots, and padding at the end."""
    numbers = np.ones((2, length), np.int32)
    numbers[1, LENGTH + 5 :], numbers[1, 2 * LENGTH + 4 :], numbers[1, -3:] = 2, 3, 0
    return numbers


def by_segments(decoder: Decoder, tokens_BL, segments_BL, memory=None):
    """Returns the vectors of all segments side by side, the last memory, and the auxiliary losses of each segment."""
    memory = no_memory(decoder, len(tokens_BL)) if memory is None else memory
    hidden, each = [], []
    for start in range(0, tokens_BL.shape[1], LENGTH):
        part = slice(start, start + LENGTH)
        out, memory, aux_losses = telling(decoder, tokens_BL[:, part], segments_BL[:, part], memory)
        hidden.append(out)
        each.append(aux_losses)
    return np.concatenate(hidden, axis=1), memory, each


# ---- the definition: one row, lists of (vector, segment), float64 ----


def normed(x, norm):
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return normed * norm['scale'] + norm['bias']


def attention(layer, queries, slots, is_allowed):
    """Returns the heads' results [heads x width] of each query (vector, segment) over its allowed slots."""
    heads, results = SMALL['heads'], []
    for place, (x, segment) in enumerate(queries):
        read = [s for at, s in enumerate(slots) if s[1] == segment > 0 and is_allowed(place, at)]
        q = (normed(x, layer) @ layer['query']).reshape(heads, -1)
        out = np.zeros_like(q)
        if read:
            vectors = normed(np.stack([s for s, _ in read]), layer)
            k, v = ((vectors @ layer[name]).reshape(len(read), heads, -1) for name in ('key', 'value'))
            weights = np.exp(np.einsum('hk,mhk->hm', q, k) / np.sqrt(q.shape[-1]))
            out = np.einsum('hm,mhk->hk', weights / weights.sum(-1, keepdims=True), v)
        results.append(out.reshape(-1))
    return np.stack(results)


def squeeze(config, layer, slots):
    """Returns one slot compressed from several; it takes only the slots of the newest slot's text."""
    newest = slots[-1][1]
    vectors = [x if segment == newest else None for x, segment in slots]
    read = [x for x in vectors if x is not None]
    if config.compression == 'convolution':
        joined = np.concatenate([np.zeros(config.width) if x is None else x for x in vectors])
        return joined @ layer['compressor'], newest
    return {'mean': np.mean, 'max': np.max}[config.compression](read, axis=0), newest


def definition(decoder: Decoder, tokens, segments):
    """Returns the last layer's normalised outputs of one row, and each segment's loss, summed over layers and
    tokens.
    """
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(decoder)))
    config, stacked, table = decoder.config, params['stack']['layers'], params['embeddings']['token']['embedding']
    layers = []
    for number in range(config.layers):
        names = ('query', 'key', 'value', 'out')
        own = jax.tree.map(lambda x, at=config.layer_to_param_index[number]: x[at] if config.is_stacked else x, stacked)
        layer = {name: own['attention'][name]['kernel'] for name in names} | own['attention_norm']
        if config.compression == 'convolution':
            layer['compressor'] = own['compressor']['kernel']
        layers.append(layer | {'compressed': [(np.zeros(config.width), 0)] * config.compressed_length})
        layers[-1]['memory'] = [(np.zeros(config.width), 0)] * config.memory_length
    outputs, losses, rate = [], [], config.compression_rate
    for start in range(0, len(tokens), LENGTH):
        part, loss = slice(start, start + LENGTH), 0.0
        x, numbers = table[tokens[part]], segments[part]
        for layer in layers:
            inputs = list(zip(x, numbers, strict=True))
            before = layer['compressed'] + layer['memory']
            first = len(before)
            out = attention(layer, inputs, before + inputs, lambda i, j, first=first: j <= i + first)
            x = x + out @ layer['out']
            layer['memory'] += inputs
            old, layer['memory'] = layer['memory'][:LENGTH], layer['memory'][LENGTH:]
            new = [squeeze(config, layer, old[at : at + rate]) for at in range(0, LENGTH, rate)]
            layer['compressed'] = (layer['compressed'] + new)[-config.compressed_length :]
            both = (attention(layer, inputs, slots, lambda *_: True) for slots in (old, new))
            loss += np.square(np.subtract(*both)).mean(-1).sum()
        outputs.append(normed(x, params['norm']))
        losses.append(loss)
    return np.concatenate(outputs), np.asarray(losses)


KINDS = {
    'convolution': {},
    'memory shorter than a segment': {'memory_length': 5, 'layers': 3},
    'memory longer than a segment, few slots': {'memory_length': 17, 'compressed_length': 3},
    'shared layers, recomputed': {'sharing': 'all', 'remat': 'full'},
    'mean': {'compression': 'mean'} | POOLED,
    'max': {'compression': 'max'} | POOLED,
}


@pytest.mark.parametrize('kind', KINDS)
def test_slots_are_those_of_the_definition(kind):
    decoder = make(**PLAIN | KINDS[kind])
    tokens, segments = some_tokens(), some_segments()
    hidden, _, aux_losses = by_segments(decoder, tokens, segments)
    rows = [definition(decoder, *np.asarray((tokens[row], segments[row]))) for row in range(2)]
    is_text = np.asarray(segments) > 0
    assert_close(hidden[is_text], np.stack([row[0] for row in rows])[is_text].astype(np.float32))
    losses = rows[0][1] + rows[1][1]
    if decoder.config.reconstruction_weight:
        assert_close(np.stack([one['reconstruction'] for one in aux_losses]), losses.astype(np.float32))
        assert losses[0] == 0.0 or decoder.config.memory_length < LENGTH  # No token has left the memory yet.
        assert (losses[1:] > 1e-3).all()
    else:
        assert aux_losses == [{}] * SEGMENTS


IDENTITY = {'compression_rate': 1, 'compressed_length': 9, 'memory_length': 7}
AS_PLAIN = {
    'transformer_xl': XL,
    'own biases, post': XL | {'relative_shared_biases': False, 'clamp_length': 9, 'norm': 'post', 'layers': 3},
    'two mechanisms in turn': XL | {'attention': 'causal; causal & window(5)', 'layers': 4, 'remat': 'full'},
    'shared layers': XL | {'sharing': 'all'},
    'groups of shared layers': XL | {'sharing': 'all', 'layers': 4, 'layer_groups': 2},
    'rotary, shared QK': {'rotary': True, 'shared_qk': True, 'scan_unroll': 2},
    't5, same length': {'relative': 't5', 'same_length': True},
    'additive, entmax': {'score': 'additive', 'relative': 'alibi', 'attention': 'entmax(causal & window(9))'},
}


@pytest.mark.parametrize(
    'kind, compression',
    [(kind, 'convolution') for kind in AS_PLAIN]
    + [(kind, pooling) for kind in ('transformer_xl', 'shared layers') for pooling in ('mean', 'max')],
)
def test_rate_1_with_an_identity_kernel_is_plain_memory_of_all_slots(kind, compression):
    weight = {} if compression == 'convolution' else POOLED
    decoder = nnx.clone(make(**IDENTITY | AS_PLAIN[kind] | {'compression': compression} | weight))
    if compression == 'convolution':
        kernel = decoder.stack.layers.compressor.kernel
        kernel[...] = jax.device_put(np.broadcast_to(np.eye(SMALL['width'], dtype=np.float32), kernel.shape))
    tokens, segments = some_tokens(), some_segments()
    hidden, memory, aux_losses = by_segments(decoder, tokens, segments)
    plain, after, _ = by_segments(decoder, tokens, segments, empty_memory_positions(decoder.config, 2, 9 + 7))
    assert isinstance(after, SegmentMemory)
    assert_close(hidden, plain)
    joined = [np.concatenate([memory.compressed.states_BNMD, memory.recent.states_BNMD], axis=2)]
    joined.append(np.concatenate([memory.compressed.segments_BM, memory.recent.segments_BM], axis=1))
    assert_close(joined, [after.states_BNMD, after.segments_BM])
    assert all(abs(loss) < 1e-10 for one in aux_losses for loss in one.values())


def test_separate_layers_tell_and_keep_what_stacked_ones_do():
    decoder, tokens, segments = make(**XL), some_tokens(), some_segments()
    separate = nnx.clone(decoder)
    separate.stack.unstack_layers()
    assert_close(by_segments(separate, tokens, segments), by_segments(decoder, tokens, segments))


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
def test_half_precision_slots_are_half_precision():
    hidden, memory, aux_losses = by_segments(make(**XL | {'dtype': 'bfloat16'}), some_tokens(), some_segments())
    assert memory.compressed.states_BNMD.dtype == jnp.bfloat16 and aux_losses[-1]['reconstruction'].dtype == jnp.float32
    assert_close(hidden, by_segments(make(**XL), some_tokens(), some_segments())[0], dtype='bfloat16', gradient=True)


def test_no_slot_tells_one_text_of_another():
    """Text 2 of row 1 begins within a slot: slots and vectors from there on do not depend on text 1."""
    decoder, tokens, segments = make(**XL), some_tokens(), some_segments()
    border = LENGTH + 5
    is_before = (np.arange(tokens.shape[1]) < border)[None] & (segments == 1)
    others = np.where(is_before, (tokens + 3) % VOCABULARY, tokens)
    (one, memory, _), (other, after, _) = (by_segments(decoder, x, segments) for x in (tokens, others))
    np.testing.assert_array_equal(one[1, border:], other[1, border:])
    assert (one[1, :border] != other[1, :border]).any()
    kept = np.asarray(memory.compressed.segments_BM[1])
    assert set(kept) >= {2} and 3 in kept
    is_later = kept >= 2
    slots = (np.asarray(x.compressed.states_BNMD[1])[:, is_later] for x in (memory, after))
    np.testing.assert_array_equal(*slots)


def test_a_slot_of_a_text_that_has_ended_is_read_by_nobody():
    decoder, tokens = make(**XL), some_tokens()
    numbers = np.repeat(np.int32([[1, 1, 1, 2]] * 2), LENGTH, axis=1)
    hidden, _, _ = by_segments(decoder, tokens, numbers)
    last = slice(3 * LENGTH, None)
    alone, _, _ = by_segments(decoder, tokens[:, last], numbers[:, last])
    assert_close(hidden[:, last], alone)


# ---- gradients ----


def parts(decoder: Decoder):
    """Returns the graph, the compressor's kernel and all other parameters."""
    graph, compressor, others = nnx.split(decoder, nnx.PathContains('compressor'), ...)
    return graph, compressor, others


@pytest.mark.parametrize('memory_length', [5, LENGTH])
def test_the_loss_of_the_compressor_moves_it_alone_and_no_other_loss_does(memory_length):
    decoder, tokens, segments = make(**XL | {'memory_length': memory_length}), some_tokens(), some_segments()
    graph, compressor, others = parts(decoder)
    _, memory, _ = by_segments(decoder, tokens, segments)
    tokens, segments, weights = jax.device_put((tokens, np.full((2, LENGTH), 3, np.int32), WEIGHTS))

    def losses(compressor, others):
        """Returns the sum of all outputs of two successive segments, and the sum of their auxiliary losses."""
        model = nnx.merge(graph, compressor, others)
        first, after, aux_losses = model.continue_with_aux_losses(tokens[:, :LENGTH], segments, memory)
        second, _, more = model.continue_with_aux_losses(tokens[:, LENGTH : 2 * LENGTH], segments, after)
        return (first * weights).sum() + (second * weights).sum(), aux_losses['reconstruction'] + more['reconstruction']

    @jax.jit
    def gradients(compressor, others):
        _, pull = jax.vjp(losses, compressor, others)
        return jax.vmap(pull)(tuple(jnp.eye(2)))

    of_both = jax.device_get(gradients(compressor, others))
    of_outputs, of_told = (jax.tree.map(lambda leaf, number=number: leaf[number], of_both) for number in (0, 1))
    assert not any(leaf.any() for leaf in jax.tree.leaves(of_outputs[0]))
    assert not any(leaf.any() for leaf in jax.tree.leaves(of_told[1]))
    assert all(leaf.any() for leaf in jax.tree.leaves((of_outputs[1], of_told[0])))


def test_the_slots_of_the_compressor_are_read():
    decoder, tokens, segments = make(**XL), some_tokens(), np.ones((2, LENGTH * SEGMENTS), np.int32)
    graph, compressor, others = parts(decoder)
    changed = nnx.merge(graph, jax.tree.map(lambda x: np.asarray(x)[:, ::-1], compressor), others)
    one, other = (by_segments(model, tokens, segments)[0] for model in (decoder, changed))
    first_read = 2 * LENGTH  # The first tokens leave the memory while the second segment is read.
    np.testing.assert_array_equal(one[:, :first_read], other[:, :first_read])
    assert (one[:, first_read:] != other[:, first_read:]).any()


def test_no_gradient_flows_into_a_memory_that_is_given():
    decoder = make(**XL)
    tokens, segments, weights = jax.device_put((some_tokens(LENGTH), np.ones((2, LENGTH), np.int32), WEIGHTS))
    _, memory, _ = by_segments(decoder, some_tokens(), np.ones((2, LENGTH * SEGMENTS), np.int32))

    def read(slots, recent):
        before = dataclasses.replace(
            memory,
            compressed=dataclasses.replace(memory.compressed, states_BNMD=slots),
            recent=dataclasses.replace(memory.recent, states_BNMD=recent),
        )
        hidden, _, aux_losses = decoder.continue_with_aux_losses(tokens, segments, before)
        return (hidden * weights).sum() + aux_losses['reconstruction']

    run = jax.jit(jax.grad(read, argnums=(0, 1)))
    gradients = jax.device_get(run(memory.compressed.states_BNMD, memory.recent.states_BNMD))
    assert not any(gradient.any() for gradient in gradients)


# ---- what is refused ----


def test_a_segment_that_does_not_divide_is_refused():
    decoder, tokens = make(**XL), some_tokens(LENGTH - 1)
    with pytest.raises(ValueError, match="a segment of 11 tokens with model.compression 'convolution' at rate 3"):
        decoder.continue_with_aux_losses(tokens, np.ones_like(tokens), no_memory(decoder, 2))


def test_slots_without_a_memory_are_refused():
    with pytest.raises(InputError, match='model.compressed_length is 7; it must be 0 without model.memory_length'):
        make(**XL | {'memory_length': 0})

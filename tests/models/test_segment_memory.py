"""Tests segment memory: successive segments equal one long pass; also the memory's reach, its cuts and zero
gradients.
"""

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
from efficient_attention.models.segment_memory import SegmentMemory, empty_memory
from tests.models.drawn import drawn
from tests.tolerances import assert_close

VOCABULARY, LENGTH, SEGMENTS = 20, 12, 3
SMALL = {
    'width': 16,
    'heads': 2,
    'layers': 2,
    'vocab_size': VOCABULARY,
    'token_types': 0,
    'positions': 'none',
    'attention': 'causal',
    'memory_length': LENGTH * (SEGMENTS - 1),
    'init_std': 0.3,
    'dropout_rate': 0.0,
    'attention_dropout_rate': 0.0,
}
XL = {'relative': 'transformer_xl', 'attention_bias': False}
KINDS = {
    'transformer_xl': XL,
    'transformer_xl, own biases, clamped, pre': XL
    | {'relative_shared_biases': False, 'clamp_length': 9, 'norm': 'pre', 'layers': 3},
    'two mechanisms in turn': XL | {'attention': 'causal; causal & window(5)', 'layers': 4, 'remat': 'full'},
    'shared layers': XL | {'sharing': 'all'},
    'rotary': {'rotary': True, 'scan_unroll': 2},
    'rotary, shared QK': {'rotary': True, 'shared_qk': True},
    'alibi, per head': {'relative': 'alibi', 'attention': 'per_head(causal, causal & window(5))'},
    't5': {'relative': 't5'},
    'additive, entmax': {'score': 'additive', 'relative': 'alibi', 'attention': 'entmax(causal & window(9))'},
}


@functools.cache
def made(fields: tuple) -> Decoder:
    return nnx.merge(*drawn(lambda: Decoder(ModelConfig(**dict(fields)), rngs=nnx.Rngs(0))))


def make(**fields) -> Decoder:
    return made(tuple((SMALL | fields).items()))


# One compiled program runs all calls with the same model and shapes.
continued, whole = nnx.jit(Decoder.continue_from_memory), nnx.jit(Decoder.hidden)


def some_tokens(length: int = LENGTH * SEGMENTS, rows: int = 2):
    return np.random.default_rng(1).integers(0, VOCABULARY, (rows, length), np.int32)


def no_memory(decoder: Decoder, rows: int = 2):
    """Returns an empty memory, made of arrays that need no compiled program."""
    shapes = jax.eval_shape(lambda: empty_memory(decoder.config, rows))
    empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.device_put(empty)


def test_a_memory_of_nothing_is_zeros():
    decoder = make(**XL | {'memory_length': 4, 'layers': 1})
    jax.tree.map(np.testing.assert_array_equal, no_memory(decoder), jax.jit(lambda: empty_memory(decoder.config, 2))())


def by_segments(decoder: Decoder, tokens_BL, segments_BL, memory=None):
    """Returns the vectors of all segments side by side, and the memory after each segment."""
    memory = no_memory(decoder, len(tokens_BL)) if memory is None else memory
    hidden, memories = [], []
    for start in range(0, tokens_BL.shape[1], LENGTH):
        part = slice(start, start + LENGTH)
        out, memory = continued(decoder, tokens_BL[:, part], segments_BL[:, part], memory)
        hidden.append(out)
        memories.append(memory)
    return np.concatenate(hidden, axis=1), memories


@pytest.mark.parametrize('kind', KINDS)
def test_segments_with_enough_memory_equal_one_pass_at_all_layers(kind):
    decoder, tokens = make(**KINDS[kind]), some_tokens()
    segments = np.ones_like(tokens)
    hidden, memories = by_segments(decoder, tokens, segments)
    assert_close(hidden, whole(decoder, tokens, segments))
    # A pass over the whole text, starting with an empty memory of this length, leaves every layer's inputs as memory.
    _, after = continued(decoder, tokens, segments, no_memory(decoder))
    assert_close(memories[-1], after)


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
def test_half_precision_memory_is_half_precision_and_near_one_pass():
    decoder, tokens = make(**XL | {'dtype': 'bfloat16'}), some_tokens()
    hidden, memories = by_segments(decoder, tokens, np.ones_like(tokens))
    assert memories[-1].states_BNMD.dtype == jnp.bfloat16
    assert_close(hidden, whole(decoder, tokens, np.ones_like(tokens)), dtype='bfloat16', gradient=True)


def test_a_layer_reaches_as_far_as_its_memory_and_no_further():
    decoder = make(**XL | {'memory_length': 4, 'layers': 1})
    tokens = some_tokens(2 * LENGTH)
    changed, seen = tokens.copy(), tokens.copy()
    changed[:, LENGTH - 5] = (tokens[:, LENGTH - 5] + 1) % VOCABULARY  # This token comes one place before the memory.
    seen[:, LENGTH - 4] = (tokens[:, LENGTH - 4] + 1) % VOCABULARY  # This is the first token of the memory.
    hidden, beyond, within = (by_segments(decoder, x, np.ones_like(x))[0][:, LENGTH:] for x in (tokens, changed, seen))
    np.testing.assert_array_equal(hidden, beyond)
    assert (hidden != within).any()


@pytest.mark.parametrize('cell', ['lstm', 'sru2'])
def test_states_carried_from_segment_to_segment_are_one_pass(cell):
    """Texts end within segments, and padding follows a row's last text."""
    decoder = make(cell=cell, memory_length=1, feed_forward=False, feed_forward_width=0)
    tokens = some_tokens()
    segments = np.repeat(np.int32([[1, 2, 3, 3], [1, 1, 1, 0]]), 9, axis=1)
    hidden, memories = by_segments(decoder, tokens, segments)
    assert_close(hidden, whole(decoder, tokens, segments))
    assert memories[-1].segments_B.tolist() == [3, 1]
    fresh, _ = continued(decoder, tokens[:, LENGTH : 2 * LENGTH], segments[:, LENGTH : 2 * LENGTH], memories[0])
    alone = whole(decoder, tokens[:, LENGTH : 2 * LENGTH], segments[:, LENGTH : 2 * LENGTH])
    assert np.abs(np.asarray(fresh) - np.asarray(alone)).max() > 1e-2


def test_a_memory_of_states_is_1_and_no_gradient_flows_into_it():
    with pytest.raises(InputError, match="memory_length is 4; it must be 0, or 1 with model.cell 'gru': the state"):
        make(cell='gru', memory_length=4)
    decoder = make(cell='gru', memory_length=1, feed_forward=False, feed_forward_width=0)
    tokens, empty = jax.device_put(some_tokens(LENGTH)), no_memory(decoder)
    segments = jax.device_put(np.ones_like(tokens))
    _, memory = continued(decoder, tokens, segments, empty)

    def total(vectors):
        read = dataclasses.replace(memory, vectors_BNU=vectors)
        return decoder.continue_from_memory(tokens, segments, read)[0].sum()

    gradient = jax.jit(jax.grad(total))(memory.vectors_BNU)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_no_memory_is_memory_of_length_0():
    decoder = make(**XL | {'memory_length': 0})
    tokens = some_tokens(LENGTH)
    hidden, memory = continued(decoder, tokens, np.ones_like(tokens), no_memory(decoder))
    assert memory.length == 0
    assert_close(hidden, whole(decoder, tokens, np.ones_like(tokens)))


def with_table(decoder: Decoder, table) -> Decoder:
    """Returns the decoder with another token table."""
    graph, state = nnx.split(decoder)
    state = nnx.to_pure_dict(state)
    state['embeddings']['token']['embedding'] = table
    return nnx.merge(graph, state)


WEIGHTS = np.random.default_rng(4).normal(size=(2, LENGTH, SMALL['width'])).astype(np.float32)


def table_of(decoder: Decoder):
    return decoder.embeddings.token.embedding[...]


def test_no_gradient_flows_into_the_memory():
    decoder, tokens = make(**XL), jax.device_put(some_tokens(LENGTH))
    segments, weights = jax.device_put((np.ones_like(tokens), WEIGHTS))

    def second(table, first_table):
        """Returns a sum of the second segment's vectors, with `table`, after a first segment with `first_table`."""
        _, memory = with_table(decoder, first_table).continue_from_memory(
            tokens, segments, empty_memory(decoder.config, 2)
        )
        hidden, _ = with_table(decoder, table).continue_from_memory(tokens, segments, memory)
        return (hidden * weights).sum()

    table, run = table_of(decoder), jax.jit(jax.value_and_grad(second, argnums=(0, 1)))
    value, (into_second, into_first) = jax.device_get(run(table, table))
    assert not into_first.any() and into_second.any()
    assert value != run(table, np.asarray(table)[::-1])[0]  # Nevertheless the memory is read.


def test_no_gradient_flows_into_a_memory_that_is_given_or_out_of_one_that_comes_back():
    decoder, tokens = make(**XL), jax.device_put(some_tokens(LENGTH))
    segments, weights = jax.device_put((np.ones_like(tokens), WEIGHTS))
    _, memory = continued(decoder, tokens, segments, no_memory(decoder))

    def read(states, table):
        hidden, after = with_table(decoder, table).continue_from_memory(
            tokens, segments, dataclasses.replace(memory, states_BNMD=states)
        )
        return (hidden * weights).sum(), after.states_BNMD.sum()

    @jax.jit
    def values_and_gradients(states, table):
        """Returns the output, its gradient to the memory states, and the gradient of the new memory to the table."""
        values, pull = jax.vjp(read, states, table)
        return values[0], pull((jnp.float32(1), jnp.float32(0)))[0], pull((jnp.float32(0), jnp.float32(1)))[1]

    states, table = memory.states_BNMD, table_of(decoder)
    value, of_states, of_table = jax.device_get(values_and_gradients(states, table))
    assert value != values_and_gradients(np.asarray(states)[:, :, ::-1], table)[0]
    assert not of_states.any() and not of_table.any()


def test_a_text_ends_where_the_segment_number_changes():
    decoder, tokens = make(**XL), some_tokens()
    numbers = np.ones(tokens.shape, np.int32)
    numbers[0, LENGTH + 5 :] = 2  # Row 0 has another document from the middle of the second segment on.
    hidden, _ = by_segments(decoder, tokens, numbers)
    one, _ = by_segments(decoder, tokens, np.ones_like(tokens))
    assert_close(hidden[1], one[1])  # The other row continues its text.
    assert_close(hidden[0, : LENGTH + 5], one[0, : LENGTH + 5])
    alone = whole(decoder, tokens[:1, LENGTH + 5 :], np.ones((1, 2 * LENGTH - 5), np.int32))
    assert_close(hidden[:1, LENGTH + 5 :], alone)


def test_rows_keep_their_own_streams():
    decoder, tokens = make(**XL), some_tokens()
    hidden, _ = by_segments(decoder, tokens, np.ones_like(tokens))
    flipped, _ = by_segments(decoder, tokens[::-1], np.ones_like(tokens))
    assert_close(flipped, hidden[::-1])


def test_same_length_lets_each_query_read_as_many_keys_as_memory_is_long():
    fields = XL | {'memory_length': LENGTH, 'layers': 1}
    decoder, window = make(**fields, same_length=True), make(**fields | {'attention': f'causal & window({LENGTH - 1})'})
    tokens = some_tokens()
    segments = np.ones_like(tokens)
    assert_close(by_segments(decoder, tokens, segments)[0], whole(window, tokens, segments))


@pytest.mark.parametrize('kind', ['transformer_xl', 'two mechanisms in turn', 't5'])
def test_the_gradient_to_later_tokens_is_zero_with_memory(kind):
    decoder = make(**KINDS[kind] | {'memory_length': 4})
    tokens = np.arange(LENGTH, dtype=np.int32)[None]  # Each token has a separate row of the table.
    tokens, segments = jax.device_put((tokens, np.ones_like(tokens)))
    shapes = jax.eval_shape(lambda: empty_memory(decoder.config, 1))
    states = np.random.default_rng(3).normal(size=shapes.states_BNMD.shape).astype(np.float32)
    memory = SegmentMemory(*jax.device_put((states, np.ones(shapes.segments_BM.shape, np.int32))))

    def read(table):
        return with_table(decoder, table).continue_from_memory(tokens, segments, memory)[0][0, 7].sum()

    gradient = np.asarray(jax.jit(jax.grad(read))(table_of(decoder)))
    assert not gradient[8:].any() and gradient[:8].any(axis=-1).all()


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'attention': 'favor(8, causal=True)'}, 'cannot use memory'),
        ({'attention': 'lsh(8, 1, causal=True)', 'shared_qk': True}, 'cannot use memory'),
        ({'attention': 'sparse_fixed(8, 2)'}, 'cannot use memory'),
        ({'stack': 'reversible', 'norm': 'pre', 'rotary': True}, r'reversible stack \(model.stack\) cannot use memory'),
        ({'positions': 'learned'}, 'positions must be relative'),
        (XL | {'attention': 'causal & strided(4)', 'memory_length': 0}, 'must be causal or'),
        (XL | {'attention': 'causal & window(3, 2)', 'memory_length': 0}, 'must be causal or'),
        (XL | {'attention': 'causal & window(3) | causal & window(9)'}, 'must be causal or'),
    ],
)
def test_what_keeps_no_memory_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        make(**fields)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'stack': 'reversible', 'norm': 'pre'}, '^a reversible stack'),
        ({'attention': 'sparse_fixed(5, 1)'}, "^model.attention 'sparse_fixed"),
        ({'attention': 'favor(8, causal=True)'}, "^model.attention 'favor"),
        ({'positions': 'sinusoidal'}, '^positions must be relative'),
        ({'relative': 'tupe'}, '^positions must be relative'),
    ],
)
def test_a_decoder_without_memory_in_its_config_is_not_continued_unless_it_could_keep_one(fields, message):
    decoder, tokens = make(**{'memory_length': 0} | fields), some_tokens(4)
    with pytest.raises(InputError, match=message):
        decoder.continue_from_memory(tokens, np.ones_like(tokens), no_memory(decoder))

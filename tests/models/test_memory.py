"""Segment memory: segments in a row are one long pass, and what the memory holds, cuts and does not send back."""

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
from efficient_attention.models.memory import Memory, empty_memory
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


# Compiled once for all calls with the same model and shapes.
continued, whole = nnx.jit(Decoder.continued), nnx.jit(Decoder.hidden)


def some_tokens(length: int = LENGTH * SEGMENTS, rows: int = 2):
    return jax.random.randint(jax.random.key(1), (rows, length), 0, VOCABULARY)


def by_segments(decoder: Decoder, tokens_BL, segments_BL, memory=None):
    """The vectors of all segments side by side, and the memory after each."""
    memory = empty_memory(decoder.config, len(tokens_BL)) if memory is None else memory
    hidden, memories = [], []
    for start in range(0, tokens_BL.shape[1], LENGTH):
        part = slice(start, start + LENGTH)
        out, memory = continued(decoder, tokens_BL[:, part], segments_BL[:, part], memory)
        hidden.append(out)
        memories.append(memory)
    return jnp.concatenate(hidden, axis=1), memories


@pytest.mark.parametrize('kind', KINDS)
def test_segments_with_enough_memory_equal_one_pass_at_all_layers(kind):
    decoder, tokens = make(**KINDS[kind]), some_tokens()
    segments = jnp.ones_like(tokens)
    hidden, memories = by_segments(decoder, tokens, segments)
    assert_close(hidden, whole(decoder, tokens, segments))
    # A pass over all the text with an empty memory as long leaves every layer's inputs behind.
    empty = Memory(*(jnp.zeros_like(x) for x in (memories[-1].states_BNMD, memories[-1].segments_BM)))
    _, after = continued(decoder, tokens, segments, empty)
    assert_close(memories[-1], after)


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes the two
def test_half_precision_memory_is_half_precision_and_near_one_pass():
    decoder, tokens = make(**XL | {'dtype': 'bfloat16'}), some_tokens()
    hidden, memories = by_segments(decoder, tokens, jnp.ones_like(tokens))
    assert memories[-1].states_BNMD.dtype == jnp.bfloat16
    assert_close(hidden, decoder.hidden(tokens, jnp.ones_like(tokens)), dtype='bfloat16', gradient=True)


def test_a_layer_reaches_as_far_as_its_memory_and_no_further():
    decoder = make(**XL | {'memory_length': 4, 'layers': 1})
    tokens = some_tokens(2 * LENGTH)
    changed = tokens.at[:, LENGTH - 5].set((tokens[:, LENGTH - 5] + 1) % VOCABULARY)  # one token before the memory
    seen = tokens.at[:, LENGTH - 4].set((tokens[:, LENGTH - 4] + 1) % VOCABULARY)  # its first token
    hidden, beyond, within = (by_segments(decoder, x, jnp.ones_like(x))[0][:, LENGTH:] for x in (tokens, changed, seen))
    np.testing.assert_array_equal(hidden, beyond)
    assert (hidden != within).any()


@pytest.mark.parametrize('cell', ['lstm', 'sru2'])
def test_states_carried_from_segment_to_segment_are_one_pass(cell):
    """Texts end within segments, and a row's padding stands behind its last one."""
    decoder = make(cell=cell, memory_length=1, feed_forward=False, feed_forward_width=0)
    tokens = some_tokens()
    segments = jnp.asarray(np.repeat([[1, 2, 3, 3], [1, 1, 1, 0]], 9, axis=1))
    hidden, memories = by_segments(decoder, tokens, segments)
    assert_close(hidden, whole(decoder, tokens, segments))
    assert memories[-1].segments_B.tolist() == [3, 1]
    fresh, _ = continued(decoder, tokens[:, LENGTH : 2 * LENGTH], segments[:, LENGTH : 2 * LENGTH], memories[0])
    alone = whole(decoder, tokens[:, LENGTH : 2 * LENGTH], segments[:, LENGTH : 2 * LENGTH])
    assert jnp.abs(fresh - alone).max() > 1e-2


def test_a_memory_of_states_is_1_and_no_gradient_flows_into_it():
    with pytest.raises(InputError, match="memory_length is 4; it must be 0, or 1 with model.cell 'gru': the state"):
        make(cell='gru', memory_length=4)
    decoder = make(cell='gru', memory_length=1, feed_forward=False, feed_forward_width=0)
    tokens, empty = some_tokens(LENGTH), empty_memory(decoder.config, 2)
    _, memory = continued(decoder, tokens, jnp.ones_like(tokens), empty)

    def total(vectors):
        read = dataclasses.replace(memory, vectors_BNU=vectors)
        return decoder.continued(tokens, jnp.ones_like(tokens), read)[0].sum()

    gradient = jax.jit(jax.grad(total))(memory.vectors_BNU)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_no_memory_is_memory_of_length_0():
    decoder = make(**XL | {'memory_length': 0})
    tokens = some_tokens(LENGTH)
    hidden, memory = continued(decoder, tokens, jnp.ones_like(tokens), empty_memory(decoder.config, 2))
    assert memory.length == 0
    assert_close(hidden, whole(decoder, tokens, jnp.ones_like(tokens)))


def with_table(decoder: Decoder, table) -> Decoder:
    """The decoder with another token table."""
    graph, state = nnx.split(decoder)
    state = nnx.to_pure_dict(state)
    state['embeddings']['token']['embedding'] = table
    return nnx.merge(graph, state)


def table_of(decoder: Decoder):
    return decoder.embeddings.token.embedding[...]


def test_no_gradient_flows_into_the_memory():
    decoder, tokens = make(**XL), some_tokens(LENGTH)
    segments = jnp.ones_like(tokens)

    @jax.jit
    def second(table, first_table):
        """The second segment's vectors by `table` after a first by `first_table`."""
        empty = empty_memory(decoder.config, 2)
        _, memory = with_table(decoder, first_table).continued(tokens, segments, empty)
        hidden, _ = with_table(decoder, table).continued(tokens, segments, memory)
        return (hidden * jax.random.normal(jax.random.key(4), hidden.shape)).sum()

    table = table_of(decoder)
    into_second, into_first = jax.jit(jax.grad(second, argnums=(0, 1)))(table, table)
    assert not into_first.any() and into_second.any()
    assert second(table, table) != second(table, table[::-1])  # though the memory is read


def test_no_gradient_flows_into_a_memory_that_is_given_or_out_of_one_that_comes_back():
    decoder, tokens = make(**XL), some_tokens(LENGTH)
    segments, weights = jnp.ones_like(tokens), jax.random.normal(jax.random.key(4), (2, LENGTH, decoder.config.width))
    _, memory = decoder.continued(tokens, segments, empty_memory(decoder.config, 2))

    @jax.jit
    def read(states, table):
        hidden, after = with_table(decoder, table).continued(
            tokens, segments, dataclasses.replace(memory, states_BNMD=states)
        )
        return (hidden * weights).sum(), after.states_BNMD.sum()

    states, table = memory.states_BNMD, table_of(decoder)
    assert read(states, table)[0] != read(states[:, :, ::-1], table)[0]
    assert not jax.grad(lambda states: read(states, table)[0])(states).any()
    assert not jax.grad(lambda table: read(states, table)[1])(table).any()


def test_a_text_ends_where_the_segment_number_changes():
    decoder, tokens = make(**XL), some_tokens()
    numbers = np.ones(tokens.shape, np.int32)
    numbers[0, LENGTH + 5 :] = 2  # row 0: another document from the middle of the second segment on
    hidden, _ = by_segments(decoder, tokens, jnp.asarray(numbers))
    one, _ = by_segments(decoder, tokens, jnp.ones_like(tokens))
    assert_close(hidden[1], one[1])  # the other row goes on
    assert_close(hidden[0, : LENGTH + 5], one[0, : LENGTH + 5])
    alone = whole(decoder, tokens[:1, LENGTH + 5 :], jnp.ones((1, 2 * LENGTH - 5), jnp.int32))
    assert_close(hidden[:1, LENGTH + 5 :], alone)


def test_rows_keep_their_own_streams():
    decoder, tokens = make(**XL), some_tokens()
    hidden, _ = by_segments(decoder, tokens, jnp.ones_like(tokens))
    flipped, _ = by_segments(decoder, tokens[::-1], jnp.ones_like(tokens))
    assert_close(flipped, hidden[::-1])


def test_same_length_lets_each_query_read_as_many_keys_as_memory_is_long():
    fields = XL | {'memory_length': LENGTH, 'layers': 1}
    decoder, window = make(**fields, same_length=True), make(**fields | {'attention': f'causal & window({LENGTH - 1})'})
    tokens = some_tokens()
    segments = jnp.ones_like(tokens)
    assert_close(by_segments(decoder, tokens, segments)[0], whole(window, tokens, segments))


@pytest.mark.parametrize('kind', ['transformer_xl', 'two mechanisms in turn', 't5'])
def test_the_gradient_to_later_tokens_is_zero_with_memory(kind):
    decoder = make(**KINDS[kind] | {'memory_length': 4})
    tokens = jnp.arange(LENGTH)[None]  # each a row of the table of its own
    memory = empty_memory(decoder.config, 1)
    memory = Memory(jax.random.normal(jax.random.key(3), memory.states_BNMD.shape), jnp.ones_like(memory.segments_BM))

    def read(table):
        return with_table(decoder, table).continued(tokens, jnp.ones_like(tokens), memory)[0][0, 7].sum()

    gradient = jax.jit(jax.grad(read))(table_of(decoder))
    assert not gradient[8:].any() and gradient[:8].any(axis=-1).all()


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'attention': 'favor(8, causal=True)'}, 'keeps no memory'),
        ({'attention': 'lsh(8, 1, causal=True)', 'shared_qk': True}, 'keeps no memory'),
        ({'attention': 'sparse_fixed(8, 2)'}, 'keeps no memory'),
        ({'stack': 'reversible', 'norm': 'pre', 'rotary': True}, r'reversible stack \(model.stack\) keeps no memory'),
        ({'positions': 'learned'}, 'positions must go by distance'),
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
        ({'positions': 'sinusoidal'}, '^positions must go by distance'),
        ({'relative': 'tupe'}, '^positions must go by distance'),
    ],
)
def test_a_decoder_without_memory_in_its_config_is_not_continued_unless_it_could_keep_one(fields, message):
    decoder, tokens = make(**{'memory_length': 0} | fields), some_tokens(4)
    with pytest.raises(InputError, match=message):
        decoder.continued(tokens, jnp.ones_like(tokens), empty_memory(decoder.config, 2))

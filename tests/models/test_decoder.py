"""Tests the decoder: no token reads a later one, padding counts for nothing, and only causal attention is accepted."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import dense_mask
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder, check_causal
from tests.models.drawn import drawn
from tests.tolerances import assert_close

LENGTH = 72
CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=LENGTH, layers=2, max_length=LENGTH, token_types=0, attention='causal', norm='pre',
    tied_output=False, init_std=0.3, attention_dropout_rate=0.0,
)  # fmt: skip
MECHANISMS: dict[str, dict[str, Any]] = {
    'causal': {},
    'blocked': {'attention_backend': 'blocked'},
    'window': {'attention': 'causal & window(5)'},
    'fixed': {'attention': 'sparse_fixed(8, 2)', 'attention_backend': 'blocked'},
    'strided': {'attention': 'sparse_strided(5)'},
    'heads': {'attention': 'per_head(causal & window(3), causal)'},
    'layers': {'attention': 'causal & block(8); causal & summary(8, 2)'},
    'favor': {'attention': 'favor(16, causal=True, chunk=16)'},
    'lsh': {'attention': 'lsh(8, 2, causal=True)', 'shared_qk': True},
    'reversible': {'stack': 'reversible'},
}
ROTARY = {'positions': 'none', 'rotary': True}
PLACES = (0, 1, 7, 8, 35, LENGTH - 1)
ORDER = np.random.default_rng(0).permutation(LENGTH).astype(np.int32)[None]  # Each token occurs once.
ONES = np.ones_like(ORDER)


@functools.cache
def decoder_of(**fields: Any) -> tuple[nnx.GraphDef, dict]:
    config = dataclasses.replace(CONFIG, **fields)
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))


def with_table(params: dict, table: jax.Array) -> dict:
    """Returns the parameters with another token table."""
    return params | {'embeddings': params['embeddings'] | {'token': {'embedding': table}}}


@functools.partial(jax.jit, static_argnums=0)
def apply(graph: nnx.GraphDef, params: dict, *arrays: jax.Array, **options: Any) -> jax.Array:
    return nnx.merge(graph, params)(*arrays, **options)


def changed(array: np.ndarray, part: slice, number: int) -> np.ndarray:
    """Returns a copy of the rows with one number at all places of a slice."""
    array = array.copy()
    array[:, part] = number
    return array


@functools.cache
def read_of(**fields: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logits [2, L, V] of a text and of one with another end, and the influences [places, L] in the first
    text.

    An influence is the norm of the gradient of all logits at each of `PLACES` with respect to the token at each s. This
    gradient goes to the token's row of the embedding table, which no other place and no head reads.
    """
    graph, params = decoder_of(**fields)

    def run(table: jax.Array, orders: jax.Array, ones: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits, pull = jax.vjp(lambda table: nnx.merge(graph, with_table(params, table))(orders, ones), table)
        weights = jnp.arange(1.0, LENGTH + 1)
        rows = jax.lax.map(lambda t: pull(jnp.zeros_like(logits).at[0, t].set(weights))[0], jnp.asarray(PLACES))
        return logits, rows

    orders = np.concatenate([ORDER, changed(ORDER, slice(40, None), 3)])
    table = params['embeddings']['token']['embedding']
    logits, rows = jax.device_get(jax.jit(run)(table, orders, np.ones_like(orders)))
    return logits, np.linalg.norm(rows, axis=-1)[:, ORDER[0]]


@pytest.mark.parametrize('name', [*MECHANISMS, 'learned positions'])
def test_no_gradient_reaches_a_later_token(name: str):
    _, influences = read_of(**MECHANISMS[name], **ROTARY) if name in MECHANISMS else read_of()
    for place, row in zip(PLACES, influences, strict=True):
        assert not row[place + 1 :].any(), place
        assert row[place] > 0


def test_full_attention_reaches_back_to_the_first_token():
    assert (read_of(**ROTARY)[1][-1] > 0).all()


@pytest.mark.parametrize('name', [name for name in MECHANISMS if name != 'lsh'])
def test_another_end_leaves_the_logits_before_it_as_they_are(name: str):
    """LSH is left out, because the hashes of later tokens decide which earlier keys share a chunk with a query."""
    (before, after), _ = read_of(**MECHANISMS[name], **ROTARY)
    assert_close(after[:40], before[:40])
    assert np.abs(after[40:] - before[40:]).max() > 1e-2


@pytest.mark.parametrize('name', ['causal', 'favor', 'fixed'])
def test_padding_at_the_end_equals_a_shorter_text(name: str):
    decoder = decoder_of(**MECHANISMS[name], **ROTARY)
    padded = np.asarray(apply(*decoder, *(changed(array, slice(50, None), 0) for array in (ORDER, ONES))))
    assert_close(padded[:, :50], apply(*decoder, ORDER[:, :50], ONES[:, :50]))


def test_packed_texts_do_not_read_one_another():
    decoder = decoder_of(**ROTARY)
    segments, positions = changed(ONES, slice(30, None), 2), np.arange(LENGTH, dtype=np.int32)[None]
    packed = apply(*decoder, ORDER, segments, positions_BL=np.where(positions < 30, positions, positions - 30))
    assert_close(np.asarray(packed)[:, 30:], apply(*decoder, ORDER[:, 30:], ONES[:, 30:]))


def test_parameters_of_the_heads():
    def names(**fields: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree.leaves_with_path(decoder_of(**fields)[1].get('head', {}))
        return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape for path, leaf in leaves}

    assert names() == {'dense/kernel': (16, LENGTH), 'dense/bias': (LENGTH,)}
    assert names(tied_output=True) == {}
    assert names(tied_output=True, embedding_width=8) == {'projection/kernel': (16, 8), 'projection/bias': (8,)}


def test_tied_logits_are_products_with_the_token_table():
    graph, params = decoder_of(tied_output=True)
    assert not np.asarray(apply(graph, with_table(params, np.zeros((LENGTH, 16), np.float32)), ORDER, ONES)).any()


def test_the_output_bias_is_added_to_tied_logits():
    graph, params = decoder_of(tied_output=True, output_bias=True)
    bias = np.arange(LENGTH, dtype=np.float32)
    biases = bias, np.zeros_like(bias)
    with_bias, without = (np.asarray(apply(graph, params | {'head': {'bias': x}}, ORDER, ONES)) for x in biases)
    assert_close((with_bias - without)[0, 3], bias)


def test_the_output_bias_starts_at_zero():
    config = dataclasses.replace(CONFIG, tied_output=True, output_bias=True)
    assert not jax.jit(lambda: Decoder(config, rngs=nnx.Rngs(0)).head.bias[...])().any()


def test_factorised_embeddings_give_logits_of_the_vocabulary():
    model = nnx.merge(*decoder_of(tied_output=True, embedding_width=8))
    logits = jax.eval_shape(model, ORDER, ONES)
    assert logits.shape == (1, LENGTH, LENGTH) and logits.dtype == jnp.float32


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
def test_bfloat16_gives_float32_logits_near_those_of_float32():
    decoders = [decoder_of(tied_output=True, dtype=dtype) for dtype in ('bfloat16', 'float32')]
    low, high = (np.asarray(apply(*decoder, ORDER, ONES)) for decoder in decoders)
    assert low.dtype == high.dtype == np.float32
    assert np.abs(low - high).max() < 0.1 * np.abs(high).max()
    graph, params = decoder_of(dtype='bfloat16')
    assert jax.eval_shape(nnx.merge(graph, params), ORDER, ONES).dtype == np.float32


@pytest.mark.parametrize('tied', [True, False])
def test_logits_are_those_of_the_hidden_vectors_at_any_positions(tied: bool):
    graph, params = decoder_of(tied_output=tied, embedding_width=8)

    @jax.jit
    def both(params: dict, order: jax.Array, ones: jax.Array) -> tuple[jax.Array, jax.Array]:
        decoder = nnx.merge(graph, params)
        hidden = decoder.hidden(order, ones)
        assert hidden.shape == (1, LENGTH, 16)
        return decoder.logits(hidden[:, 20:30]), decoder(order, ones)[:, 20:30]

    assert_close(*both(params, ORDER, ONES))


def test_dropout_follows_the_key():
    decoder = decoder_of(dropout_rate=0.3)
    first, again, other = (np.asarray(apply(*decoder, ORDER, ONES, rng=jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2


CAUSAL = [
    'causal',
    'causal & window(4)',
    'window(4) & causal',
    'causal & (block(4) | summary(4, 1))',
    'causal - block(3)',
]
CAUSAL += ['causal & window(2) | causal & strided(4)', 'per_head(causal, causal & window(2))']
CAUSAL += ['sparse_fixed(4, 1)', 'sparse_strided(4)', 'causal & bigbird(4, 1)']
NOT_CAUSAL = ['full', 'window(4)', 'block(4)', 'causal & window(2) | global_tokens(1)', 'full - causal']
NOT_CAUSAL += ['per_head(causal, full)', 'bigbird(4, 1)', 'causal | window(1)']


@pytest.mark.parametrize('text', CAUSAL + NOT_CAUSAL)
def test_what_counts_as_causal_is_what_the_mask_says(text: str):
    mechanism = parse_mechanism(text)
    assert isinstance(mechanism, Softmax)
    mask = dense_mask(mechanism.pattern, 12, 12, heads=2)
    is_lower = not np.triu(mask, 1).any()
    assert mechanism.is_causal == is_lower == (text in CAUSAL)


@pytest.mark.parametrize('kind', ['lsh(8, 2{})', 'favor(16{})'])
def test_other_mechanisms_say_so_themselves(kind: str):
    assert parse_mechanism(kind.format(', causal=True')).is_causal and not parse_mechanism(kind.format('')).is_causal


@pytest.mark.parametrize(
    'attention, line',
    [
        ('window(64)', "'window(64)' is not causal, as a decoder needs it; write 'causal & (window(64))', which keeps"),
        ('causal; full', "'full' is not causal, as a decoder needs it; write 'causal & (full)', which keeps the pairs"),
        ('favor(64)', "'favor(64)' is not causal, as a decoder needs it; write causal=True among its arguments"),
    ],
)
def test_an_attention_that_is_not_causal_is_one_line(attention: str, line: str):
    config = dataclasses.replace(CONFIG, attention=attention)
    with pytest.raises(InputError) as caught:
        Decoder(config, rngs=nnx.Rngs(0))
    assert str(caught.value).startswith(f'model.attention {line}')
    check_causal(dataclasses.replace(CONFIG, attention='causal'))


def test_a_stack_of_pre_norm_layers_ends_in_a_norm_and_one_of_post_norm_layers_needs_none():
    def model_of(norm: str) -> Decoder:
        return Decoder(dataclasses.replace(CONFIG, norm=norm, layers=1), rngs=nnx.Rngs(0))

    assert nnx.eval_shape(lambda: model_of('post')).norm is None  # Each of its layers ends with a norm.
    graph, params = drawn(lambda: model_of('pre'))
    params['norm'] = {'scale': np.ones(16, np.float32), 'bias': np.zeros(16, np.float32)}
    hidden = np.asarray(jax.jit(lambda params, *arrays: nnx.merge(graph, params).hidden(*arrays))(params, ORDER, ONES))
    assert_close(hidden.mean(axis=-1), np.zeros(ORDER.shape))
    assert_close(hidden.std(axis=-1), np.ones(ORDER.shape))

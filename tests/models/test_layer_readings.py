"""Tests what layers read: the weights times the values are what each attention adds in the ordinary forward pass."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.dense_attention import combine_values
from efficient_attention.attention.request import Lengths
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.layer_readings import (
    LayerReading,
    layer_readings,
    segment_readings,
    self_attention_weights,
)
from efficient_attention.models.segment_memory import empty_memory
from efficient_attention.modules.attention import Attention
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SIZES: dict[str, Any] = {'width': 16, 'heads': 2, 'layers': 2, 'vocab_size': 8, 'token_types': 0, 'max_length': 12}
SIZES |= {'feed_forward_width': 16, 'attention_dropout_rate': 0.0, 'dropout_rate': 0.0}
LENGTH = 12
TOKENS = jax.device_put(np.random.default_rng(0).integers(0, 8, (2, LENGTH), np.int32))
PACKED = np.int32([[1] * 5 + [2] * 7, [1] * 9 + [0] * 3])
ALONE = np.int32([[1] * 12, [1] * 9 + [0] * 3])
ENCODERS: dict[str, dict[str, Any]] = {
    'full': {'attention': 'full'},
    'layers of two kinds': {'attention': 'window(2); full', 'norm': 'pre', 'positions': 'sinusoidal'},
    'heads of two kinds': {'attention': 'per_head(window(1), strided(3))', 'rotary': True, 'positions': 'none'},
    'bigbird': {'attention': 'bigbird(2, 1)'},
    'alibi': {'attention': 'window(3)', 'relative': 'alibi', 'positions': 'none'},
    't5': {'relative': 't5', 'positions': 'none', 'scaled_logits': False},
    'tupe': {'relative': 'tupe_r', 'positions': 'none'},
    'additive': {'score': 'additive'},
    'location': {'score': 'location', 'location_length': 12},
    'shared parameters': {'sharing': 'all', 'layers': 3},
    'reversible': {'stack': 'reversible', 'norm': 'pre'},
    'sizes of their own': {'layer_heads': (1, 2, 0), 'layers': 3},
    'entmax': {'attention': 'entmax(window(4))'},
    'sparsemax': {'attention': 'sparsemax(full)'},
    'hard': {'attention': 'hard(full)'},
    'shared queries': {'shared_qk': True},
    'lsh': {'attention': 'lsh(2, 2)', 'shared_qk': True},
    'favor': {'attention': 'favor(8, orthogonal=False)'},
    'linear': {'attention': 'linear()'},
}
ONE_TEXT: dict[str, dict[str, Any]] = {  # these mechanisms read rows of one text each
    'induced': {'attention': 'induced(3)'},
    'linformer': {'attention': 'linformer(4, 12)'},
    'nystrom': {'attention': 'nystrom(3)'},
    'sinkhorn': {'attention': 'sinkhorn(3, 4)'},
    'routing': {'attention': 'routing(2, 6)'},
    'synthesizer': {'attention': "synthesizer('dense', 12)"},
}
DECODERS: dict[str, dict[str, Any]] = {
    'causal': {'attention': 'causal', 'rotary': True, 'positions': 'none'},
    'window': {'attention': 'causal & window(1)', 'relative': 't5', 'positions': 'none'},
    'distances': {'attention': 'causal', 'relative': 'transformer_xl', 'positions': 'none'},
    'favor': {'attention': 'favor(8, orthogonal=False, causal=True)', 'rotary': True, 'positions': 'none'},
    'lsh': {'attention': 'lsh(2, 2, causal=True)', 'shared_qk': True},
}


def made(kind: type, fields: dict[str, Any]) -> Any:
    """Returns a model with random parameters, whose layers run one after the other, not in a scan."""
    model = nnx.merge(*drawn(lambda: kind(ModelConfig(**SIZES | fields), rngs=nnx.Rngs(0))))
    for stack in getattr(model.stack, 'stretches', [model.stack]):
        stack.unstack_layers()
    return model


def branches(run: Any) -> tuple[Any, list[tuple[Attention, jax.Array]]]:
    """Returns the result of a forward pass, and each attention that it called with what that added."""
    called: list[tuple[Attention, jax.Array]] = []
    plain = Attention.run

    def spy(self: Attention, *arguments: Any) -> Any:
        found = plain(self, *arguments)
        called.append((self, found[0]))
        return found

    with mock.patch.object(Attention, 'run', spy):
        return run(), called


def projected(attention: Attention, reading: LayerReading, weights_BHLM: jax.Array) -> jax.Array:
    """Returns the output projection of the weights times the values, [B, L, D]."""

    def summed(value_BMHK: jax.Array) -> jax.Array:
        return combine_values(weights_BHLM, value_BMHK, jnp.dtype('float32'), jax.lax.Precision.HIGHEST)

    tokens = reading.operands.global_tokens
    out_BLHK = summed(reading.operands.value_BMHK)
    if tokens is not None:
        out_BLHK = jnp.where(tokens.is_global_BL[..., None, None], summed(tokens.value_BLHK), out_BLHK)
    return attention.merge_and_project_heads(out_BLHK.astype(reading.operands.query_BLHK.dtype))


def check_readings(
    model: Any, segments: Any, tokens_BL: jax.Array = TOKENS, *, dtype: str = 'float32', **options: Any
) -> list[np.ndarray]:
    """Compares each layer's weights times its values with what it adds; returns the weights."""

    @jax.jit
    def both() -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
        _, called = branches(lambda: model(tokens_BL, segments, **options))
        readings = layer_readings(model, tokens_BL, segments, **options)
        weights = [reading.weights() for reading in readings]
        pairs = zip(called, readings, weights, strict=True)
        found = [projected(attention, reading, one) for (attention, _), reading, one in pairs]
        assert [reading.number for reading in readings] == [*range(len(readings))]
        return weights, found, [added for _, added in called]

    weights, found, added = jax.device_get(both())
    is_token = np.asarray(segments.segments(LENGTH) if isinstance(segments, Lengths) else segments)[..., None] > 0
    found, added = ([x.astype(np.float32) * is_token for x in arrays] for arrays in (found, added))
    assert_close(found, added, dtype=dtype)
    return weights


@pytest.mark.parametrize('name', ENCODERS)
def test_weights_times_values_are_what_an_encoder_layer_adds(name: str):
    model = made(Encoder, ENCODERS[name])
    for weights in check_readings(model, PACKED):
        is_pair = (PACKED[:, None, :, None] == PACKED[:, None, None]) & (PACKED[:, None, :, None] > 0)
        assert not weights[~np.broadcast_to(is_pair, weights.shape)].any()
        sums = weights.sum(-1)
        assert np.all(np.isclose(sums, 1.0, atol=1e-5) | (sums == 0))


@pytest.mark.parametrize('name', ONE_TEXT)
def test_weights_of_mechanisms_that_mix_a_row(name: str):
    weights = check_readings(made(Encoder, ONE_TEXT[name]), Lengths(np.int32([9])), TOKENS[:1])
    assert [one.shape for one in weights] == [(1, 2, LENGTH, LENGTH)] * 2


@pytest.mark.parametrize('name', DECODERS)
def test_weights_of_a_decoder_are_those_of_earlier_tokens(name: str):
    for weights in check_readings(made(Decoder, DECODERS[name]), PACKED):
        assert not np.triu(weights, 1).any() and not weights[0, :, 5:, :5].any() and not weights[1, :, 9:].any()


@pytest.mark.lenient_promotion
def test_weights_of_bfloat16_layers():
    model = made(Encoder, {'dtype': 'bfloat16', 'attention': 'window(3)', 'relative': 'alibi', 'positions': 'none'})
    check_readings(model, PACKED, dtype='bfloat16')


IS_GLOBAL = np.zeros((2, LENGTH), bool)
IS_GLOBAL[0, [0, 7]] = IS_GLOBAL[1, [2, 10]] = True  # the last one is padding


def longformer(layers: int = 2) -> Encoder:
    """Returns an encoder with a window, and with projections of their own for global tokens."""
    return made(Encoder, {'attention': 'window(1)', 'global_tokens': 3, 'layers': layers})


@pytest.mark.parametrize('segments', [PACKED, ALONE])
def test_global_tokens_read_by_projections_of_their_own(segments: np.ndarray):
    for weights in check_readings(longformer(), segments, is_global_BL=IS_GLOBAL):
        np.testing.assert_allclose(weights[0].sum(-1), 1.0, atol=1e-5)
        assert not weights[1, :, 9:].any() and not weights[1, :, :, 9:].any()
        # From a token to one three places ahead there is no weight, but from and to a global token there is.
        assert weights[1, :, 2, :9].all() and weights[1, :, :9, 2].all() and not weights[1, :, 3, 6].any()


BLOCKS: dict[str, tuple[type, dict[str, Any]]] = {
    name: (Encoder, ENCODERS[name]) for name in ('heads of two kinds', 't5', 'tupe', 'additive', 'entmax', 'bigbird')
} | {'distances': (Decoder, DECODERS['distances'])}


@pytest.mark.parametrize('name', BLOCKS)
def test_blocks_of_queries_have_the_weights_of_all(name: str):
    kind, fields = BLOCKS[name]
    for reading in layer_readings(made(kind, fields | {'layers': 1}), TOKENS, Lengths(np.int32([12, 9]))):
        blocks = [*reading.weight_blocks(5)]
        assert [block.shape[2] for block in blocks] == ([5, 5, 2] if reading.by_blocks else [12])
        assert_close(jnp.concatenate(blocks, axis=2), reading.weights())


SCANNED = {
    'full': Encoder,
    'shared parameters': Encoder,
    'reversible': Encoder,
    'causal': Decoder,
    'distances': Decoder,
}


@pytest.mark.parametrize('name', SCANNED)
def test_layers_in_a_scan_have_the_weights_of_layers_in_a_loop(name: str):
    kind = SCANNED[name]
    fields = (ENCODERS if kind is Encoder else DECODERS)[name]
    config = ModelConfig(**SIZES | fields)
    scanned = nnx.merge(*drawn(lambda: kind(config, rngs=nnx.Rngs(0))))
    assert not isinstance(scanned.stack.layers, nnx.List)
    pairs = zip(
        layer_readings(scanned, TOKENS, PACKED), layer_readings(made(kind, fields), TOKENS, PACKED), strict=True
    )
    for number, (one, other) in enumerate(pairs):
        assert one.number == other.number == number
        assert_close(one.weights(), other.weights())


BY_HEADS = ('lsh', 'favor', 'linear')


@pytest.mark.parametrize('kind, name', [(Encoder, name) for name in BY_HEADS] + [(Decoder, 'lsh'), (Decoder, 'favor')])
def test_the_weights_of_one_head_are_those_among_all(kind: type, name: str):
    fields = (ENCODERS if kind is Encoder else DECODERS)[name]
    for reading in layer_readings(made(kind, fields), TOKENS, PACKED):
        assert reading.by_heads
        for head, expected_BLM in enumerate(reading.weights().swapaxes(0, 1)):
            assert_close(jax.jit(reading.head_weights)(head), expected_BLM)


@pytest.mark.parametrize('kind', [Encoder, Decoder])
def test_the_rounds_of_lsh_name_the_pairs_that_it_found(kind: type):
    fields = (ENCODERS if kind is Encoder else DECODERS)['lsh']
    [reading, _] = layer_readings(made(kind, fields), TOKENS, PACKED)
    found = reading.hash_rounds()
    assert found is not None
    buckets_BHTL, chunks_BHTL, count = (np.asarray(x) for x in found)
    assert buckets_BHTL.shape == chunks_BHTL.shape == (2, 2, 2, 12) and count == 6 == chunks_BHTL.max() + 1
    in_round = (chunks_BHTL[..., :, None] - chunks_BHTL[..., None, :]) % count <= 1
    is_allowed = (PACKED[:, :, None] == PACKED[:, None]) & (PACKED[:, None] > 0)
    is_allowed = is_allowed & (np.tri(12, dtype=bool) if kind is Decoder else True) & ~np.eye(12, dtype=bool)
    others_BHLM = np.asarray(reading.weights()) * ~np.eye(12, dtype=bool)  # a token reads itself only if it must
    np.testing.assert_array_equal(others_BHLM > 0, in_round.any(2) & is_allowed[:, None])


@pytest.mark.parametrize('kind', [Encoder, Decoder])
def test_favor_is_beside_the_softmax_that_it_estimates(kind: type):
    fields = {**(ENCODERS if kind is Encoder else DECODERS)['favor'], 'layers': 1}
    [reading] = layer_readings(made(kind, fields), TOKENS, PACKED)
    [softmax] = layer_readings(
        made(kind, fields | {'attention': 'causal' if kind is Decoder else 'full'}), TOKENS, PACKED
    )
    heads = np.arange(reading.operands.query_BLHK.shape[2])
    found = reading.estimated_softmax(heads)
    assert found is not None and softmax.estimated_softmax(heads) is None is softmax.hash_rounds()
    assert_close(found.weights(), softmax.weights())
    assert_close(jnp.concatenate([*found.weight_blocks(5)], axis=2), softmax.weights())


def test_blocks_of_rows_with_global_tokens():
    for reading in layer_readings(longformer(layers=1), TOKENS, PACKED, is_global_BL=IS_GLOBAL):
        assert_close(jnp.concatenate([*reading.weight_blocks(5)], axis=2), reading.weights())


@pytest.mark.parametrize(
    'fields', [{}, {'same_length': True}, {'compression': 'mean', 'compressed_length': 2, 'compression_rate': 2}]
)
def test_keys_of_a_memory_come_first(fields: dict[str, Any]):
    relative = {'attention': 'causal', 'relative': 'transformer_xl', 'positions': 'none', 'memory_length': 6}
    decoder = made(Decoder, relative | fields)
    slots = 6 + decoder.config.compressed_length

    @jax.jit
    def both() -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
        memory, weights, found, added = empty_memory(decoder.config, 2), [], [], []
        for part in (slice(0, 6), slice(6, 12)):
            pieces = TOKENS[:, part], jnp.asarray(PACKED[:, part])
            (_, expected), called = branches(lambda: decoder.continue_from_memory(*pieces, memory))  # noqa: B023
            readings, memory = segment_readings(decoder, *pieces, memory)
            assert jax.tree.structure(memory) == jax.tree.structure(expected)
            for (attention, out), reading in zip(called[: len(readings)], readings, strict=True):
                weights.append(reading.weights())
                found.append(projected(attention, reading, weights[-1]))
                added.append(out)
            found += jax.tree.leaves(memory)
            added += jax.tree.leaves(expected)
        return weights, found, added

    weights, found, added = jax.device_get(both())
    assert_close(found, added)
    assert [one.shape for one in weights] == [(2, 2, 6, slots + 6)] * 4
    assert not any(one[..., :slots].any() for one in weights[:2])  # the memory of the first segment is empty
    assert all(one[1, :, :, slots - 6 : slots].any() and not np.triu(one, slots + 1).any() for one in weights[2:])
    is_earlier_text = PACKED[0, :6] == 1
    assert not any(one[0, :, :, slots - 6 : slots][..., is_earlier_text].any() for one in weights[2:])


def test_lengths_of_projected_values():
    model = made(Encoder, ENCODERS['full'] | {'layers': 1})
    [reading] = layer_readings(model, TOKENS, PACKED)
    attention = model.stack.layers[0].attention
    kernel_HKD = np.asarray(attention.out.kernel[...]).reshape(2, 8, 16)
    added_BMHD = np.einsum('BMHK,HKD->BMHD', np.asarray(reading.operands.value_BMHK), kernel_HKD)
    assert_close(reading.value_norms(), np.linalg.norm(added_BMHD, axis=-1).swapaxes(1, 2))
    assert reading.logit_scale == 8**-0.5


def test_weights_of_different_numbers_of_heads_are_not_stacked():
    model = made(Encoder, ENCODERS['sizes of their own'])
    with pytest.raises(InputError, match=r'^model.layer_heads is \(1, 2, 0\); it must be equal numbers'):
        self_attention_weights(model, TOKENS, PACKED)


def test_weights_of_all_layers_are_stacked():
    model = made(Decoder, DECODERS['causal'])
    weights = self_attention_weights(model, TOKENS, PACKED)
    assert weights.shape == (2, 2, 2, LENGTH, LENGTH) and weights.dtype == jnp.float32


def test_recurrent_layers_have_no_weights():
    config = ModelConfig(width=8, cell='gru', attention='causal', vocab_size=8, token_types=0, positions='none')
    decoder = nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    with pytest.raises(InputError, match="^model.cell is 'gru'; it must be 'none': recurrent layers have no attention"):
        self_attention_weights(decoder, TOKENS, PACKED)

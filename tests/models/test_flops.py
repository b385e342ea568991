"""Tests the formula for operations against the count of XLA for the compiled forward pass."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.flops import encoder_decoder_flops, encoder_flops
from efficient_attention.models.pretraining import PretrainingModel

# The model is wide and short, so that norms, activations and softmax, which the formula omits, are few operations.
CONFIG = ModelConfig(width=256, heads=2, vocab_size=3000, layers=2, max_length=64, scan_unroll=2)
ALBERT = dataclasses.replace(CONFIG, embedding_width=64, sharing='all')
SHARED_QK = dataclasses.replace(CONFIG, shared_qk=True)


@pytest.mark.parametrize('config', [CONFIG, ALBERT, SHARED_QK], ids=['separate', 'shared and factorised', 'shared QK'])
def test_formula_equals_the_compilers_count(config: ModelConfig):
    model = nnx.eval_shape(lambda: PretrainingModel(config, has_pairs=False, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)

    def forward(state: nnx.State, tokens: jax.Array, masked_positions: jax.Array) -> jax.Array:
        model = nnx.merge(graph, state)
        return model.masked_logits(model.encoder(tokens, jnp.ones_like(tokens)), masked_positions)

    arguments = jax.ShapeDtypeStruct((1, 64), jnp.int32), jax.ShapeDtypeStruct((1, 10), jnp.int32)
    counted = jax.jit(forward).lower(state, *arguments).compile().cost_analysis()['flops']
    assert encoder_flops(config, 64, predictions=10) == pytest.approx(counted, rel=0.05)


def test_full_attention_grows_with_the_square_of_the_length_and_the_rest_in_proportion():
    flops = {length: encoder_flops(CONFIG, length, predictions=0) for length in (100, 200, 400)}
    scores = (flops[200] - 2 * flops[100]) / 2  # This is the cost of 100 x 100 pairs.
    assert scores == 2 * 2 * 2 * 100 * 100 * 256  # The factors 2 are the layers, the two products and the multiply-add.
    assert flops[400] - 4 * flops[100] == 12 * scores


def test_sparse_attention_grows_with_the_length():
    for attention in ('window(64)', 'favor(32)'):
        config = dataclasses.replace(CONFIG, attention=attention, attention_dropout_rate=0.0)
        flops = {length: encoder_flops(config, length, predictions=0) for length in (1024, 2048)}
        assert flops[2048] == pytest.approx(2 * flops[1024], rel=0.01)
        assert flops[1024] < encoder_flops(CONFIG, 1024, predictions=0)


def test_recurrent_layers_count_their_products_and_no_pairs():
    recurrent = dataclasses.replace(CONFIG, cell='lstm', feed_forward=False)
    flops = {length: encoder_flops(recurrent, length, predictions=0) for length in (100, 200)}
    # The factors are the doubled length, layers, a multiply-add, positions and gates.
    assert flops[200] == 2 * flops[100] == 2 * 2 * 2 * 100 * 4 * (256 + 256) * 256
    both = dataclasses.replace(recurrent, bidirectional=True)
    assert encoder_flops(both, 100, predictions=0) == 2 * 2 * 100 * 2 * 4 * (256 + 128) * 128
    apart = dataclasses.replace(both, directions_apart=True)
    assert encoder_flops(apart, 100, predictions=0) == 2 * 2 * 100 * 2 * 4 * (128 + 128) * 128
    simple = dataclasses.replace(recurrent, cell='sru2')
    assert encoder_flops(simple, 100, predictions=0) == 2 * 2 * 100 * 3 * 256 * 256


def test_a_source_that_is_read_apart_counts_its_matrices():
    model = {'cell': 'gru', 'feed_forward': False, 'decoder_layers': 2, 'token_types': 0, 'heads': 1, 'head_width': 256}
    square, inner = 256**2, 100 * 20 * 256
    flops = {}
    for reading in ('layers', 'state', 'before', 'after'):
        chosen = model | {'source_reading': reading, 'initial_state': 'copy'}
        config = dataclasses.replace(CONFIG, **chosen)
        flops[reading] = encoder_decoder_flops(config, 100, 20) / 2
    cross = 2 * 120 * square + 2 * inner
    assert flops['layers'] - flops['state'] == 2 * cross
    assert flops['before'] - flops['state'] == cross + 20 * 3 * square
    assert flops['after'] - flops['state'] == cross + 20 * 2 * square


def test_each_layer_counts_its_own_mechanism():
    def flops(attention: str) -> float:
        return encoder_flops(dataclasses.replace(CONFIG, attention=attention), 512, predictions=3)

    assert flops('full; block(64)') == (flops('full') + flops('block(64)')) / 2
    # Two layers, two products and a multiply-add, as above.
    assert flops('full') - flops('block(64)') == 2 * 2 * 2 * 256 * 512 * (512 - 64)


@pytest.mark.parametrize('gate', [False, True])
def test_formula_of_an_encoder_decoder_equals_the_compilers_count(gate: bool):
    config = dataclasses.replace(CONFIG, decoder_layers=2, token_types=0, feed_forward_gate=gate)
    graph, state = nnx.split(nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))

    def forward(state: nnx.State, source: jax.Array, tokens: jax.Array) -> jax.Array:
        model = nnx.merge(graph, state)
        return model.logits(model.hidden(source, jnp.ones_like(source), tokens, jnp.ones_like(tokens)))

    arguments = jax.ShapeDtypeStruct((1, 64), jnp.int32), jax.ShapeDtypeStruct((1, 24), jnp.int32)
    counted = jax.jit(forward).lower(state, *arguments).compile().cost_analysis()['flops']
    assert encoder_decoder_flops(config, 64, 24) == pytest.approx(counted, rel=0.05)


def test_targets_with_a_vocabulary_of_their_own_have_as_many_logits():
    config = dataclasses.replace(CONFIG, decoder_layers=1, shared_table=False)
    flops = [encoder_decoder_flops(dataclasses.replace(config, target_vocab_size=size), 9, 5) for size in (0, 1000)]
    assert flops[0] - flops[1] == 2 * 5 * 256 * (3000 - 1000)


def test_memory_adds_its_keys_values_and_pairs():
    decoder = dataclasses.replace(CONFIG, attention='causal', positions='none', token_types=0)
    memory = dataclasses.replace(decoder, memory_length=128)
    relative = dataclasses.replace(memory, relative='transformer_xl')
    plain, longer, more = (encoder_flops(config, 64, predictions=0) for config in (decoder, memory, relative))
    pairs = 2 * 256 * 64 * 128  # Two products of 64 queries with 128 keys, for all heads.
    assert longer - plain == 2 * 2 * (pairs + 2 * 128 * 256 * 256)
    # The segment's own tile of 64 x 64 pairs is computed whole.
    assert more - longer == 2 * 2 * (pairs + 2 * 256 * 64 * 64) / 2


def test_compressed_memory_adds_its_slots_as_tokens_and_a_learned_one_its_products():
    plain = {'attention': 'causal', 'positions': 'none', 'token_types': 0, 'memory_length': 64}
    pooled = plain | {'compression': 'mean', 'compressed_length': 64}
    learned = pooled | {'compression': 'convolution', 'reconstruction_weight': 1.0}
    configs = [dataclasses.replace(CONFIG, **fields) for fields in (plain | {'memory_length': 128}, pooled, learned)]
    longer, slots, convolution = (encoder_flops(config, 64, predictions=0) for config in configs)
    assert slots == longer
    loss = 2 * 256 * (256 + 64) * (64 + 16)  # Keys and values, and pairs, of 64 tokens and 16 slots.
    assert convolution - slots == 2 * 2 * (64 * 256 * 256 + loss)


def test_scores_count_their_operands():
    """A general score has a matrix for each head's queries, location scores no projection of keys, local-p a hidden
    layer.
    """
    plain = dataclasses.replace(CONFIG, decoder_layers=2, token_types=0)
    base = encoder_decoder_flops(plain, 40, 24)
    general = encoder_decoder_flops(dataclasses.replace(plain, score='general'), 40, 24)
    assert general - base == 2 * 2 * (40 + 24 + 24) * 2 * 128 * 128  # A multiply-add, layers, queries, heads.
    location = encoder_decoder_flops(dataclasses.replace(plain, score='location'), 40, 24)
    assert base - location == 2 * 2 * (40 + 24 + 40) * 256 * 256  # The projections of keys are missing.
    local = encoder_decoder_flops(dataclasses.replace(plain, cross_attention='local_p(5)'), 40, 24)
    assert local - base == 2 * 2 * 24 * (256 + 1) * 256
    assert encoder_decoder_flops(dataclasses.replace(plain, score='additive'), 40, 24) == base

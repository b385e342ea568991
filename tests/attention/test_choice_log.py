"""Tests that the choices of 'auto' are recorded with the layers that made them, or logged."""

import logging

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from efficient_attention.attention.attend import attend
from efficient_attention.attention.choice_log import Caller, calling_from, log_choice, recorded_choices
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.sharding import make_mesh
from efficient_attention.training.attention_line import attention_line
from tests.attention.abstract_gpu import on_abstract_gpu

SHAPE = jax.ShapeDtypeStruct((1, 8, 1, 8), jnp.float32)


def test_a_recorded_choice_is_not_logged_and_the_record_ends_with_its_context(caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    with caplog.at_level(logging.INFO):
        with recorded_choices() as choices, calling_from(Caller((0, 2), 'decoder')):
            jax.eval_shape(lambda q: attend(q, q, q, Softmax()), SHAPE)
        for mechanism in (Softmax(), Softmax(Causal())):
            jax.eval_shape(lambda q, mechanism=mechanism: attend(q, q, q, mechanism), SHAPE)
    assert [(choice.caller, choice.pattern, choice.backend) for choice in choices] == [
        (Caller((0, 2), 'decoder'), 'full', 'dense')
    ]
    assert [record.message for record in caplog.records] == ['attention: dense over causal']


def test_a_refusal_has_its_features():
    with recorded_choices() as choices, using_platform('gpu'):
        jax.eval_shape(lambda q: attend(q, q, q, Softmax(), dropout_rate=0.1, dropout_rng=jax.random.key(0)), SHAPE)
    refusal = choices[0].refusals['cudnn']
    assert refusal.features == ('inputs of type float32', 'attention dropout')
    assert refusal.message == 'cudnn has no inputs of type float32, no attention dropout'


@pytest.mark.parametrize(
    'chip, dtype, backend, line',
    [
        ('NVIDIA H200', 'bfloat16', 'mosaic', 'layers 1-2: mosaic over window(8) | global_tokens(1)'),
        (
            'NVIDIA H200',
            'float32',
            'dense',
            'layers 1-2: dense over window(8) | global_tokens(1) (cudnn supports Softmax over full, causal and '
            'causal & window, not {pattern}; mosaic would work with model.dtype=bfloat16)',
        ),
        (
            'NVIDIA A100-SXM4-40GB',
            'bfloat16',
            'dense',
            'layers 1-2: dense over window(8) | global_tokens(1) (cudnn supports Softmax over full, causal and '
            'causal & window, not {pattern}; mosaic has no NVIDIA Hopper GPU on this machine)',
        ),
    ],
)
def test_a_line_says_which_layers_the_kernels_compute_and_what_they_lack(
    chip: str, dtype: str, backend: str, line: str
):
    mechanism = parse_mechanism('window(8) | global_tokens(1)')
    shape = jax.ShapeDtypeStruct((1, 256, 1, 64), dtype)
    with recorded_choices() as choices, using_platform('gpu', 1, chip), on_abstract_gpu():
        with calling_from(Caller((0, 1))):
            jax.eval_shape(lambda q: attend(q, q, q, mechanism), shape)
    assert [choice.backend for choice in choices] == [backend]
    assert attention_line(choices) == f'attention: {line.format(pattern=mechanism)}'


def test_a_named_backend_is_recorded():
    with recorded_choices() as choices, calling_from(Caller((0,))):
        jax.eval_shape(lambda q: attend(q, q, q, Softmax(), backend='blocked'), SHAPE)
    assert attention_line(choices) == 'attention: layer 1: blocked over full'


@pytest.mark.devices
def test_sharded_rows_are_recorded():
    x = jax.ShapeDtypeStruct((1, 512, 1, 64), jnp.float32)
    with recorded_choices() as choices, using_mesh(make_mesh(MeshConfig(1, sequence=2), jax.devices()[:2])):
        with calling_from(Caller((0,))):
            jax.eval_shape(lambda q: attend(q, q, q, Softmax(), backend='blocked'), x)
    assert attention_line(choices) == 'attention: layer 1: blocked over full'


def test_rows_that_are_too_short_for_a_kernel_say_so():
    shape = jax.ShapeDtypeStruct((1, 128, 1, 64), jnp.bfloat16)
    with recorded_choices() as choices, using_platform('tpu', 1, 'TPU v5 lite'), calling_from(Caller((0,))):
        jax.eval_shape(lambda q: attend(q, q, q, Softmax()), shape)
    short = 'auto takes splash only for rows of 256 positions or more'
    assert attention_line(choices) == f'attention: layer 1: dense over full ({short})'


@pytest.mark.parametrize('stack, norm', [('plain', 'post'), ('reversible', 'pre')])
def test_layers_name_themselves(stack: str, norm: str):
    fields = {'layers': 4, 'attention': 'causal; causal & window(3)', 'stack': stack, 'norm': norm}
    config = ModelConfig(vocab_size=9, width=16, heads=2, max_length=8, **fields)
    tokens = jnp.ones((1, 8), jnp.int32)
    with recorded_choices() as choices:
        nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))(tokens, tokens))
    assert {(choice.caller.layers, choice.pattern) for choice in choices} == {
        ((0, 2), 'causal'),
        ((1, 3), 'causal & window(3)'),
    }


def test_the_parts_of_an_encoder_decoder_name_themselves():
    config = ModelConfig(vocab_size=9, width=16, heads=2, max_length=8, layers=1, decoder_layers=2, token_types=0)
    tokens = jnp.ones((1, 8), jnp.int32)
    with recorded_choices() as choices:
        nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))(tokens, tokens, tokens, tokens))
    assert {choice.caller for choice in choices} == {
        Caller((0,), ''),
        Caller((0, 1), 'decoder'),
        Caller((0, 1), 'cross-attention'),
    }

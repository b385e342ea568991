"""Tests the operations and the memory traffic of a program, where the body of a loop counts once for each turn."""

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.kernel_work import KernelWork, stating_work
from efficient_attention.planning.cost import convolution_pair_count, cost_of
from efficient_attention.planning.hlo_program import parse_program
from tests.planning.small_program import TEXT


def test_cost_of_a_program():
    cost = cost_of(parse_program(TEXT))
    assert cost.flops == 3 * 2 * 4 * 16 * 8
    assert cost.cycles == 3 * 100
    assert cost.uncounted_calls == ()  # the calls of this program start and end a collective
    layer, product = 8 * 16 * 4, (4 * 8 + 8 * 16 + 4 * 16) * 4
    # Each turn of the loop reads a layer's slice and writes it, adds 1 to the counter, and sums two arrays.
    in_loop = 4 + 3 * 4 + 2 * layer + product + 4 * 4 * 16 * 4
    once = 2 * 4 + (3 + 1) * layer + layer + 4 * 16 * 4 + 2 * 2 * 8 * 2
    asynchronous = 2 * 8 * 2 + (2 * 8 + 8 * 8) * 2 + 2 * 8 * 2 + 8 * 8 * 2
    assert cost.bytes == 3 * in_loop + once + asynchronous


def test_the_products_of_a_compiled_scan():
    """Five turns of [8, 16] by [16, 16], once forward and twice backward. XLA's own cost analysis counts a single
    turn.
    """

    def loss(w_NDD: jax.Array, x_BD: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x_BD, w_DD: (jnp.tanh(x_BD @ w_DD), None), x_BD, w_NDD)[0].sum()

    step = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(jnp.ones((5, 16, 16)), jnp.ones((8, 16))).compile()
    program = parse_program(step.as_text())
    assert not program.loops_of_unknown_length()
    assert cost_of(program).flops == 5 * 3 * 2 * 8 * 16 * 16


CONVOLUTION = """ENTRY %main (a: f32[2,8], b: f32[8,3]) -> f32[2,3] {
  %a = f32[SIZES]{1,0} parameter(0)
  %b = f32[KERNEL]{1,0} parameter(1)
  ROOT %product = f32[RESULT]{1,0} convolution(%a, %b), LABELS
}
"""


@pytest.mark.parametrize(
    'left, kernel, result, labels, flops',
    [
        ('2,8', '8,3', '2,3', 'dim_labels=bf_io->bf', 2 * 2 * 8 * 3),
        # A product for each of 4 heads, as the TPU compiler writes it: one position of a dilated dimension is read.
        (
            '4,2,8',
            '4,8,3',
            '4,2,3',
            'window={size=4 stride=3 pad=0_0 lhs_dilate=4}, dim_labels=0bf_0io->0bf',
            2 * 4 * 2 * 8 * 3,
        ),
        # Five positions: at the first and the last one, one of the three positions of the window is padding.
        ('5,2,8', '3,8,3', '5,2,3', 'window={size=3 pad=1_1}, dim_labels=0bf_0io->0bf', 2 * (15 - 2) * 2 * 8 * 3),
    ],
)
def test_products_as_convolutions(left, kernel, result, labels, flops):
    text = CONVOLUTION.replace('SIZES', left).replace('KERNEL', kernel).replace('RESULT', result)
    assert cost_of(parse_program(text.replace('LABELS', labels))).flops == flops


def test_places_of_a_window():
    assert convolution_pair_count({'size': '4', 'stride': '3', 'lhs_dilate': '4'}, outputs=4, inputs=4) == 4
    assert convolution_pair_count({'size': '3', 'rhs_dilate': '2'}, outputs=1, inputs=5) == 3


CUDNN = """ENTRY %main (q: bf16[2,96,4,64]) -> bf16[2,96,4,64] {
  %q = bf16[2,96,4,64]{3,2,1,0} parameter(0)
  ROOT %out = bf16[2,96,4,64]{3,2,1,0} custom-call(%q, %q, %q), custom_call_target="TARGET", backend_config={CONFIG}
}
"""
CONFIG = (
    '"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"element_type":"BF16","dimensions":["2","4","96","96"]},'
    '"mask_type":"MASK","sliding_window_length":WINDOW}'
)


@pytest.mark.parametrize(
    'target, mask, window, products, pairs',
    [
        ('__cudnn$fmhaSoftmax', 'PADDING', 0, 2, 96 * 96),
        ('__cudnn$fmhaSoftmaxBackward', 'NO_MASK', 0, 5, 96 * 96),
        ('__cudnn$fmhaSoftmax', 'CAUSAL', 0, 2, 96 * 97 // 2),
        ('__cudnn$fmhaSoftmaxBackward', 'PADDING_CAUSAL', 3, 5, 1 + 2 + 94 * 3),
        ('another', 'CAUSAL', 0, 0, 0),
    ],
)
def test_products_inside_cudnn(target: str, mask: str, window: int, products: int, pairs: int):
    config = CONFIG.replace('MASK', mask).replace('WINDOW', str(window))
    cost = cost_of(parse_program(CUDNN.replace('CONFIG', config).replace('TARGET', target)))
    assert cost.flops == products * 2 * 2 * 4 * pairs * 64
    assert cost.uncounted_calls == (() if products else (target,))


SPLASH = """ENTRY %main (list: s8[1,3,2], q: bf16[2,4,1536,64]) -> f32[512,128] {
  %list = s8[1,3,2]{2,1,0} parameter(0)
  %q = bf16[2,4,1536,64]{3,2,1,0} parameter(1)
  ROOT %splash_mha_NAME_segmented.1 = (f32[512,128]{1,0}, bf16[2,4,1536,64]{3,2,1,0}) custom-call(CALL
}
"""


@pytest.mark.parametrize('name, products', [('fwd', 2), ('dq', 3), ('dkv', 4), ('other', 0)])
def test_products_inside_splash_attention(name: str, products: int):
    """Three query tiles of 512 list at most two key tiles each, for 2 rows of 4 heads."""
    for lists in ('%list, %list', '%list, %list, %list'):  # the third list is of masks
        call = f'{lists}, %q, %q, %q), custom_call_target="tpu_custom_call"'
        cost = cost_of(parse_program(SPLASH.replace('NAME', name).replace('CALL', call)))
        assert cost.uncounted_calls == (() if products else ('tpu_custom_call',))
        assert cost.flops == cost.kernel_flops == products * 2 * (2 * 4) * (3 * 2) * 512**2 * 64


def test_a_kernel_counts_the_work_that_its_scope_states():
    """The scope reaches the compiled program through a scan, differentiation and rematerialisation. A factorisation by
    LAPACK stands for the kernel.
    """

    @jax.custom_vjp
    def kernel(x_DD: jax.Array) -> jax.Array:
        with stating_work(KernelWork('forward', 2**40, 1000)):
            return jnp.linalg.cholesky(x_DD)

    def backward(_: None, gradient_DD: jax.Array) -> tuple[jax.Array]:
        with stating_work(KernelWork('dq', 7, 11)):
            return (jnp.linalg.cholesky(gradient_DD),)

    kernel.defvjp(lambda x_DD: (kernel(x_DD), None), backward)

    def total(x_DD: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda x_DD: kernel(x_DD) @ x_DD, prevent_cse=False)
        return jax.lax.scan(lambda x_DD, _: (layer(x_DD), None), x_DD, None, length=3)[0].sum()

    plain = cost_of(parse_program(jax.jit(total).lower(jnp.eye(8)).compile().as_text()))
    assert plain.kernels == {'forward': KernelWork('forward', 3 * 2**40, 3 * 1000)}
    cost = cost_of(parse_program(jax.jit(jax.grad(total)).lower(jnp.eye(8)).compile().as_text()))
    assert cost.uncounted_calls == ()
    assert cost.kernels == {
        'forward': KernelWork('forward', 6 * 2**40, 6 * 1000),
        'dq': KernelWork('dq', 3 * 7, 3 * 11),
    }
    products = 3 * 3 * 2 * 8**3  # one forward and two backward for each turn
    assert cost.flops == 6 * 2**40 + 3 * 7 + products


def test_the_bytes_of_a_kernel_are_those_that_it_loads():
    text = CALLS.replace('INNER', 'foo')
    scope = 'metadata={op_name="jit(step)/kernel_dq_flops5_bytes123456789/pallas_call"}'
    stated = text.replace('"foo"\n  %third', f'"foo", {scope}\n  %third')
    assert stated != text
    difference = cost_of(parse_program(stated)).bytes - cost_of(parse_program(text)).bytes
    assert difference == 123456789 - 2 * 8 * 4


CALLS = """%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %inner = f32[8]{0} custom-call(%p), custom_call_target="INNER"
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %first = f32[8]{0} custom-call(%a), custom_call_target="TopK"
  %second = f32[8]{0} custom-call(%first), custom_call_target="foo"
  %third = f32[8]{0} custom-call(%second), custom_call_target="foo"
  ROOT %fused = f32[8]{0} fusion(%third), kind=kCustom, calls=%body
}
"""


@pytest.mark.parametrize(
    'inner, targets', [('__cublas$gemm', ('__cublas$gemm', 'foo')), ('ConcatBitcast', ('foo',)), ('Sharding', ('foo',))]
)
def test_custom_calls_that_are_not_counted(inner: str, targets: tuple[str, ...]):
    assert cost_of(parse_program(CALLS.replace('INNER', inner))).uncounted_calls == targets


def test_a_compiled_choice_of_the_largest_is_not_named():
    def function(x_BD: jax.Array) -> jax.Array:
        return jax.lax.top_k(jnp.sort(x_BD), 2)[0]

    text = jax.jit(function).lower(jnp.ones((8, 64))).compile().as_text()
    assert 'custom_call_target="TopK"' in text
    assert cost_of(parse_program(text)).uncounted_calls == ()


def test_a_compiled_factorisation_is_named():
    text = jax.jit(jnp.linalg.cholesky).lower(jnp.eye(8)).compile().as_text()
    assert cost_of(parse_program(text)).uncounted_calls == ('lapack_spotrf_ffi',)

"""Tests that the cuDNN backend accepts only calls that it computes exactly, and that its program lowers without
a GPU.
"""

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

# This private module asks the machine for its cuDNN; no public option lowers a program on a machine without one.
from jax._src.cudnn import fused_attention_stablehlo

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import ACTIVATIONS, partition, using_mesh
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.parsing import parse_mechanism, parse_pattern
from efficient_attention.attention.request import Lengths, with_padding_zeroed
from efficient_attention.attention.softmax import cudnn
from efficient_attention.attention.softmax.cudnn import attend_fused, check_supported, compute_attention, is_supported
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.inference.fill_mask import masked_logits
from efficient_attention.inference.search_settings import SearchSettings, no_limits
from efficient_attention.inference.seq2seq_generator import PaddedSources, search_targets
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.sharding import make_mesh
from efficient_attention.planning.topology import make_topology_devices, parse_topology
from tests.attention.cells import inputs
from tests.attention.requests import make_request
from tests.tolerances import assert_close

L = 96
Q = jnp.ones((2, L, 4, 64), jnp.bfloat16)
IDS = jnp.ones((2, L), jnp.int32)
TWO_LENGTHS = {'query_segments': Lengths(np.array([9, 5])), 'key_segments': Lengths(np.array([4, 5]))}


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes JAX believe that this machine has a GPU with cuDNN."""
    monkeypatch.setattr(fused_attention_stablehlo, 'check_cudnn_version', lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, 'check_compute_capability', lambda _: True)
    monkeypatch.setattr(fused_attention_stablehlo, 'is_cuda_compute_capability_equal', lambda _: False)
    with using_platform('gpu'):
        yield


@pytest.mark.usefixtures('on_a_gpu')
@pytest.mark.parametrize('text', ['full', 'causal', 'causal & window(16)', 'window(16) & causal'])
def test_forward_and_backward_lower_to_cudnn_without_a_mask(text: str):
    loss = jax.grad(
        lambda q, k: attend(q, k, k, parse_mechanism(text), backend='cudnn').astype(jnp.float32).sum(), (0, 1)
    )
    program = jax.jit(loss).trace(Q, Q[:, :, :2]).lower(lowering_platforms=('cuda',)).as_text()
    assert re.findall(r'custom_call @([\w$]+)', program) == ['__cudnn$fmhaSoftmax', '__cudnn$fmhaSoftmaxBackward']
    assert f'{L}x{L}' not in program, 'an array of all pairs'
    masks = re.findall(r'mask_type\\22: \\22(\w+)', program)
    windows = re.findall(r'sliding_window_length\\22: (\d+)', program)
    # cuDNN's window length includes the query's own position.
    assert (set(masks), set(windows)) == (
        {'CAUSAL' if 'causal' in text else 'NO_MASK'},
        {'17' if 'window' in text else '0'},
    )


@pytest.mark.usefixtures('on_a_gpu')
@pytest.mark.parametrize(
    'text, changes, line',
    [
        ('window(3)', {}, 'supports Softmax over full, causal and causal & window, not'),
        ('causal & window(3, 2)', {}, 'supports Softmax over'),
        ('favor(16)', {'rng': jax.random.key(0)}, 'computes PatternAttention, not FAVOR'),
        ('full', {'bias': jnp.ones((L, L))}, 'no additive bias'),
        ('full', {'query_segments': IDS, 'key_segments': IDS}, 'no support for packed segments'),
        ('full', {'dropout_rate': 0.1, 'rng': jax.random.key(0)}, 'no attention dropout'),
        ('full', {'return_lse': True}, 'no log-sum-exp'),
        ('causal & window(3)', TWO_LENGTHS, 'no windows with different lengths of queries and keys'),
        ('causal', {'query_positions': np.arange(1, L + 1)[None]}, 'no support for unequal lengths, or for positions'),
    ],
)
def test_what_it_lacks_is_named(text: str, changes: dict, line: str):
    check_supported(make_request(Q, Q, Q, parse_mechanism('causal')))
    with pytest.raises(NotImplementedError, match=line):
        compute_attention(make_request(Q, Q, Q, parse_mechanism(text), **changes))


@pytest.mark.usefixtures('on_a_gpu')
def test_types_and_widths_are_checked():
    for q, line in [
        (Q.astype(jnp.float32), 'no inputs of type float32'),
        (Q[..., :12], 'no support for heads of width 12'),
    ]:
        with pytest.raises(NotImplementedError, match=line):
            check_supported(make_request(q, q, q, parse_mechanism('full')))


def test_a_gpu_without_cudnn_falls_back(monkeypatch: pytest.MonkeyPatch):
    def no_cudnn() -> int:
        raise RuntimeError('cuDNN is not detected.')

    monkeypatch.setattr(fused_attention_stablehlo, 'check_cudnn_version', no_cudnn)
    with using_platform('gpu'):
        assert jax.eval_shape(lambda q: attend(q, q, q, parse_mechanism('full')), Q).shape == Q.shape
        with pytest.raises(NotImplementedError, match=r'^cudnn cannot run here: cuDNN is not detected\.$'):
            attend(Q, Q, Q, parse_mechanism('full'), backend='cudnn')


@pytest.mark.usefixtures('on_a_gpu')
def test_rows_with_shared_lengths_inside_vmap_fall_back():
    stacked, lengths = jnp.stack([Q] * 3), jnp.full(2, L, jnp.int32)

    def attended(backend: str) -> jax.Array:
        given = {'query_segments': Lengths(lengths), 'key_segments': Lengths(lengths), 'backend': backend}
        return jax.vmap(lambda q: attend(q, q, q, parse_mechanism('full'), **given))(stacked)

    assert jax.eval_shape(lambda: attended('auto')).shape == stacked.shape
    with pytest.raises(NotImplementedError, match='^cudnn cannot run here: cannot reshape array'):
        jax.eval_shape(lambda: attended('cudnn'))


@pytest.mark.usefixtures('on_a_gpu')
@pytest.mark.parametrize('error', [RuntimeError('out of memory'), TypeError('a tracer is no number')])
def test_other_errors_are_not_taken_for_a_missing_cudnn(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cudnn.jax.nn, 'dot_product_attention', failing)
    with pytest.raises(type(error), match=str(error)):
        attend(Q, Q, Q, parse_mechanism('full'))


def test_an_older_gpu_falls_back(monkeypatch: pytest.MonkeyPatch):
    class Turing:
        compute_capability = '7.5'

    monkeypatch.setattr(cudnn.jax, 'local_devices', lambda: [Turing()])
    with using_platform('gpu'), pytest.raises(NotImplementedError, match='no support for GPUs of a compute capability'):
        check_supported(make_request(Q, Q, Q, parse_mechanism('full')))


def test_a_machine_without_a_gpu_is_told():
    with pytest.raises(NotImplementedError, match='^cudnn has no GPU on this machine$'):
        attend(Q, Q, Q, parse_mechanism('full'), backend='cudnn')


def test_what_needs_no_mask_is_recognised():
    served = ('full', 'causal', 'causal & window(3)', 'window(4) & causal', 'causal & window(5) & window(3)')
    others = ('window(3)', 'causal & window(3, 2)', 'causal & block(4)', 'full - window(3)', 'per_head(full, full)')
    assert {text: is_supported(parse_pattern(text)) for text in served + others} == {
        text: text in served for text in served + others
    }


@pytest.mark.usefixtures('on_a_gpu')
@pytest.mark.parametrize('text, mask', [('full', 'PADDING'), ('causal', 'PADDING_CAUSAL')])
def test_lengths_are_passed_on(text: str, mask: str):
    lengths = Lengths(jnp.array([L, 3], jnp.int32))
    given = {'query_segments': lengths, 'key_segments': lengths, 'backend': 'cudnn'}
    loss = jax.grad(lambda q: attend(q, q, q, parse_mechanism(text), **given).astype(jnp.float32).sum())
    program = jax.jit(loss).trace(Q).lower(lowering_platforms=('cuda',)).as_text()
    assert set(re.findall(r'mask_type\\22: \\22(\w+)', program)) == {mask}


@pytest.mark.parametrize('text', ['full', 'causal', 'causal & window(3)'])
def test_the_call_equals_the_definition(text: str):
    """JAX's XLA implementation of the same call is compared; it has padding and a row without tokens."""
    (q, k, v), _ = inputs(20, 'grouped', batch=3)
    mechanism, lengths = parse_mechanism(text), Lengths(np.array([20, 7, 0], np.int32))
    given = {'query_segments': lengths, 'key_segments': lengths}
    weights = np.cos(np.arange(q.size)).reshape(q.shape).astype(np.float32)

    @jax.jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> list:
        def fused(*qkv: jax.Array) -> jax.Array:
            return attend_fused(with_padding_zeroed(make_request(*qkv, mechanism, **given)), 'xla')

        def defined(*qkv: jax.Array) -> jax.Array:
            return attend(*qkv, mechanism, backend='reference', **given)

        def weighted(form: Callable, *qkv: jax.Array) -> tuple:
            out = form(*qkv)
            return (out * weights).sum(), out

        return [jax.grad(weighted, (1, 2, 3), has_aux=True)(form, q, k, v) for form in (fused, defined)]

    ours, expected = both(q, k, v)
    assert_close(ours, expected, gradient=True)


@pytest.mark.lenient_promotion
@pytest.mark.usefixtures('on_a_gpu')
@pytest.mark.parametrize(
    'make, attention, dropout, kernels',
    [
        (Encoder, 'full', 0.0, 2),
        (Decoder, 'causal', 0.0, 2),
        (Decoder, 'causal & window(20)', 0.0, 2),
        (Encoder, 'full', 0.1, 0),
    ],
)
def test_models_reach_the_kernel_without_asking(make: type, attention: str, dropout: float, kernels: int):
    """Training with rows of one text uses the kernel; with dropout on weights it uses other backends."""
    config = ModelConfig(
        vocab_size=30, layers=2, width=64, heads=2, max_length=L, attention=attention, dtype='bfloat16',
        attention_dropout_rate=dropout, scan_unroll=1,
    )  # fmt: skip
    graph, params = nnx.split(nnx.eval_shape(lambda: make(config, rngs=nnx.Rngs(0))))
    tokens, lengths = jax.ShapeDtypeStruct((2, L), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)

    def loss(params: nnx.State, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        out = nnx.merge(graph, params)(tokens, Lengths(lengths), rng=jax.random.key(0))
        return out.astype(jnp.float32).sum()

    program = jax.jit(jax.grad(loss)).trace(params, tokens, lengths).lower(lowering_platforms=('cuda',)).as_text()
    assert len(set(re.findall(r'custom_call @(__cudnn[\w$]+)', program))) == kernels


@pytest.mark.lenient_promotion
@pytest.mark.usefixtures('on_a_gpu')
def test_generation_and_filled_masks_reach_the_kernel():
    config = ModelConfig(
        vocab_size=30, layers=2, decoder_layers=1, width=64, heads=2, max_length=L, dtype='bfloat16', token_types=0
    )
    tokens, lengths = jax.ShapeDtypeStruct((2, L), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)
    search = SearchSettings(beams=1, max_tokens=4)
    sources, limits = PaddedSources(tokens, lengths, jnp.zeros(1, jnp.int32)), no_limits(30, 2, search)
    graph, params = nnx.split(nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))
    generation = search_targets.trace(graph, params, sources, limits, search=search)
    config = dataclasses.replace(config, decoder_layers=0)
    graph, params = nnx.split(nnx.eval_shape(lambda: PretrainingModel(config, has_pairs=False, rngs=nnx.Rngs(0))))
    filled = jax.jit(functools.partial(masked_logits, graph)).trace(params, tokens, lengths, tokens)
    for traced in (generation, filled):
        program = traced.lower(lowering_platforms=('cuda',)).as_text()
        assert set(re.findall(r'custom_call @(__cudnn[\w$]+)', program)) == {'__cudnn$fmhaSoftmax'}


@pytest.mark.slow
@pytest.mark.parametrize(
    'mesh, heads', [({'data': 2, 'tensor': 2}, 4), ({'data': 4}, 8), ({'fsdp': 2, 'tensor': 2}, 4)]
)
def test_each_of_four_gpus_computes_its_own_rows_and_heads(mesh: dict[str, int], heads: int):
    """Compiled for four H200s, without a device: both kernels get the shard of a device, and nothing is sent."""
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    made = make_mesh(MeshConfig(**mesh), make_topology_devices(parse_topology('h200:4')))
    q = jax.ShapeDtypeStruct((8, 512, 8, 64), jnp.bfloat16, sharding=sharding_of('BLHK', (8, 512, 8, 64), made))
    lengths = jax.ShapeDtypeStruct((8,), jnp.int32, sharding=sharding_of('B', (8,), made))

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array) -> jax.Array:
        given = {'query_segments': Lengths(lengths), 'key_segments': Lengths(lengths), 'backend': 'cudnn'}
        return attend(q, k, v, parse_mechanism('causal'), **given)

    def gradients(q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array) -> tuple:
        out, pull = jax.vjp(functools.partial(attention, lengths=lengths), q, k, v)
        return out, pull(out)

    with using_mesh(made):
        text = jax.jit(gradients).lower(q, q, q, lengths).compile().as_text()
    kernels = re.findall(r'custom_call_target="(__cudnn\$fmha\w+)"', text)
    assert kernels == ['__cudnn$fmhaSoftmax', '__cudnn$fmhaSoftmaxBackward']
    shapes = re.findall(r'"intermediate_tensor_shape":.*?"dimensions":\["?(\d+)"?,"?(\d+)', text.replace(' ', ''))
    rows = 8 // (4 // made.shape['tensor'])
    assert shapes == [(str(rows), str(heads))] * 2
    assert not re.search(r'all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter', text)


def sharding_of(letters: str, shape: tuple[int, ...], mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(mesh, partition(letters, shape, mesh, ACTIVATIONS))

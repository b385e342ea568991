"""cuDNN serves what it computes exactly and refuses the rest; its program lowers for a GPU without one."""

import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# Private, and only here: it asks this machine for its cuDNN, and no public option lowers a program without one.
from jax._src.cudnn import fused_attention_stablehlo

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.parsing import parse_mechanism, parse_pattern
from efficient_attention.attention.softmax.cudnn import check_supported, compute_attention, is_supported
from tests.attention.requests import make_request

L = 96
Q = jnp.ones((2, L, 4, 64), jnp.bfloat16)
IDS = jnp.ones((2, L), jnp.int32)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """JAX believes that there is one."""
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
    # cuDNN counts the query's own position.
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
        ('full', {'query_segments': IDS, 'key_segments': IDS}, 'no segments'),
        ('full', {'dropout_rate': 0.1, 'rng': jax.random.key(0)}, 'no attention dropout'),
        ('full', {'return_lse': True}, 'no log-sum-exp'),
        ('causal', {'query_positions': np.arange(1, L + 1)[None]}, 'no unequal lengths or other positions'),
    ],
)
def test_what_it_lacks_is_named(text: str, changes: dict, line: str):
    check_supported(make_request(Q, Q, Q, parse_mechanism('causal')))
    with pytest.raises(NotImplementedError, match=line):
        compute_attention(make_request(Q, Q, Q, parse_mechanism(text), **changes))


@pytest.mark.usefixtures('on_a_gpu')
def test_types_and_widths_are_checked():
    for q, line in [(Q.astype(jnp.float32), 'no inputs of type float32'), (Q[..., :12], 'no heads 12 wide')]:
        with pytest.raises(NotImplementedError, match=line):
            check_supported(make_request(q, q, q, parse_mechanism('full')))


def test_a_machine_without_a_gpu_is_told():
    with pytest.raises(NotImplementedError, match='^cudnn has no GPU on this machine$'):
        attend(Q, Q, Q, parse_mechanism('full'), backend='cudnn')


def test_what_needs_no_mask_is_recognised():
    served = ('full', 'causal', 'causal & window(3)', 'window(4) & causal', 'causal & window(5) & window(3)')
    others = ('window(3)', 'causal & window(3, 2)', 'causal & block(4)', 'full - window(3)', 'per_head(full, full)')
    assert {text: is_supported(parse_pattern(text)) for text in served + others} == {
        text: text in served for text in served + others
    }

"""Measures the error of each softmax backend against float64, in outputs and gradients.

The reference is NumPy code: softmax over the allowed pairs in float64, and gradients derived by hand. Inputs are first
rounded to the tested type, so that only the rounding of the backend counts. `output_error` and `gradient_error` are
relative: the norm of the difference divided by the norm of the reference. `output_max_error` and `gradient_max_error`
are the largest absolute differences. Each error is the median over `DRAWS` random inputs, with its range.
"""

import functools
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import BACKENDS, attend
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns.pattern import dense_mask
from efficient_attention.attention.softmax.definition import Softmax
from scripts.benchmarks.gpu.cases import Case, Settings

PATTERNS = ('causal', 'causal & window(128)', 'bigbird(64, 1)', 'full')
TYPES = ('bfloat16', 'float16', 'float32')
SHAPE = (2, 512, 4, 64)  # rows, positions, heads, head width
DRY_SHAPE = (1, 64, 1, 8)
DRAWS = 3


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case per pattern, type and backend."""
    patterns, types, shape = (PATTERNS[:1], TYPES[::2], DRY_SHAPE) if settings.is_dry else (PATTERNS, TYPES, SHAPE)
    return [
        Case(f'{text} {dtype}', backend, functools.partial(measure_error, text, dtype, backend, shape))
        for text in patterns
        for dtype in types
        for backend in BACKENDS
    ]


def measure_error(text: str, dtype: str, backend: str, shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """Returns the errors of a backend's output and gradients, for the pattern of a text and inputs of one type."""
    mechanism = parse_mechanism(text)
    assert isinstance(mechanism, Softmax)

    @jax.jit
    def output_and_gradients(q_BLHK: jax.Array, k_BLHK: jax.Array, v_BLHK: jax.Array, g_BLHK: jax.Array) -> Any:
        def call(*operands: jax.Array) -> jax.Array:
            return attend(*operands, mechanism, backend=backend)

        out_BLHK, pull_back = jax.vjp(call, q_BLHK, k_BLHK, v_BLHK)
        return out_BLHK, *pull_back(g_BLHK)

    allowed_HLM = dense_mask(mechanism.pattern, shape[1], shape[1], shape[2])
    draws = []
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        arrays = [jnp.asarray(rng.normal(size=shape), dtype) for _ in range(4)]
        found = [np.asarray(one, np.float64) for one in output_and_gradients(*arrays)]
        exact = attend_exactly(*(np.asarray(one, np.float64) for one in arrays), allowed_HLM)
        draws.append(errors_of(found, exact))
    figures: dict[str, Any] = {}
    for name in draws[0]:
        errors = [draw[name] for draw in draws]
        figures |= {name: statistics.median(errors), f'{name}_range': [min(errors), max(errors)]}
    return figures


def errors_of(found: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> dict[str, float]:
    """Returns the errors of an output, and the largest errors among the gradients of q, k and v."""
    norms = [
        float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in zip(found, exact, strict=True)
    ]
    largest = [float(np.abs(one - other).max()) for one, other in zip(found, exact, strict=True)]
    return {
        'output_error': norms[0],
        'gradient_error': max(norms[1:]),
        'output_max_error': largest[0],
        'gradient_max_error': max(largest[1:]),
    }


def attend_exactly(
    q_BLHK: np.ndarray, k_BLHK: np.ndarray, v_BLHK: np.ndarray, g_BLHK: np.ndarray, allowed_HLM: np.ndarray
) -> Sequence[np.ndarray]:
    """Returns the output of softmax attention in NumPy, and the gradients of q, k and v for the output's gradient g.

    Every query needs at least one allowed key.
    """
    scale = q_BLHK.shape[-1] ** -0.5
    logits_BHLM = scale * np.einsum('blhk,bmhk->bhlm', q_BLHK, k_BLHK)
    logits_BHLM = np.where(allowed_HLM, logits_BHLM, -np.inf)
    weights_BHLM = np.exp(logits_BHLM - logits_BHLM.max(-1, keepdims=True))
    weights_BHLM /= weights_BHLM.sum(-1, keepdims=True)
    to_weights_BHLM = np.einsum('blhk,bmhk->bhlm', g_BLHK, v_BLHK)
    mean_BHL1 = (to_weights_BHLM * weights_BHLM).sum(-1, keepdims=True)
    to_logits_BHLM = scale * weights_BHLM * (to_weights_BHLM - mean_BHL1)
    return (
        np.einsum('bhlm,bmhk->blhk', weights_BHLM, v_BLHK),
        np.einsum('bhlm,bmhk->blhk', to_logits_BHLM, k_BLHK),
        np.einsum('bhlm,blhk->bmhk', to_logits_BHLM, q_BLHK),
        np.einsum('bhlm,blhk->bmhk', weights_BHLM, g_BLHK),
    )

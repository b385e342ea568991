"""Measures the error of each softmax backend against float64, in outputs and gradients.

The reference is NumPy code: softmax over the allowed pairs in float64, and gradients derived by hand. Inputs are first
rounded to the tested type, so that only the rounding of the backend counts. `output_error` and `gradient_error` are
relative: the norm of the difference divided by the norm of the reference. `output_max_error` and `gradient_max_error`
are the largest absolute differences. Each error is the median over `DRAWS` random inputs, with its range.

Models call attention with padded rows, and often with fewer key heads than query heads. The sizes `PADDED` have both,
and one row that is only padding.
"""

import dataclasses
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
from efficient_attention.attention.request import Lengths
from efficient_attention.attention.softmax.definition import Softmax
from scripts.benchmarks.gpu.cases import Case, Settings

SIDES = tuple(backend for backend in BACKENDS if backend != 'splash')  # its kernels run only on TPUs
PATTERNS = ('causal', 'causal & window(128)', 'bigbird(64, 1)', 'full')
TYPES = ('bfloat16', 'float16', 'float32')
DRAWS = 3


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a case: rows, positions, query heads and head width; key heads; tokens of each row."""

    shape: tuple[int, int, int, int]
    key_heads: int
    lengths: tuple[int, ...] | None = None  # None = rows without padding

    @property
    def description(self) -> str:
        """The end of a case's name; '' for rows without padding."""
        return f', rows of {", ".join(map(str, self.lengths))} tokens, grouped heads' if self.lengths else ''


WHOLE, PADDED = Sizes((2, 512, 4, 64), 4), Sizes((3, 512, 4, 64), 2, (512, 200, 0))
DRY_WHOLE, DRY_PADDED = Sizes((1, 64, 1, 8), 1), Sizes((3, 64, 2, 8), 1, (64, 25, 0))


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case per pattern, type and backend, with whole rows and with padded rows, these without float16."""
    patterns, measured = PATTERNS, ((WHOLE, TYPES), (PADDED, TYPES[::2]))
    if settings.is_dry:
        patterns, measured = PATTERNS[:1], ((DRY_WHOLE, TYPES[:1]), (DRY_PADDED, TYPES[2:]))
    return [
        Case(f'{text} {dtype}{sizes.description}', side, functools.partial(measure_error, text, dtype, side, sizes))
        for sizes, types in measured
        for text in patterns
        for dtype in types
        for side in SIDES
    ]


def measure_error(text: str, dtype: str, backend: str, sizes: Sizes) -> dict[str, Any]:
    """Returns the errors of a backend's output and gradients, for the pattern of a text and inputs of one type."""
    mechanism = parse_mechanism(text)
    assert isinstance(mechanism, Softmax)

    @jax.jit
    def output_and_gradients(
        q_BLHK: jax.Array, k_BLGK: jax.Array, v_BLGK: jax.Array, g_BLHK: jax.Array, lengths_B: jax.Array | None
    ) -> Any:
        segments = None if lengths_B is None else Lengths(lengths_B)

        def call(*operands: jax.Array) -> jax.Array:
            return attend(*operands, mechanism, query_segments=segments, key_segments=segments, backend=backend)

        out_BLHK, pull_back = jax.vjp(call, q_BLHK, k_BLGK, v_BLGK)
        return out_BLHK, *pull_back(g_BLHK)

    rows, length, heads, width = sizes.shape
    allowed_BHLM = dense_mask(mechanism.pattern, length, length, heads)[None]
    lengths_B = None if sizes.lengths is None else jnp.asarray(sizes.lengths, jnp.int32)
    if sizes.lengths is not None:
        is_token_BL = np.arange(length) < np.asarray(sizes.lengths)[:, None]
        allowed_BHLM = allowed_BHLM & is_token_BL[:, None, :, None] & is_token_BL[:, None, None, :]
    draws = []
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        arrays = [
            jnp.asarray(rng.normal(size=(rows, length, count, width)), dtype)
            for count in (heads, sizes.key_heads, sizes.key_heads, heads)
        ]
        found = [np.asarray(one, np.float64) for one in output_and_gradients(*arrays, lengths_B)]
        exact = attend_exactly(*(np.asarray(one, np.float64) for one in arrays), allowed_BHLM)
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
    q_BLHK: np.ndarray, k_BMGK: np.ndarray, v_BMGK: np.ndarray, g_BLHK: np.ndarray, allowed_BHLM: np.ndarray
) -> Sequence[np.ndarray]:
    """Returns the output of softmax attention in NumPy, and the gradients of q, k and v for the output's gradient g.

    A key head is shared by H / G neighbouring query heads. A query without allowed keys gives zeros.
    """
    shared = q_BLHK.shape[2] // k_BMGK.shape[2]
    k_BMHK, v_BMHK = (np.repeat(one, shared, axis=2) for one in (k_BMGK, v_BMGK))
    scale = q_BLHK.shape[-1] ** -0.5
    logits_BHLM = scale * np.einsum('blhk,bmhk->bhlm', q_BLHK, k_BMHK)
    logits_BHLM = np.where(allowed_BHLM, logits_BHLM, np.finfo(np.float64).min)
    weights_BHLM = np.exp(logits_BHLM - logits_BHLM.max(-1, keepdims=True)) * allowed_BHLM
    weights_BHLM /= np.maximum(weights_BHLM.sum(-1, keepdims=True), 1.0)  # the largest logit gives 1
    to_weights_BHLM = np.einsum('blhk,bmhk->bhlm', g_BLHK, v_BMHK)
    mean_BHL1 = (to_weights_BHLM * weights_BHLM).sum(-1, keepdims=True)
    to_logits_BHLM = scale * weights_BHLM * (to_weights_BHLM - mean_BHL1)
    to_keys_BMHK = np.einsum('bhlm,blhk->bmhk', to_logits_BHLM, q_BLHK)
    to_values_BMHK = np.einsum('bhlm,blhk->bmhk', weights_BHLM, g_BLHK)
    in_groups = (*k_BMGK.shape[:3], shared, k_BMGK.shape[3])
    return (
        np.einsum('bhlm,bmhk->blhk', weights_BHLM, v_BMHK),
        np.einsum('bhlm,bmhk->blhk', to_logits_BHLM, k_BMHK),
        to_keys_BMHK.reshape(in_groups).sum(3),
        to_values_BMHK.reshape(in_groups).sum(3),
    )

"""Measures the error of each softmax backend against float64, in outputs and gradients.

The reference is NumPy code: softmax over the allowed pairs in float64, and gradients derived by hand. Inputs are first
rounded to the tested type, so that only the rounding of the backend counts. `output_error` and `gradient_error` are
relative: the norm of the difference divided by the norm of the reference. `output_max_error` and `gradient_max_error`
are the largest absolute differences. Each error is the median over `DRAWS` random inputs, with its range. A backend
whose relative errors exceed `LARGEST_ERRORS` is called wrong.

Models call attention with padded rows, and often with fewer key heads than query heads. The sizes `PADDED` have both,
and one row that is only padding. The sizes `PACKED` have several texts in each row, and dropout of attention weights;
the reference drops the same weights.
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
from efficient_attention.attention.dropout import dropout_keep_mask
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns.pattern import dense_mask
from efficient_attention.attention.request import Lengths
from efficient_attention.attention.softmax.definition import Softmax
from scripts.benchmarks.gpu.cases import Case, Settings

SIDES = tuple(backend for backend in BACKENDS if backend != 'splash')  # its kernels run only on TPUs
WITH_DROPOUT = tuple(backend for backend in SIDES if backend not in ('jax_nn', 'cudnn'))
PATTERNS = ('causal', 'causal & window(128)', 'bigbird(64, 1)', 'full')
TYPES = ('bfloat16', 'float16', 'float32')
DRAWS = 3
# For each type, the largest relative errors of the output and of the gradients that count as rounding; the tests have
# the same. On GPUs, products of float32 numbers may round them to 11 bits (TF32), like products of float16.
LARGEST_ERRORS = {'bfloat16': (2e-2, 5e-2), 'float16': (2e-3, 1e-2), 'float32': (2e-3, 1e-2)}
FIRST_SIDES = ('cudnn', 'mosaic', 'blocked')


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a case: rows, positions, query heads and head width; key heads; tokens of each row.

    In packed rows, `texts` has the number of tokens of each text of every row, and the rest is padding.
    """

    shape: tuple[int, int, int, int]
    key_heads: int
    lengths: tuple[int, ...] | None = None  # None = rows without padding, or packed rows
    texts: tuple[int, ...] = ()
    dropout_rate: float = 0.0

    @property
    def description(self) -> str:
        """The end of a case's name; '' for rows without padding."""
        if self.texts:
            return f', packed texts of {", ".join(map(str, self.texts))} tokens, dropout {self.dropout_rate}'
        return f', rows of {", ".join(map(str, self.lengths))} tokens, grouped heads' if self.lengths else ''

    def segments(self) -> np.ndarray:
        """Returns the segments of all rows [B, L]: the number of the text of each token, and 0 for padding."""
        rows, length = self.shape[:2]
        if self.lengths is not None:
            return (np.arange(length) < np.asarray(self.lengths)[:, None]).astype(np.int32)
        numbers = np.repeat(np.arange(1, len(self.texts) + 1, dtype=np.int32), self.texts)
        one_row = np.pad(numbers, (0, length - len(numbers))) if self.texts else np.ones(length, np.int32)
        return np.tile(one_row, (rows, 1))


WHOLE, PADDED = Sizes((2, 512, 4, 64), 4), Sizes((3, 512, 4, 64), 2, (512, 200, 0))
PACKED = Sizes((2, 512, 4, 64), 4, texts=(150, 270, 50), dropout_rate=0.1)
DRY_WHOLE, DRY_PADDED = Sizes((1, 64, 1, 8), 1), Sizes((3, 64, 2, 8), 1, (64, 25, 0))
DRY_PACKED = Sizes((2, 64, 1, 8), 1, texts=(20, 35), dropout_rate=0.1)


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case per pattern, type and backend, with whole, padded and packed rows; only whole rows have
    float16.
    """
    patterns, measured = PATTERNS, ((WHOLE, TYPES), (PADDED, TYPES[::2]), (PACKED, TYPES[::2]))
    if settings.is_dry:
        patterns, measured = PATTERNS[:1], ((DRY_WHOLE, TYPES[:1]), (DRY_PADDED, TYPES[2:]), (DRY_PACKED, TYPES[:1]))
    return [
        Case(
            f'{text} {dtype}{sizes.description}',
            side,
            functools.partial(measure_error, text, dtype, side, sizes),
            is_first=sizes in (WHOLE, DRY_WHOLE) and dtype == 'bfloat16' and side in FIRST_SIDES,
        )
        for sizes, types in measured
        for text in patterns
        for dtype in types
        for side in (WITH_DROPOUT if sizes.dropout_rate else SIDES)
    ]


def measure_error(text: str, dtype: str, backend: str, sizes: Sizes) -> dict[str, Any]:
    """Returns the errors of a backend's output and gradients, for the pattern of a text and inputs of one type."""
    mechanism = parse_mechanism(text)
    assert isinstance(mechanism, Softmax)

    rows, length, heads, width = sizes.shape
    segments_BL, drop_rng = sizes.segments(), jax.random.key(7)
    given: Any = jnp.asarray(segments_BL) if sizes.texts else None
    if sizes.lengths:
        given = Lengths(jnp.asarray(sizes.lengths, jnp.int32))

    @jax.jit
    def output_and_gradients(
        q_BLHK: jax.Array, k_BLGK: jax.Array, v_BLGK: jax.Array, g_BLHK: jax.Array, segments: Any
    ) -> Any:
        rate: dict[str, Any] = (
            {'dropout_rate': sizes.dropout_rate, 'dropout_rng': drop_rng} if sizes.dropout_rate else {}
        )

        def call(*operands: jax.Array) -> jax.Array:
            return attend(*operands, mechanism, query_segments=segments, key_segments=segments, backend=backend, **rate)

        out_BLHK, pull_back = jax.vjp(call, q_BLHK, k_BLGK, v_BLGK)
        return out_BLHK, *pull_back(g_BLHK)

    allowed_BHLM = dense_mask(mechanism.pattern, length, length, heads)[None]
    is_same_BLM = (segments_BL[:, :, None] == segments_BL[:, None]) & (segments_BL[:, :, None] != 0)
    allowed_BHLM = allowed_BHLM & is_same_BLM[:, None]
    indices = (jnp.arange(size) for size in (heads, length, length))
    kept_BHLM = np.asarray(dropout_keep_mask(drop_rng, sizes.dropout_rate, rows, *indices)) / (1 - sizes.dropout_rate)
    draws = []
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        arrays = [
            jnp.asarray(rng.normal(size=(rows, length, count, width)), dtype)
            for count in (heads, sizes.key_heads, sizes.key_heads, heads)
        ]
        found = [np.asarray(one, np.float64) for one in output_and_gradients(*arrays, given)]
        exact = attend_exactly(*(np.asarray(one, np.float64) for one in arrays), allowed_BHLM, kept_BHLM)
        draws.append(errors_of(found, exact))
    figures: dict[str, Any] = {}
    for name in draws[0]:
        errors = [draw[name] for draw in draws]
        figures |= {name: statistics.median(errors), f'{name}_range': [min(errors), max(errors)]}
    found = figures['output_error_range'][1], figures['gradient_error_range'][1]
    is_right = all(
        error <= largest for error, largest in zip(found, LARGEST_ERRORS[dtype], strict=True)
    )  # NaN is wrong
    return figures | ({} if is_right else {'is_wrong': True})


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
    q_BLHK: np.ndarray,
    k_BMGK: np.ndarray,
    v_BMGK: np.ndarray,
    g_BLHK: np.ndarray,
    allowed_BHLM: np.ndarray,
    kept_BHLM: np.ndarray | float = 1.0,
) -> Sequence[np.ndarray]:
    """Returns the output of softmax attention in NumPy, and the gradients of q, k and v for the output's gradient g.

    A key head is shared by H / G neighbouring query heads. A query without allowed keys gives zeros. The weights are
    multiplied by `kept`: 0 or 1 / (1 - rate) for dropout.
    """
    shared = q_BLHK.shape[2] // k_BMGK.shape[2]
    k_BMHK, v_BMHK = (np.repeat(one, shared, axis=2) for one in (k_BMGK, v_BMGK))
    scale = q_BLHK.shape[-1] ** -0.5
    logits_BHLM = scale * np.einsum('blhk,bmhk->bhlm', q_BLHK, k_BMHK)
    logits_BHLM = np.where(allowed_BHLM, logits_BHLM, np.finfo(np.float64).min)
    weights_BHLM = np.exp(logits_BHLM - logits_BHLM.max(-1, keepdims=True)) * allowed_BHLM
    weights_BHLM /= np.maximum(weights_BHLM.sum(-1, keepdims=True), 1.0)  # the largest logit gives 1
    to_weights_BHLM = kept_BHLM * np.einsum('blhk,bmhk->bhlm', g_BLHK, v_BMHK)
    mean_BHL1 = (to_weights_BHLM * weights_BHLM).sum(-1, keepdims=True)
    to_logits_BHLM = scale * weights_BHLM * (to_weights_BHLM - mean_BHL1)
    to_keys_BMHK = np.einsum('bhlm,blhk->bmhk', to_logits_BHLM, q_BLHK)
    weights_BHLM = weights_BHLM * kept_BHLM
    to_values_BMHK = np.einsum('bhlm,blhk->bmhk', weights_BHLM, g_BLHK)
    in_groups = (*k_BMGK.shape[:3], shared, k_BMGK.shape[3])
    return (
        np.einsum('bhlm,bmhk->blhk', weights_BHLM, v_BMHK),
        np.einsum('bhlm,bmhk->blhk', to_logits_BHLM, k_BMHK),
        to_keys_BMHK.reshape(in_groups).sum(3),
        to_values_BMHK.reshape(in_groups).sum(3),
    )

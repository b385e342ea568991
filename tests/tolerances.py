"""How far a result may differ from its reference: the suite's only table of tolerances, by the dtype of the
computation.

Whoever loosens a tolerance adds a line with the measured difference.
"""

from typing import Any

import jax
import numpy as np

# dtype: (of a value, of a gradient); each is relative to the value and, below 1, absolute.
TOLERANCE = {
    'float64': (1e-12, 1e-10),
    'float32': (2e-5, 1e-4),
    'bfloat16': (2e-2, 5e-2),  # 8 bits of mantissa: one rounding changes a value by 4e-3 of it
    'float16': (2e-3, 1e-2),  # 11 bits of mantissa: one rounding changes a value by 5e-4 of it
}


def assert_close(
    actual: Any, expected: Any, *, dtype: Any = 'float32', gradient: bool = False, within: float | None = None
) -> None:
    """Compares two trees of arrays leaf by leaf, within the table's tolerance for `dtype`; NaN equals nothing.

    `within`: a smaller tolerance, if one is promised.
    """
    tolerance = TOLERANCE[np.dtype(dtype).name][gradient]
    tolerance = tolerance if within is None else min(within, tolerance)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, left), right in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(
            np.asarray(left, np.float64),
            np.asarray(right, np.float64),
            rtol=tolerance,
            atol=tolerance,
            equal_nan=False,
            err_msg=jax.tree_util.keystr(path),
        )

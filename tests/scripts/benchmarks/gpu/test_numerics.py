"""Tests the float64 reference of the GPU benchmark: its gradients are the slopes of its output; and its cases."""

import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from scripts.benchmarks.gpu import numerics
from scripts.benchmarks.gpu.cases import DRY, FULL, Settings


@pytest.mark.parametrize('key_heads', [2, 1])
def test_the_gradients_are_slopes_of_the_output(key_heads: int):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 6, count, 3)) for count in (2, key_heads, key_heads, 2)]
    allowed_BHLM = (np.tril(rng.random((2, 6, 6)) < 0.6) | np.eye(6, dtype=bool))[None]
    allowed_BHLM[:, :, 5] = False
    *operands, gradient = arrays
    out, *slopes = numerics.attend_exactly(*arrays, allowed_BHLM)
    assert out[0, 0, 0] == pytest.approx(operands[2][0, 0, 0])  # the first query reads only itself
    assert not out[0, 5].any() and not slopes[0][0, 5].any()  # the last query reads nothing
    for number, slope in enumerate(slopes):
        turn = rng.normal(size=slope.shape)
        moved = [
            [one + sign * 1e-6 * turn * (number == place) for place, one in enumerate(operands)] for sign in (1, -1)
        ]
        ends = [numerics.attend_exactly(*one, gradient, allowed_BHLM)[0] for one in moved]
        found = ((ends[0] - ends[1]) * gradient).sum() / 2e-6
        assert found == pytest.approx((slope * turn).sum(), rel=1e-6)


def test_errors_are_relative_norms_and_largest_differences():
    exact = [np.full(4, 2.0)] * 4
    found = [exact[0] + 0.2, exact[0], exact[0] + [0.0, 0.0, 0.0, 0.4], exact[0]]
    errors = numerics.errors_of(found, exact)
    assert errors == pytest.approx(
        {'output_error': 0.1, 'gradient_error': 0.1, 'output_max_error': 0.2, 'gradient_max_error': 0.4}
    )


@pytest.mark.parametrize('settings', [DRY, FULL])
def test_every_backend_of_gpus_is_measured_with_whole_padded_and_packed_rows(settings: Settings):
    cases = numerics.list_cases(settings)
    kinds = [{word for word in ('grouped heads', 'packed') if word in case.group} for case in cases]
    for kind in (set(), {'grouped heads'}, {'packed'}):
        sides = {case.side for case, found in zip(cases, kinds, strict=True) if found == kind}
        without_dropout = set() if kind == {'packed'} else {'jax_nn', 'cudnn'}
        assert sides == {'reference', 'dense', 'blocked', 'mosaic'} | without_dropout
    padded = numerics.DRY_PADDED if settings.is_dry else numerics.PADDED
    assert padded.lengths and 0 in padded.lengths and len(padded.lengths) == padded.shape[0]
    assert padded.key_heads == padded.shape[2] // 2


def test_an_error_in_padded_rows_is_noticed(monkeypatch):
    sizes = numerics.DRY_PADDED
    good = numerics.measure_error('causal', 'float32', 'blocked', sizes)
    assert good['output_error'] < 1e-6 and good['gradient_error'] < 1e-6

    def without_padding(*operands, query_segments, key_segments, **options):
        assert query_segments is key_segments and query_segments.lengths_B.shape == (3,)
        return attend(*operands, **options)

    monkeypatch.setattr(numerics, 'attend', without_padding)
    bad = numerics.measure_error('causal', 'float32', 'blocked', sizes)
    assert bad['output_error'] > 0.1 and bad['gradient_error'] > 0.1
    assert bad['is_wrong'] and 'is_wrong' not in good


def test_nan_is_wrong(monkeypatch):
    monkeypatch.setattr(numerics, 'attend', lambda q, *_, **__: q * np.float32('nan'))
    assert numerics.measure_error('causal', 'float32', 'blocked', numerics.DRY_WHOLE)['is_wrong']


def test_an_error_in_packed_rows_or_in_dropout_is_noticed(monkeypatch):
    sizes = numerics.DRY_PACKED
    good = numerics.measure_error('causal', 'float32', 'blocked', sizes)
    assert good['output_error'] < 1e-6 and good['gradient_error'] < 1e-6

    def run(changes: dict) -> dict:
        monkeypatch.setattr(numerics, 'attend', lambda *operands, **options: attend(*operands, **options | changes))
        return numerics.measure_error('causal', 'float32', 'blocked', sizes)

    for changes in ({'dropout_rate': 0.0}, {'query_segments': None, 'key_segments': None}):
        bad = run(changes)
        assert bad['output_error'] > 0.1 and bad['gradient_error'] > 0.1

"""Tests the measurement of reversible layers on tiny sizes: its tables, and one line for unusable sizes."""

import sys

import pytest

from efficient_attention.errors import InputError
from scripts.benchmarks import inversion

pytestmark = pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32


@pytest.mark.slow
def test_errors_and_gradients_are_printed_for_each_attention(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(inversion, 'WIDTH', 8)
    monkeypatch.setattr(inversion, 'ATTENTIONS', {'causal': {'attention': 'causal'}})
    monkeypatch.setattr(sys, 'argv', ['inversion.py', '--layers', '3', '--gradient_layers', '3', '--length', '8'])
    inversion.main()
    titles, exact, _, coarse, _, _, gradients = (line.split() for line in capsys.readouterr().out.splitlines())
    assert titles[-2:] == ['3', 'layers']
    assert exact[:3] == ['causal', 'float32', 'float32'] and coarse[:3] == ['causal', 'float32', 'bfloat16']
    assert float(exact[3]) < 1e-5 and float(coarse[3]) > 1e-3
    own_low, of_dtype, own_high = map(float, gradients[1:])
    assert 0 < own_high < 1e-5 < of_dtype and own_low < of_dtype


def test_lengths_that_no_bucket_divides_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, 'argv', ['inversion.py', '--length', '12'])
    with pytest.raises(InputError, match='--length a multiple of 8'):
        inversion.main()

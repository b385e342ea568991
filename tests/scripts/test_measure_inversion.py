"""The measurement of reversible layers on tiny sizes: its tables, and one line for sizes that are none."""

import runpy
import sys
from pathlib import Path

import pytest

from scripts import measure_inversion

SCRIPT = Path(__file__).resolve().parents[2] / 'scripts' / 'measure_inversion.py'
pytestmark = pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32


def test_errors_and_gradients_are_printed_for_each_attention(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(measure_inversion, 'WIDTH', 8)
    monkeypatch.setattr(measure_inversion, 'ATTENTIONS', {'causal': {'attention': 'causal'}})
    monkeypatch.setattr(sys, 'argv', [str(SCRIPT), '--layers', '3', '--gradient_layers', '3', '--length', '8'])
    measure_inversion.main()
    titles, exact, _, coarse, _, _, gradients = (line.split() for line in capsys.readouterr().out.splitlines())
    assert titles[-2:] == ['3', 'layers']
    assert exact[:3] == ['causal', 'float32', 'float32'] and coarse[:3] == ['causal', 'float32', 'bfloat16']
    assert float(exact[3]) < 1e-5 and float(coarse[3]) > 1e-3
    own_low, of_dtype, own_high = map(float, gradients[1:])
    assert 0 < own_high < 1e-5 < of_dtype and own_low < of_dtype


def test_lengths_that_no_bucket_divides_are_refused(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(sys, 'argv', [str(SCRIPT), '--length', '12'])
    with pytest.raises(SystemExit) as exited:
        runpy.run_path(str(SCRIPT), run_name='__main__')
    assert exited.value.code == 2 and '--length a multiple of 8' in capsys.readouterr().err.splitlines()[-1]

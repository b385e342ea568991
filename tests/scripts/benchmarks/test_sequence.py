"""Tests the memory of rows split over devices: a line for each number of devices, and one for unusable sizes."""

import sys

import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.errors import InputError
from scripts.benchmarks import sequence

pytestmark = pytest.mark.devices


def test_each_number_of_devices_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys):
    arguments = ['--length', '64', '--devices', '1,2', '--attention', 'favor(8)']
    monkeypatch.setattr(sys, 'argv', ['sequence.py', *arguments])
    sequence.main()
    title, _, one, two = capsys.readouterr().out.splitlines()
    assert title.startswith('favor(8), 64 tokens, 2 heads')
    # Four arrays of 64 tokens with two heads of width 16 go in, and as many come out.
    assert one.split()[:3] == ['1', '0.0', '0.0'] and two.split()[0] == '2'
    assert float(two.split()[3]) <= float(one.split()[3])


def test_a_row_with_memory_has_the_arguments_and_gradients_of_its_keys_and_distances():
    """Each of two devices has half of three arrays of 64 vectors and two of 80, and the table of distances 0 to 16."""
    call = sequence.AttentionLengths(parse_mechanism('causal & window(16)'), length=64, memory=16)
    arguments, results, temporary = sequence.compiled_memory_sizes(call, sequence.emulated_devices(2))
    expected = ((3 * 64 + 2 * 80) / 2 + 17) * 2 * 16 * 4 / 2**20
    # The program needs a few more bytes for pointers.
    assert (arguments, results) == pytest.approx((expected, expected), abs=128 / 2**20) and temporary > 0


@pytest.mark.parametrize(
    'arguments, line',
    [
        (['--attention', 'full; lsh(8, 1)'], "--attention has 'lsh\\(8, 1\\)', which needs whole rows"),
        (['--attention', 'linear', '--memory', '64'], "--attention has 'linear', which has no memory"),
        (['--devices', '3'], '--devices are .3.; they must be 1 to 8 and divide --length 65536 and --memory 0'),
        (['--devices', '2', '--memory', '7'], '--devices are .2.; they must be 1 to 8 and divide .* --memory 7'),
        (['--devices', '16'], '--devices are .16.; they must be 1 to 8'),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, 'argv', ['sequence.py', *arguments])
    with pytest.raises(InputError, match=line):
        sequence.main()

"""The memory of split rows on tiny sizes: a line for each number of devices, and one for sizes that are none."""

import sys

import pytest

from efficient_attention.errors import InputError
from scripts import measure_sequence


def test_each_number_of_devices_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys):
    arguments = ['--length', '64', '--devices', '1,2', '--attention', 'linear']
    monkeypatch.setattr(sys, 'argv', ['measure_sequence.py', *arguments])
    measure_sequence.main()
    title, _, one, two = capsys.readouterr().out.splitlines()
    assert title.startswith('linear, 64 tokens')
    # Four arrays of 64 tokens of two heads of 16 in, and as many out.
    assert one.split()[:3] == ['1', '0.0', '0.0'] and two.split()[0] == '2'
    assert float(two.split()[3]) <= float(one.split()[3])


@pytest.mark.parametrize(
    'arguments, line',
    [
        (['--attention', 'lsh(8, 1)'], "--attention is 'lsh\\(8, 1\\)'; use a pattern or linear attention"),
        (['--devices', '3'], '--devices are .3.; they must be 1 to 8 and divide --length 65536'),
        (['--devices', '16'], '--devices are .16.; they must be 1 to 8'),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, 'argv', ['measure_sequence.py', *arguments])
    with pytest.raises(InputError, match=line):
        measure_sequence.main()

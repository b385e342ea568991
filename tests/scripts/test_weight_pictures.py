"""Pictures of weights: one for each mechanism, and one line for what cannot be drawn."""

from pathlib import Path

import pytest
from absl import flags

from efficient_attention.errors import InputError
from scripts.weight_pictures import define_weight_flags, draw_weights


def options(*arguments: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define_weight_flags(values)
    values(['visualize.py', *arguments])
    return values


def test_each_mechanism_has_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture):
    texts = ['sparsemax(causal)', 'hard', 'local_p(3)', 'lsh(4, 2)']
    draw_weights(texts, options('--length', '16')).savefig(tmp_path / 'weights.png')
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(':')[0] for line in lines] == texts
    assert lines[1] == 'hard: 1.0 keys a query have weight'


@pytest.mark.parametrize(
    'texts, arguments, line',
    [
        (['windw(3)'], (), "unknown name 'windw'"),
        (['full'] * 13, (), 'mechanisms is 13; it must be at most 12'),
        (['full'], ('--length', '0'), '--length is 0; it must be from 1 to 512'),
        (['full'], ('--seed', '-1'), '--seed is -1'),
    ],
)
def test_bad_input_is_one_line(texts: list[str], arguments: tuple, line: str):
    with pytest.raises(InputError, match=line):
        draw_weights(texts, options(*arguments))

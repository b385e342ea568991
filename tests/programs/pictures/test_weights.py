"""Tests pictures of attention weights: one for each mechanism, and one line for weights that cannot be drawn."""

from pathlib import Path

import numpy as np
import pytest
from absl import flags

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.errors import InputError
from efficient_attention.programs.pictures.weights import define_weight_flags, draw_attention_weights, mechanism_weights


def options(*arguments: str) -> flags.FlagValues:
    values = flags.FlagValues()
    define_weight_flags(values)
    values(['visualize.py', *arguments])
    return values


def test_each_mechanism_has_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture):
    texts = ['sparsemax(causal)', 'hard', 'local_p(3)', 'lsh(4, 2)']
    draw_attention_weights(texts, options('--length', '16')).savefig(tmp_path / 'weights.png')
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(':')[0] for line in lines] == texts
    assert lines[1] == 'hard: 1.0 keys per query have nonzero weight'


def test_mechanisms_that_learn_have_theirs_as_they_begin(capsys: pytest.CaptureFixture):
    texts = ['linformer(4, 16)', 'nystrom(4, 6, 3)', 'induced(4)', 'sinkhorn(4, 4)', 'routing(3, 6)']
    texts += ["synthesizer('dense', 16)", "linear('cos', 16)", 'favor(16)']
    figure = draw_attention_weights(texts, options('--length', '16'))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(': ')[0] for line in lines] == texts
    is_signed = [axes.images[0].get_clim() == (-1.0, 1.0) for axes in figure.axes if axes.images]
    assert is_signed == ['of them negative' in line for line in lines] == [True, True] + [False] * 6


def test_the_score_is_what_queries_and_keys_are_compared_by():
    text = 'sparsemax(causal)'
    dot, additive, again = (
        mechanism_weights(parse_mechanism(text), text, options('--length', '12', f'--score={score}'))
        for score in ('dot', 'additive', 'dot')
    )
    np.testing.assert_array_equal(dot, again)
    assert np.abs(dot - additive).max() > 0.1
    for weights_LM in (dot, additive):
        np.testing.assert_allclose(weights_LM.sum(axis=1), 1.0, rtol=1e-5)
        assert not np.triu(weights_LM, 1).any()


@pytest.mark.parametrize(
    'texts, arguments, line',
    [
        (['windw(3)'], (), "unknown name 'windw'"),
        (['full'] * 13, (), 'mechanisms is 13; it must be at most 12'),
        (['full'], ('--length', '0'), '--length is 0; it must be from 1 to 512'),
        (['full'], ('--seed', '-1'), '--seed is -1'),
        (['lsh(4, 2)'], ('--score=additive',), r'^lsh\(4, 2\): .* has no logits, so it takes no additive scores'),
    ],
)
def test_bad_input_is_one_line(texts: list[str], arguments: tuple, line: str):
    with pytest.raises(InputError, match=line):
        draw_attention_weights(texts, options(*arguments))

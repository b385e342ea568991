"""Weights as pictures: mechanisms over the same queries and keys, by either score."""

import numpy as np
import pytest
from absl import flags

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.errors import InputError
from scripts.weight_pictures import define_weight_flags, draw_weights, weights_of


def options_of(*words: str) -> flags.FlagValues:
    options = flags.FlagValues()
    define_weight_flags(options)
    options(['visualize.py', '--length=12', *words])
    return options


def test_the_score_is_what_queries_and_keys_are_compared_by():
    text = 'sparsemax(causal)'
    dot, additive, again = (
        weights_of(parse_mechanism(text), text, options_of(f'--score={score}')) for score in ('dot', 'additive', 'dot')
    )
    np.testing.assert_array_equal(dot, again)
    assert np.abs(dot - additive).max() > 0.1
    for weights_LM in (dot, additive):
        np.testing.assert_allclose(weights_LM.sum(axis=1), 1.0, rtol=1e-5)
        assert not np.triu(weights_LM, 1).any()


def test_a_mechanism_without_logits_refuses_additive_scores_in_one_line():
    with pytest.raises(InputError, match=r'^lsh\(4, 2\): .* has no logits that additive scores could be'):
        weights_of(parse_mechanism('lsh(4, 2)'), 'lsh(4, 2)', options_of('--score=additive'))


def test_each_mechanism_has_its_panel():
    figure = draw_weights(['causal', 'local_p(3)', 'hard(full)', 'entmax(full)'], options_of())
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:4] == ['causal', 'local_p(3)', 'hard(full)', 'entmax(full)'] and not any(titles[4:])

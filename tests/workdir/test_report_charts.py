"""Tests that charts are SVG elements for an HTML page: well-formed, without external fonts, fixed sizes or dates."""

import math
import xml.etree.ElementTree

import pytest

from efficient_attention.workdir.report_charts import line_chart

STEPS = list(range(0, 1000, 10))
LINES = {'train': (STEPS, [5 / (1 + step) for step in STEPS]), 'held_out': ([500, 990], [1.0, 0.5])}


def texts(svg: str) -> list[str]:
    return [node.text for node in xml.etree.ElementTree.fromstring(svg).iter() if node.tag.endswith('}text')]


def test_a_chart_names_its_lines_and_takes_the_size_and_font_of_its_place():
    svg = line_chart('loss', LINES, baseline=2.0)
    assert svg.startswith('<svg')
    assert {'step', 'train', 'held-out', 'unigram'} <= set(texts(svg))
    for unwanted in ('font-family', 'pt"', '<metadata', '<style'):
        assert unwanted not in svg


def test_a_lone_training_line_needs_no_legend_and_any_other_has_one():
    assert 'train' not in texts(line_chart('loss', {'train': LINES['train']}))
    assert 'held-out' in texts(line_chart('loss', {'held_out': LINES['held_out']}))


def test_the_same_numbers_give_the_same_chart():
    assert line_chart('loss', LINES) == line_chart('loss', LINES)


@pytest.mark.parametrize(
    'values', [[1.0], [math.nan, 1.0, 2.0], [math.nan] * 3, [math.inf, 1.0, 2.0], [3.0] * 3, [1e-8, 2e-8, 1e9]]
)
def test_odd_values_are_drawn_or_left_out(values):
    assert line_chart('loss', {'train': (list(range(len(values))), values)}).startswith('<svg')


def test_long_runs_stay_small():
    steps = list(range(200_000))
    svg = line_chart('loss', {'train': (steps, [math.sin(step / 1e4) for step in steps])})
    assert len(svg) < 60_000

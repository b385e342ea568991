"""Tests the ranges of a sweep: how they are read, which values are drawn, and one line for each mistake."""

import pytest

from configs.common import default_config
from efficient_attention.errors import InputError
from efficient_attention.experiments.search_space import (
    SearchedField,
    grid_points,
    grid_size,
    parse_search,
    random_point,
)

CONFIG = default_config().to_dict()


def test_ranges_and_lists_are_read():
    texts = ['optimizer.learning_rate=log(1e-5,1e-3)', 'model.layers=int(1,3)', 'model.attention=full, window(8,8)']
    assert parse_search(texts, CONFIG) == (
        SearchedField('optimizer.learning_rate', 'log', (1e-5, 1e-3)),
        SearchedField('model.layers', 'int', (1, 3)),
        SearchedField('model.attention', 'choice', ('full', 'window(8,8)')),
    )
    [field] = parse_search(['data.lowercase=true,False'], CONFIG)
    assert field.values == (True, False)


def test_random_values_depend_on_the_number_and_stay_in_range():
    search = parse_search(
        ['optimizer.learning_rate=log(1e-5,1e-3)', 'model.layers=int(1,3)', 'model.dropout_rate=uniform(0,0.5)'], CONFIG
    )
    points = [random_point(search, number) for number in range(60)]
    assert points == [random_point(search, number) for number in range(60)]
    rates = sorted(point['optimizer.learning_rate'] for point in points)
    assert 1e-5 <= rates[0] < 3e-5 and 5e-5 < rates[30] < 2e-4 and 4e-4 < rates[-1] <= 1e-3
    assert {point['model.layers'] for point in points} == {1, 2, 3}
    assert all(0 <= point['model.dropout_rate'] <= 0.5 for point in points)


def test_a_grid_has_all_combinations():
    search = parse_search(['model.layers=int(1,2)', 'model.attention=full,window(8)'], CONFIG)
    assert [tuple(point.values()) for point in grid_points(search)] == [
        (1, 'full'),
        (1, 'window(8)'),
        (2, 'full'),
        (2, 'window(8)'),
    ]


@pytest.mark.parametrize(
    ('texts', 'line'),
    [
        ([], '--search is missing'),
        (['optimizer.learning_rte=1'], 'unknown config field optimizer.learning_rte; did you mean optimizer.learning'),
        (['layers=2'], 'unknown config field layers; did you mean model.layers or distill.layers?'),
        (['train.seed=1,2'], 'train.seed, which --seeds sets'),
        (['model.layers=1', 'model.layers=2'], 'names model.layers twice'),
        (['model.layers'], 'no values; write for example model.layers=1,2'),
        (['model.layers=2,2'], 'a value occurs twice'),
        (['model.layers=two'], "model.layers: 'two' does not fit; the field is a whole number"),
        (
            ['model.layers=log(1,8)'],
            'log(...) draws numbers with a fraction; the field is a whole number, so write int(1,8)',
        ),
        (['optimizer.learning_rate=log(0,1)'], 'must be finite, above 0'),
        (
            ['optimizer.learning_rate=log(1e-3,1e-5)'],
            'write two numbers in brackets, the smaller one first, as in log(1e-5,1e-3)',
        ),
        (['optimizer.learning_rate=uniform(1)'], 'the smaller one first, as in uniform(0,0.3)'),
    ],
)
def test_a_mistake_is_named(texts: list[str], line: str):
    with pytest.raises(InputError) as error:
        parse_search(texts, CONFIG)
    assert line in str(error.value)


def test_a_grid_needs_lists():
    with pytest.raises(InputError, match='--sampler grid needs a list of values of optimizer.learning_rate, not log'):
        grid_points(parse_search(['optimizer.learning_rate=log(1e-5,1e-3)'], CONFIG))


@pytest.mark.parametrize('end', [1_000_000_000, 10**30])
def test_the_size_of_a_grid_is_computed_without_its_points(end: int):
    with pytest.raises(InputError, match=rf'--sampler grid: {2 * end:,} trials; at most 10,000'):
        grid_size((SearchedField('model.layers', 'int', (1, end)), SearchedField('model.heads', 'choice', (1, 2))))
    assert (
        grid_size((SearchedField('model.layers', 'int', (1, 5)), SearchedField('model.heads', 'choice', (1, 2)))) == 10
    )

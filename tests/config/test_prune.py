"""Tests of the config group `prune`: the fields that each method reads, and the first step with the final share."""

from typing import Any

import pytest

from configs.common import default_config
from configs.lm.common import language_modelling_config
from configs.text_to_text.common import text_to_text_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.prune import PruneConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        (
            {'method': 'best'},
            "prune.method is 'best'; known: none, magnitude, movement, random, soft_movement, l0, fixed",
        ),
        ({'keep': 0.3}, "prune.keep is 0.3, which prune.method 'none' does not read; leave it at 0.5"),
        ({'method': 'magnitude', 'keep': 0.0}, r'prune.keep is 0.0; it must be above 0 and at most 1'),
        ({'method': 'magnitude', 'keep': 1.5}, r'prune.keep is 1.5; it must be above 0 and at most 1'),
        ({'method': 'magnitude', 'end': 1.2}, r'prune.end is 1.2; it must be from 0 to 1'),
        ({'method': 'magnitude', 'begin': 0.9}, 'prune.end is 0.8; it must not be below prune.begin 0.9'),
        (
            {'method': 'magnitude', 'learning_rate': 0.1},
            "learning_rate is 0.1, which prune.method 'magnitude' does not",
        ),
        (
            {'method': 'magnitude', 'block': 8},
            "prune.block is 8, and neither prune.attention nor prune.feed_forward is 'block'",
        ),
        ({'method': 'magnitude', 'attention': 'none', 'feed_forward': 'none'}, 'are both none, so that nothing is'),
        ({'method': 'magnitude', 'attention': 'none', 'keep_attention': 0.5}, "and prune.attention is 'none'"),
        ({'method': 'magnitude', 'attention': 'unit'}, "prune.attention is 'unit'; known: weight, block, head, none"),
        ({'method': 'soft_movement'}, 'prune.penalty is 0.0; it must be above 0 with prune.method .soft_movement.'),
        ({'method': 'soft_movement', 'penalty': 1.0, 'keep': 0.3}, "prune.method 'soft_movement' does not read"),
        ({'method': 'fixed'}, "prune.mask_from is empty; prune.method 'fixed' takes the zeros"),
        (
            {'method': 'fixed', 'mask_from': 'a', 'end': 0.5},
            "prune.end is 0.5, which prune.method 'fixed' does not read",
        ),
    ],
)
def test_what_does_not_serve_is_one_line(fields: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        PruneConfig(**fields).check_no_unread_fields()


def test_a_config_with_the_earlier_default_of_keep_is_the_same_where_nothing_reads_it():
    assert PruneConfig(keep=0.15) == PruneConfig()
    PruneConfig(method='soft_movement', penalty=1.0, keep=0.15).check_no_unread_fields()
    assert PruneConfig(method='movement', keep=0.15).keep == 0.15


@pytest.mark.parametrize(
    'fields, steps, first',
    [
        ({'method': 'magnitude'}, 1000, 800),
        ({'method': 'movement', 'end': 0.75}, 11, 9),
        ({'method': 'movement', 'end': 0.55}, 100, 55),
        ({'method': 'random', 'begin': 0.0, 'end': 0.0}, 11, 0),
        ({'method': 'fixed', 'mask_from': 'a'}, 11, 0),
        ({}, 11, 0),
    ],
)
def test_the_first_step_with_the_final_share(fields: dict[str, Any], steps: int, first: int):
    assert PruneConfig(**fields).final_step(steps) == first


def test_scores_need_an_optimizer_with_a_rate():
    values = default_config().to_dict()
    values['prune']['method'] = 'movement'
    from_dict(values, RunConfig)
    with pytest.raises(
        InputError, match="optimizer.name is 'adafactor'; it must be 'adamw' or 'lamb' with prune.method"
    ):
        from_dict(values | {'optimizer': {'name': 'adafactor'}}, RunConfig)
    with pytest.raises(InputError, match='optimizer.learning_rate is 0.0; it must be above 0 with prune.method'):
        from_dict(values | {'optimizer': {'learning_rate': 0.0}}, RunConfig)


@pytest.mark.parametrize('task', ['language_modelling', 'text_to_text'])
def test_tasks_that_are_not_pruned_refuse_a_method(task: str):
    make = {'language_modelling': language_modelling_config, 'text_to_text': text_to_text_config}
    values = make[task]().to_dict()
    values['prune']['method'] = 'magnitude'
    with pytest.raises(InputError, match=f"prune.method is 'magnitude'; the task {task} does not read it"):
        from_dict(values, RunConfig)

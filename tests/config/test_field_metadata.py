"""Tests of config field metadata: which tasks read a field, its value in other tasks, and the fields of a mark."""

import dataclasses

from efficient_attention.config.field_metadata import (
    CHANGEABLE,
    EXPORTED,
    TASKS,
    field_read_by_tasks,
    field_with_marks,
    marked_fields,
    unread_fields,
)


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = 3
    rate: float = field_read_by_tasks('pretraining', default=0.5, marks=(CHANGEABLE,))
    types: int = field_read_by_tasks('pretraining', default=2, unread=0)
    colour: str = field_with_marks(CHANGEABLE, EXPORTED, default='red')


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    labels: Inner = field_read_by_tasks('fine_tuning', default=Inner())
    whole: Inner = field_with_marks(CHANGEABLE, default=Inner())


def test_what_is_not_read_has_its_value_and_the_one_it_must_have():
    config = Outer(inner=Inner(rate=0.1, types=2))
    assert unread_fields(config.inner, 'pretraining') == {}
    assert unread_fields(config.inner, 'fine_tuning', 'inner.') == {'inner.rate': (0.1, 0.5), 'inner.types': (2, 0)}


def test_of_a_group_that_is_not_read_no_field_is():
    labels = {'labels.size': (4, 3), 'labels.rate': (0.5, 0.5), 'labels.types': (2, 2), 'labels.colour': ('red', 'red')}
    assert unread_fields(Outer(labels=Inner(size=4)), 'pretraining') == labels


def test_a_field_that_names_no_task_is_read_by_all():
    assert all('inner.size' not in unread_fields(Outer(), task) for task in TASKS)


def test_a_mark_lists_its_fields_and_the_groups_that_have_it_as_a_whole():
    assert marked_fields(Inner, CHANGEABLE) == ('rate', 'colour')
    names = tuple(f'a.{group}.{field}' for group in ('inner', 'labels') for field in ('rate', 'colour'))
    assert marked_fields(Outer, CHANGEABLE, 'a.') == (*names, 'a.whole.*')
    assert marked_fields(Outer, EXPORTED) == ('inner.colour', 'labels.colour', 'whole.colour')

"""Fields that some tasks do not read, and what they must be there."""

import dataclasses

from efficient_attention.config.fields import TASKS, read_by, unread_fields


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = 3
    rate: float = read_by('pretraining', default=0.5)
    types: int = read_by('pretraining', default=2, unread=0)


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    labels: Inner = read_by('fine_tuning', default=Inner())


def test_what_is_not_read_has_its_value_and_the_one_it_must_have():
    config = Outer(inner=Inner(rate=0.1, types=2))
    assert unread_fields(config.inner, 'pretraining') == {}
    assert unread_fields(config.inner, 'fine_tuning', 'inner.') == {'inner.rate': (0.1, 0.5), 'inner.types': (2, 0)}


def test_of_a_group_that_is_not_read_no_field_is():
    labels = {'labels.size': (4, 3), 'labels.rate': (0.5, 0.5), 'labels.types': (2, 2)}
    assert unread_fields(Outer(labels=Inner(size=4)), 'pretraining') == labels


def test_a_field_that_names_no_task_is_read_by_all():
    assert all('inner.size' not in unread_fields(Outer(), task) for task in TASKS)

"""Defines the metadata of config fields: which tasks read a field, and marks such as "a resumed run may change it".

A task refuses a field that it does not read, so no setting is silently ignored. Code that needs a list of fields, such
as the fields that a resumed run may change, collects it from the marks.
"""

import dataclasses
from typing import Any

TASKS = ('pretraining', 'language_modelling', 'fine_tuning', 'text_to_text')
READERS, UNREAD, MARKS = 'readers', 'unread', 'marks'  # keys in the metadata of a config field

# A resumed run may change a field with the mark `CHANGEABLE`; it affects neither parameters nor training rows.
CHANGEABLE = 'changeable'
# A resumed run may change a field with the mark `CHANGEABLE_WITH_MORE_STEPS` if the new config has more steps.
# A change of the number of steps is allowed only if the learning-rate schedule does not depend on that number.
# The mark `CHANGEABLE_WITH_MORE_STEPS` is also on fields of `examples` that only decide steps and warm-up.
CHANGEABLE_WITH_MORE_STEPS = 'changeable with more steps'
# inference with trained parameters does not depend on a field with the mark `TRAINING_ONLY`
TRAINING_ONLY = 'training only'
# An exported Hugging Face config.json stores an `EXPORTED` field under a key that only this project reads.
# A field has the mark `EXPORTED` if predictions or speed depend on it, and the Hugging Face library has no key for it.
EXPORTED = 'exported'
# A text field with the mark `COMMA_LIST` has entries separated by commas; Python programs may also give a list.
COMMA_LIST = 'comma list'


def field_with_marks(*marks: str, default: Any) -> Any:
    """Returns a dataclass field that all tasks read, with marks such as `CHANGEABLE`.

    The field may hold a single value or a whole config group.
    """
    return dataclasses.field(default=default, metadata={MARKS: marks})


def marked_fields(config: type, mark: str, prefix: str = '') -> tuple[str, ...]:
    """Returns the dotted names of the config fields with a mark; '<group>.*' where a whole group has the mark.

    Args:
        config: a config dataclass; its groups are searched, too.
        mark: one of the marks above.
        prefix: the beginning of all returned names.
    """
    names: list[str] = []
    for field in dataclasses.fields(config):
        is_marked, name = mark in field.metadata.get(MARKS, ()), f'{prefix}{field.name}'
        if not dataclasses.is_dataclass(field.default):
            names += [name] if is_marked else []
        elif is_marked:
            names.append(f'{name}.*')
        else:
            names += marked_fields(type(field.default), mark, f'{name}.')
    return tuple(names)


def field_read_by_tasks(
    *tasks: str, default: Any, unread: Any = dataclasses.MISSING, marks: tuple[str, ...] = ()
) -> Any:
    """Returns a dataclass field that only the given tasks read; all other tasks require a fixed value.

    The field may hold a single value or a whole config group.

    Args:
        tasks: names in `TASKS`.
        default: the default value of the field.
        unread: the value that other tasks require; the default value where it is not given.
        marks: marks of the field.
    """
    unread = default if unread is dataclasses.MISSING else unread
    return dataclasses.field(default=default, metadata={READERS: tasks, UNREAD: unread, MARKS: marks})


def unread_fields(config: Any, task: str, prefix: str = '') -> dict[str, tuple[Any, Any]]:
    """Returns {dotted name: (value, required value)} for each config field that a task does not read.

    Args:
        config: a config dataclass; its groups are searched, too.
        task: a name in `TASKS`.
        prefix: the beginning of all returned names.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(config):
        name, value = f'{prefix}{field.name}', getattr(config, field.name)
        is_read = task in field.metadata.get(READERS, TASKS)
        if dataclasses.is_dataclass(value):
            inner = unread_fields(value, task, f'{name}.')
            found |= inner if is_read else _values_and_defaults(value, f'{name}.')
        elif not is_read:
            found[name] = value, field.metadata[UNREAD]
    return found


def _values_and_defaults(group: Any, prefix: str) -> dict[str, tuple[Any, Any]]:
    return {f'{prefix}{field.name}': (getattr(group, field.name), field.default) for field in dataclasses.fields(group)}

"""Metadata of a config's fields: the tasks that read them, and marks from which lists of fields are made.

A task refuses fields that it does not read, so that nothing that a config asks for is ignored. A mark
says what a field allows, such as another value in a run that goes on; so no list of names is kept beside the fields.
"""

import dataclasses
from typing import Any

TASKS = ('pretraining', 'language_modelling', 'fine_tuning', 'text_to_text')
READERS, UNREAD, MARKS = 'readers', 'unread', 'marks'  # keys of a field's metadata

# Marks. A run that goes on may have another value: it changes neither the parameters nor the examples of any step.
CHANGEABLE = 'changeable'
# The same where a run gets more steps and its new schedule does not depend on their number. Among them are the fields
# of `examples` that decide the steps and the warm-up, and nothing else.
CHANGEABLE_WITH_MORE_STEPS = 'changeable with more steps'
TRAINING_ONLY = 'training only'  # the use of trained parameters does not depend on it
# A Hugging Face config.json keeps it under a key of this project: predictions or speed depend on it, and no key of
# that library says it.
EXPORTED = 'exported'


def marked(*marks: str, default: Any) -> Any:
    """A dataclass field, or a group of fields, that all tasks read, with marks."""
    return dataclasses.field(default=default, metadata={MARKS: marks})


def marked_fields(config: type, mark: str, prefix: str = '') -> tuple[str, ...]:
    """The dotted names of the fields that have a mark; '<group>.*' for a group that has it as a whole.

    Args:
        config: a config dataclass, whose groups are looked through as well.
        mark: one of those above.
        prefix: what the names begin with.
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


def read_by(*tasks: str, default: Any, unread: Any = dataclasses.MISSING, marks: tuple[str, ...] = ()) -> Any:
    """A dataclass field, or a group of fields, that these tasks alone read.

    Args:
        tasks: names out of `TASKS`.
        default: the field's.
        unread: the value that the field must have in the other tasks; the default where it is not given.
        marks: of the field.
    """
    unread = default if unread is dataclasses.MISSING else unread
    return dataclasses.field(default=default, metadata={READERS: tasks, UNREAD: unread, MARKS: marks})


def unread_fields(config: Any, task: str, prefix: str = '') -> dict[str, tuple[Any, Any]]:
    """'<group>.<field>' -> (its value, the value that it must have), for each field that the task does not read.

    Args:
        config: a config dataclass, whose groups are looked through as well.
        task: a name out of `TASKS`.
        prefix: what the names begin with.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(config):
        name, value = f'{prefix}{field.name}', getattr(config, field.name)
        is_read = task in field.metadata.get(READERS, TASKS)
        if dataclasses.is_dataclass(value):
            inner = unread_fields(value, task, f'{name}.')
            found |= inner if is_read else _all_fields(value, f'{name}.')
        elif not is_read:
            found[name] = value, field.metadata[UNREAD]
    return found


def _all_fields(group: Any, prefix: str) -> dict[str, tuple[Any, Any]]:
    return {f'{prefix}{field.name}': (getattr(group, field.name), field.default) for field in dataclasses.fields(group)}

"""Fields of a config that some tasks do not read, so that nothing that a config asks for is ignored."""

import dataclasses
from typing import Any

TASKS = ('pretraining', 'language_modelling', 'fine_tuning')
READERS, UNREAD = 'readers', 'unread'  # keys of a field's metadata


def read_by(*tasks: str, default: Any, unread: Any = dataclasses.MISSING) -> Any:
    """A dataclass field, or a group of fields, that these tasks alone read.

    Args:
        tasks: names out of `TASKS`.
        default: the field's.
        unread: the value that the field must have in the other tasks; the default where it is not given.
    """
    unread = default if unread is dataclasses.MISSING else unread
    return dataclasses.field(default=default, metadata={READERS: tasks, UNREAD: unread})


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

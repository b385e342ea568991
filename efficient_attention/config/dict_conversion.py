"""Converts a config dataclass to nested dicts of JSON values, and back."""

import dataclasses
import json
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from efficient_attention.config.field_metadata import COMMA_LIST, MARKS
from efficient_attention.errors import KINDS_IN_WORDS, InputError, nearest

LARGEST = 2**31  # largest absolute value of a whole number: shapes, steps and ids are 32-bit on the devices
LISTED = {str: 'texts', int: 'whole numbers'}  # element types of list fields, in words for messages


def to_dict(config: Any) -> dict[str, Any]:
    """Returns a config dataclass as nested dicts of JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in _fields_as_dicts(config)}


def _fields_as_dicts(config: Any) -> list[tuple[str, Any]]:
    fields = [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]
    return [(name, to_dict(value) if dataclasses.is_dataclass(value) else value) for name, value in fields]


def default_fields(kind: type) -> dict[str, Any]:
    """Returns the default values of a config dataclass as nested dicts.

    Derived values are not filled in: a default of 0, such as 0 = width / heads, stays 0.
    """
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    return {
        name: default_fields(type(value)) if dataclasses.is_dataclass(value) else value
        for name, value in fields.items()
    }


def from_dict(values: Mapping[str, Any], kind: type, group: str = '') -> Any:
    """Returns a config dataclass filled from nested dicts; missing fields keep their defaults.

    Raises:
        InputError: an unknown field (the message has the nearest or all known fields) or a value of a wrong type.
    """
    if not isinstance(values, Mapping):
        raise InputError(f'{group.removesuffix(".") or "the config"} is {values!r}; it must be a group of fields')
    types_of = typing.get_type_hints(kind)
    for name in values:
        if name not in types_of:
            raise unknown_field_error(f'{group}{name}', [f'{group}{known}' for known in types_of])
    return kind(
        **{name: _convert_to_field_type(value, types_of[name], f'{group}{name}') for name, value in values.items()}
    )


def join_comma_lists(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Returns a copy of nested config values in which lists of `COMMA_LIST` fields are joined with commas."""
    joined = dict(values)
    for field in dataclasses.fields(kind):
        value = joined.get(field.name)
        if dataclasses.is_dataclass(field.default) and isinstance(value, Mapping):
            joined[field.name] = join_comma_lists(value, type(field.default))
        elif COMMA_LIST in field.metadata.get(MARKS, ()) and isinstance(value, list | tuple):
            joined[field.name] = ','.join(map(str, value))
    return joined


def field_names(kind: type) -> list[str]:
    """Returns the names of the fields of a config dataclass, and the dotted names of the fields of its groups."""
    fields = default_fields(kind)
    groups = [(group, values) for group, values in fields.items() if isinstance(values, dict)]
    return [*fields, *(f'{group}.{name}' for group, values in groups for name in values)]


def unknown_field_error(name: str, known: Collection[str]) -> InputError:
    """Returns the error for an unknown config field: the nearest known fields, or the known fields of its group.

    Args:
        name: dotted name of the unknown field.
        known: dotted names of known fields.
    """
    group, dot, own = name.rpartition('.')
    fields = [one.rpartition('.')[2] for one in known if one.rpartition('.')[0] == group]
    elsewhere = [one for one in known if one.rpartition('.')[2] == own]
    # Within a group, the names are compared without the group, which would make all of them similar.
    near = elsewhere or ([f'{group}{dot}{one}' for one in nearest(own, fields)] if fields else nearest(name, known))
    if near:
        return InputError(f'unknown config field {name}; did you mean {" or ".join(near)}?')
    listed = fields or [one for one in known if '.' not in one]
    return InputError(f'unknown config field {name}; known: {", ".join(listed)}')


def _convert_to_field_type(value: Any, kind: Any, field: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_dict(value, typing.cast(type, kind), f'{field}.')
    if isinstance(kind, types.GenericAlias):  # a type such as tuple[str, ...] or tuple[int, ...]
        of = typing.get_args(kind)[0]
        if not isinstance(value, (list, tuple)) or not all(type(entry) is of for entry in value):
            raise InputError(f'{field} is {value!r}; it must be a list of {LISTED[of]}')
        for entry in value:
            check_integer_not_too_large(entry, field)
        return tuple(value)
    check_integer_not_too_large(value, field)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InputError(f'{field} is {value!r}; it must be {KINDS_IN_WORDS[kind]}')
    return value


def check_integer_not_too_large(value: Any, field: str) -> None:
    """Raises InputError if a field is a whole number beyond 32 bits."""
    if type(value) is int and abs(value) > LARGEST:
        raise InputError(f'{field} is {value}; a whole number must be from -{LARGEST} to {LARGEST}')


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a nested dict as one flat dict with dotted names. Values are as after writing and reading JSON."""
    fields: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(tree)).items():
        if isinstance(value, dict) and value:
            fields |= {f'{name}.{inner}': leaf for inner, leaf in flatten(value).items()}
        else:
            fields[name] = value
    return fields

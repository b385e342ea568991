"""Every mechanism has a room with the same files, and a room is found by the mechanism's class."""

import dataclasses
from pathlib import Path

import pytest

from efficient_attention.attention import registry
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.registry import ROOMS, room_of
from efficient_attention.attention.softmax.definition import Softmax

FILES = ('definition', 'serve', 'cache', 'cost')


@pytest.mark.parametrize('name', ROOMS)
def test_a_room_has_the_files_that_every_room_has(name: str):
    folder = Path(registry.__file__).parent / name
    assert not [file for file in FILES if not (folder / f'{file}.py').is_file()]
    room = ROOMS[name]
    modules = [getattr(room, field.name).__module__ for field in dataclasses.fields(room)]
    files = ('definition', 'definition', 'serve', 'cache', 'cache', 'cost')
    assert modules == [f'efficient_attention.attention.{name}.{file}' for file in files]


def test_a_room_is_found_by_the_class():
    assert all(room_of(room.kind()) is room for room in ROOMS.values())
    assert room_of(Softmax()) is ROOMS['softmax']


def test_a_mechanism_without_a_room_is_named():
    with pytest.raises(NotImplementedError, match='^Mechanism has no room in attention/registry.py$'):
        room_of(Mechanism())

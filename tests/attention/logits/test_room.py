"""Rooms of distributions share all but their class."""

from efficient_attention.attention.logits import cache, serve
from efficient_attention.attention.logits.room import room_over_pattern
from efficient_attention.attention.sparsemax.definition import Sparsemax


def test_a_room_has_the_shared_forms_and_no_split_one():
    room = room_over_pattern(Sparsemax)
    assert (room.kind, room.serve, room.decode) == (Sparsemax, serve.serve, cache.decode)
    assert room.serve_share is None and room.feature_map is None

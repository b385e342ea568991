"""Synthesizer: softmax of logits from the token alone, or from nothing (Tay et al. 2020, arXiv 2005.00743)."""

import functools

from efficient_attention.attention.room import Room
from efficient_attention.attention.synthesizer import cache, definition, serve


def make_room(softmax: Room) -> Room:
    """The room, whose fast form, cache and cost are those of softmax attention."""
    return Room(
        kind=definition.Synthesizer,
        weights=definition.weights,
        serve=functools.partial(serve.serve, softmax),
        init_cache=functools.partial(cache.init, softmax),
        decode=functools.partial(cache.decode, softmax),
        multiply_adds=functools.partial(definition.multiply_adds, softmax),
    )

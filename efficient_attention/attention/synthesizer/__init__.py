"""Synthesizer: softmax of logits from only the query token, or from no token (Tay et al. 2020, arXiv 2005.00743)."""

import functools

from efficient_attention.attention.room import Room
from efficient_attention.attention.synthesizer import cache, definition, serve


def make_room(softmax: Room) -> Room:
    """Returns the implementation, with softmax attention's fast form, cache and cost."""
    return Room(
        kind=definition.Synthesizer,
        weights=definition.weights,
        serve=functools.partial(serve.serve, softmax),
        init_cache=functools.partial(cache.init, softmax),
        decode=functools.partial(cache.decode, softmax),
        multiply_adds=functools.partial(definition.multiply_adds, softmax),
    )

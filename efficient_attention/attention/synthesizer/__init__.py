"""Synthesizer attention: softmax of logits that depend only on the query token,
or on no token (Tay et al. 2020, arXiv 2005.00743).
"""

import functools

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.synthesizer import cache, definition, fast_attention


def make_implementation(softmax: Implementation) -> Implementation:
    """Returns the synthesizer's `Implementation`, which uses softmax attention's fast form, decoding cache and cost."""
    return Implementation(
        kind=definition.Synthesizer,
        weights=definition.weights,
        compute=functools.partial(fast_attention.compute_attention, softmax),
        init_cache=functools.partial(cache.init, softmax),
        decode=functools.partial(cache.decode, softmax),
        multiply_adds=functools.partial(definition.multiply_adds, softmax),
    )

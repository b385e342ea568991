"""Rejects keyword arguments of other libraries, such as `mask`, with an error that says what to write instead."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar('F', bound=Callable[..., Any])

_MASK = (
    'the mechanism decides which keys a query may read, for example Softmax(Causal() & Window(8)); a model takes it '
    'from the config field attention; mark padding with segments or Lengths(lengths)'
)
_CAUSAL = "causality is part of the mechanism: write Softmax(Causal()), or attention='causal' in a model's config"
_DROPOUT = (
    'attend takes dropout_rate and dropout_rng; models take their rates from the config, and apply dropout only if rng '
    'is given'
)
FOREIGN = {
    **dict.fromkeys(('mask', 'attn_mask', 'attention_mask', 'key_padding_mask'), _MASK),
    **dict.fromkeys(('causal', 'is_causal'), _CAUSAL),
    **dict.fromkeys(('dropout', 'dropout_p', 'deterministic', 'train', 'training'), _DROPOUT),
    'scale': 'most mechanisms multiply dot products by 1 / sqrt(head width); for another factor, scale the query first',
    'segment_ids': 'attend takes query_segments and key_segments; models take segments as their second argument',
}


def refuse_foreign_keywords(function: F) -> F:
    """Returns the function with a check: a keyword argument in FOREIGN raises a TypeError that says what to write."""

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name in FOREIGN:
                who = function.__qualname__.removesuffix('.__call__')
                raise TypeError(f'{who} has no argument {name}: {FOREIGN[name]}')
        return function(*arguments, **keywords)

    return cast(F, checked)

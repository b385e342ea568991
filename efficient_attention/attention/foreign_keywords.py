"""Answers keyword arguments of other libraries, such as `mask` and `is_causal`, with what this library has instead."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar('F', bound=Callable[..., Any])

_MASK = (
    'the mechanism says which keys a query may read, such as Softmax(Causal() & Window(8)), in models the config field '
    'attention; padding is given by segments or Lengths(lengths)'
)
_CAUSAL = "the mechanism says so: Softmax(Causal()), in models the config field attention='causal'"
_DROPOUT = 'attend has dropout_rate and dropout_rng; models have rates in their config, and drop if rng is given'
FOREIGN = {
    **dict.fromkeys(('mask', 'attn_mask', 'attention_mask', 'key_padding_mask'), _MASK),
    **dict.fromkeys(('causal', 'is_causal'), _CAUSAL),
    **dict.fromkeys(('dropout', 'dropout_p', 'deterministic', 'train', 'training'), _DROPOUT),
    'scale': 'logits are multiplied by 1 / sqrt(K); for another factor, multiply the query',
    'segment_ids': 'attend has query_segments and key_segments, models have segments',
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

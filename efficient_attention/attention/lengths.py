"""Defines `Lengths`: the number of tokens of each row, for batches in which a row is one text and then padding."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

Numbers = Array | np.ndarray


class Lengths(NamedTuple):
    """The segments of rows with one text each: row b has `lengths_B[b]` tokens of segment 1, then padding (segment 0).

    It means the same as the array `segments(L)`. `attend`, attention modules, layers, encoders, decoders and
    encoder-decoders accept it in place of segments [B, L]. The backend `cudnn` supports lengths but no segments.

    Attributes:
        lengths_B: integers from 0 to L, the number of tokens in each row.
    """

    lengths_B: Numbers

    def segments(self, length: int) -> Int[Array, 'B L']:
        """Returns the same segments as an int32 array [B, L]: 1 for tokens, 0 for padding."""
        return (jnp.arange(length)[None] < jnp.asarray(self.lengths_B)[:, None]).astype(jnp.int32)


AnySegments = Numbers | Lengths


def segments_and_lengths(segments: Any, length: int) -> tuple[Any, Array | None]:
    """Returns segments as an array [B, L]; and the lengths [B] if they were given as `Lengths`, else None."""
    if isinstance(segments, Lengths):
        return segments.segments(length), jnp.asarray(segments.lengths_B)
    return segments, None


def lengths_or_segments(segments_BL: Any, lengths_B: Any) -> Any:
    """Returns the lengths if they are known, else the segments; the reverse of `segments_and_lengths`."""
    return segments_BL if lengths_B is None else Lengths(lengths_B)


def segments_of_batch(batch: Mapping[str, Any], side: str = '') -> Any:
    """Returns the segments of a batch: its 'lengths' if each row has one text, else its array 'segments'.

    `side` precedes the names of the arrays, such as 'source_'.
    """
    lengths_B = batch.get(f'{side}lengths')
    return batch[f'{side}segments'] if lengths_B is None else Lengths(lengths_B)

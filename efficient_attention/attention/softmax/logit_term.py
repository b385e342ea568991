"""Defines `LogitTerm`, the interface between loops over tiles and a term that is added
to the logits, such as a bias.
"""

import abc
from typing import Any, Protocol, runtime_checkable

from jax import Array

from efficient_attention.attention.softmax.tile_chunks import ChosenTiles, TileChunk, TileMaskInputs


@runtime_checkable
class LogitTermSlice(Protocol):
    """The part of a logit term, such as a bias, that a chunk of query tiles reads. It is a tree of arrays and has a
    gradient.
    """

    def read_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns the float32 values of the logit term for the query-key pairs of a chunk.

        `chunk` is the chunk for which `LogitTerm.select_for_chunk` made this slice. An axis has size 1 if values do not
        vary along it.
        """
        ...


class LogitTerm(abc.ABC):
    """A term that is added to the logits tile by tile, such as a bias; it is a tree of arrays.

    The forward loop, and the backward loop over key tiles, call `chunk_values`. The backward loop over query tiles
    computes the term's gradient. It gets the part that each chunk reads from `select_for_chunk`, differentiates
    `read_values`, and passes the gradient to `add_chunk_gradient`. This method adds the gradient to a running total and
    returns arrays that are already complete. At the end `finish_gradient` builds the gradient from the total and the
    arrays.
    """

    @property
    @abc.abstractmethod
    def has_tile_gradient(self) -> bool:
        """Whether `add_chunk_gradient` returns an array with one entry per computed tile, besides the running sum."""

    @property
    @abc.abstractmethod
    def splits_by_head(self) -> bool:
        """Whether key heads can be computed one after another. If True, axis 1 of the term's arrays is the axis of key
        heads.
        """

    @abc.abstractmethod
    def chunk_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns the float32 values of the logit term over a chunk's query-key pairs;
        an axis has size 1 if values do not vary along it.
        """

    @abc.abstractmethod
    def select_for_chunk(self, chosen: ChosenTiles) -> LogitTermSlice:
        """Returns the part of the logit term that a chunk of these query tiles reads."""

    @abc.abstractmethod
    def zero_gradient(self) -> Any:
        """Returns the running total of the logit term's gradient before the first chunk."""

    @abc.abstractmethod
    def add_chunk_gradient(self, total: Any, chosen: ChosenTiles, gradient: Any) -> tuple[Any, list[Array]]:
        """Returns the running total with a chunk's gradient added, and the gradient arrays [t, ...] that this chunk
        completes.
        """

    @abc.abstractmethod
    def finish_gradient(self, total: Any, arrays: list[Array]) -> 'LogitTerm':
        """Returns the gradient of the whole logit term, from the running total over chunks and from the gradient arrays
        [n, ...] that the chunks completed.

        These arrays lack the empty tile at the end.
        """

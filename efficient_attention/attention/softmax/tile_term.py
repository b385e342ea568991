"""`LogitTerm`, the interface between tile loops and a term of the logits, such as a bias or the relative term."""

import abc
from typing import Any, Protocol, runtime_checkable

from jax import Array

from efficient_attention.attention.softmax.tile_chunks import ChosenTiles, TileChunk, TileMaskInputs


@runtime_checkable
class LogitTermRead(Protocol):
    """The slice of a logit term that a chunk of query tiles reads: a tree of arrays with a gradient."""

    def read_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns float32 values over the pairs of the chunk that reads this part.

        An axis has size 1 if values do not vary along it.
        """
        ...


class LogitTerm(abc.ABC):
    """A term that is added to the logits; a tree of arrays.

    The forward loop, and the backward loop by key tile, call `values`. The backward loop by query tile computes the
    term's gradient. It gets the part that each chunk reads (`read_by`), differentiates `read_values`, and passes the
    gradient to `collect`. `collect` adds it to a running total and returns arrays that are already complete. At the end
    `join` builds the gradient from the total and the arrays.
    """

    @property
    @abc.abstractmethod
    def has_tile_gradient(self) -> bool:
        """Whether `collect` returns one array with an entry per computed tile, besides the total."""

    @property
    @abc.abstractmethod
    def splits_by_head(self) -> bool:
        """Whether key heads can be computed one after another, because axis 1 of the arrays is the key heads."""

    @abc.abstractmethod
    def chunk_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns float32 values over the pairs of any chunk; an axis has size 1 if values do not vary along it."""

    @abc.abstractmethod
    def select_for_chunk(self, chosen: ChosenTiles) -> LogitTermRead:
        """Returns the slice of the logit term that a chunk of these query tiles reads."""

    @abc.abstractmethod
    def zero_gradient(self) -> Any:
        """Returns the total before the first chunk."""

    @abc.abstractmethod
    def add_chunk_gradient(self, total: Any, chosen: ChosenTiles, gradient: Any) -> tuple[Any, list[Array]]:
        """Returns the total with a chunk's gradient added, and the arrays [t, ...] that this chunk completes."""

    @abc.abstractmethod
    def finish_gradient(self, total: Any, arrays: list[Array]) -> 'LogitTerm':
        """Returns the gradient of the whole term, from the total and the arrays [n, ...], which lack the empty tile."""

"""The view that tile loops have of a bias or a relative term: the protocol that every term of the logits keeps."""

import abc
from typing import Any, Protocol, runtime_checkable

from jax import Array

from efficient_attention.attention.softmax.tile_chunks import ChosenTiles, TileChunk, TileMaskInputs


@runtime_checkable
class TermRead(Protocol):
    """What a chunk of query tiles reads of a term; a tree of arrays, through which its gradient flows."""

    def read_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """float32 values over the pairs of the chunk that read it, each axis 1 where nothing varies."""
        ...


class Term(abc.ABC):
    """Something that is added to the logits; a tree of arrays.

    Forward, and by key tile in the backward pass, a loop asks for `values`. By query tile it takes the gradient: it
    asks what each chunk reads (`read_by`), differentiates `read_values`, and hands the gradient to `collect`, which
    adds it to a running total and returns arrays that are complete; at the end `join` makes the gradient of both.
    """

    @property
    @abc.abstractmethod
    def has_tile_gradient(self) -> bool:
        """Whether `collect` returns one array with an entry for each computed tile, beside the total."""

    @property
    @abc.abstractmethod
    def splits_by_head(self) -> bool:
        """Whether key heads can be computed one after another, each with its entry of axis 1 of the arrays."""

    @abc.abstractmethod
    def values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """float32 values over the pairs of any chunk, each axis 1 where nothing varies."""

    @abc.abstractmethod
    def read_by(self, chosen: ChosenTiles) -> TermRead:
        """What a chunk of these query tiles reads."""

    @abc.abstractmethod
    def start(self) -> Any:
        """The total before the first chunk."""

    @abc.abstractmethod
    def collect(self, total: Any, chosen: ChosenTiles, gradient: Any) -> tuple[Any, list[Array]]:
        """The total with the gradient of what a chunk read, and the arrays [t, ...] that are complete after it."""

    @abc.abstractmethod
    def join(self, total: Any, arrays: list[Array]) -> 'Term':
        """The gradient of the whole term, from the total and the arrays [n, ...], which lack the empty tile."""

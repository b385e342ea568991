"""What tile loops see of a bias or a relative term: the protocol that every term of the logits keeps."""

import abc
from typing import Any, Protocol, runtime_checkable

from jax import Array

from efficient_attention.attention.softmax.tile_chunks import ChosenTiles, Chunk, MaskInputs


@runtime_checkable
class TermRows(Protocol):
    """The part of a term that a chunk of query tiles reads; a tree of arrays, through which its gradient flows."""

    def of_rows(self, chunk: Chunk, mask_inputs: MaskInputs) -> Array:
        """float32 values over the pairs of the chunk, each axis 1 where nothing varies."""
        ...


class Term(abc.ABC):
    """Something that is added to the logits; a tree of arrays.

    Forward, and by key tile in the backward pass, a loop asks for `tiles`. By query tile it takes the gradient: of each
    chunk it reads the `rows`, differentiates their `of_rows`, and hands the gradient to `collect`, which adds it to a
    running total and returns arrays that are complete; at the end `join` makes the term's gradient of both.
    """

    @property
    @abc.abstractmethod
    def has_row_gradient(self) -> bool:
        """Whether `collect` returns one array, with a row for each query tile, beside the total."""

    @property
    @abc.abstractmethod
    def splits_by_head(self) -> bool:
        """Whether key heads can be computed one after another, each with its part of axis 1 of the arrays."""

    @abc.abstractmethod
    def tiles(self, chunk: Chunk, mask_inputs: MaskInputs) -> Array:
        """float32 values over the pairs of any chunk, each axis 1 where nothing varies."""

    @abc.abstractmethod
    def rows(self, chosen: ChosenTiles) -> TermRows:
        """The part that a chunk of query tiles reads."""

    @abc.abstractmethod
    def start(self) -> Any:
        """The total before the first chunk."""

    @abc.abstractmethod
    def collect(self, total: Any, chosen: ChosenTiles, gradient: Any) -> tuple[Any, list[Array]]:
        """The total with the gradient of a chunk's rows, and what is complete after the chunk, rows first."""

    @abc.abstractmethod
    def join(self, total: Any, arrays: list[Array]) -> 'Term':
        """The gradient of the whole from the total and from all rows, which lack the empty tile."""

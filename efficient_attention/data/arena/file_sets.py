"""Long Range Arena datasets that are read from the original files: IMDB, CIFAR-10, AAN, ListOps and Pathfinder."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.data.arena.arena_row import ArenaRow, ArenaSet
from efficient_attention.data.arena.folders import (
    PAIR_LABELS,
    REVIEW_LABELS,
    class_counts,
    image_files,
    image_labels,
    image_rows,
    pair_file,
    pair_rows,
    review_files,
    review_rows,
)
from efficient_attention.data.arena.released import (
    picture_lists,
    picture_rows,
    pictures_of,
    table_file,
    table_rows,
)
from efficient_attention.data.sources.text_files import digest_files


@dataclasses.dataclass(frozen=True)
class FileSet(ArenaSet):
    """A dataset whose rows are read from the files of a folder."""

    is_read = True
    folder: Path


@dataclasses.dataclass(frozen=True)
class Reviews(FileSet):
    """IMDB reviews, see `review_rows`."""

    kind = 'imdb'
    vocabulary = 'bytes'

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names neg and pos."""
        return REVIEW_LABELS

    def digest(self, split: str) -> str:
        """See `ArenaSet`."""
        return digest_files(review_files(self.folder, split))

    def classes(self, split: str) -> dict[str, int]:
        """See `ArenaSet`."""
        return class_counts(review_files(self.folder, split))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        return review_rows(review_files(self.folder, split), split)


@dataclasses.dataclass(frozen=True)
class Images(FileSet):
    """Grey CIFAR-10 images, see `image_rows`."""

    kind = 'cifar10'
    vocabulary = 'grey'

    @functools.cached_property
    def _labels(self) -> tuple[str, ...]:
        return image_labels(self.folder)

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the names of the class folders."""
        return self._labels

    def digest(self, split: str) -> str:
        """See `ArenaSet`."""
        return digest_files(image_files(self.folder, split))

    def classes(self, split: str) -> dict[str, int]:
        """See `ArenaSet`."""
        return class_counts(image_files(self.folder, split))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        return image_rows(image_files(self.folder, split), split, self.labels)


@dataclasses.dataclass(frozen=True)
class CitationPairs(FileSet):
    """AAN's pairs of papers, see `pair_rows`."""

    kind = 'aan'
    vocabulary = 'bytes'
    texts = 2

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names 0 and 1."""
        return PAIR_LABELS

    def digest(self, split: str) -> str:
        """See `ArenaSet`."""
        return digest_files((pair_file(self.folder, split),))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        return pair_rows(pair_file(self.folder, split))


@dataclasses.dataclass(frozen=True)
class Tables(FileSet):
    """The released tables of ListOps, see `table_rows`."""

    kind = 'listops'
    vocabulary = 'listops'

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the ten digits."""
        return tuple(map(str, range(10)))

    def digest(self, split: str) -> str:
        """See `ArenaSet`."""
        return digest_files((table_file(self.folder, split),))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        return table_rows(table_file(self.folder, split))


@dataclasses.dataclass(frozen=True)
class Pictures(FileSet):
    """The released pictures of Pathfinder, see `picture_rows`."""

    kind = 'pathfinder'
    vocabulary = 'grey'

    def digest(self, split: str) -> str:
        """See `ArenaSet`; hashes the lists, which have the labels, and the pictures of the split."""
        pictures = [picture.path for picture in pictures_of(self.folder, split)]
        return digest_files([*picture_lists(self.folder), *pictures])

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """See `ArenaSet`."""
        return picture_rows(pictures_of(self.folder, split))

"""Datasets of Long Range Arena that are read from the original files: IMDB, CIFAR-10, AAN, ListOps and Pathfinder."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.data.arena.dataset_interface import ArenaDataset, ArenaRow
from efficient_attention.data.arena.imdb_cifar10_aan_readers import (
    PAIR_LABELS,
    REVIEW_LABELS,
    citation_pair_file,
    citation_pair_rows,
    files_per_class,
    image_files,
    image_labels,
    image_rows,
    review_files,
    review_rows,
)
from efficient_attention.data.arena.listops_pathfinder_readers import (
    listops_file,
    listops_rows,
    pathfinder_image_paths,
    pathfinder_image_rows,
    pathfinder_metadata_files,
)
from efficient_attention.data.sources.text_files import digest_files


@dataclasses.dataclass(frozen=True)
class FileDataset(ArenaDataset):
    """A dataset whose rows are read from the files of a folder."""

    is_read = True
    folder: Path


@dataclasses.dataclass(frozen=True)
class ImdbReviews(FileDataset):
    """IMDB film reviews as bytes, labelled neg or pos; `review_rows` describes the rows."""

    kind = 'imdb'
    vocabulary = 'bytes'

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names neg and pos."""
        return REVIEW_LABELS

    def digest(self, split: str) -> str:
        """Returns a hash of the review files of a split."""
        return digest_files(review_files(self.folder, split))

    def class_file_counts(self, split: str) -> dict[str, int]:
        """Returns the number of reviews per class."""
        return files_per_class(review_files(self.folder, split))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the reviews of a split as rows of bytes."""
        return review_rows(review_files(self.folder, split), split)


@dataclasses.dataclass(frozen=True)
class Cifar10Images(FileDataset):
    """CIFAR-10 images as rows of grey values; `image_rows` describes the rows."""

    kind = 'cifar10'
    vocabulary = 'grey'

    @functools.cached_property
    def _folder_labels(self) -> tuple[str, ...]:
        return image_labels(self.folder)

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names, which are the names of the image folders."""
        return self._folder_labels

    def digest(self, split: str) -> str:
        """Returns a hash of the image files of a split."""
        return digest_files(image_files(self.folder, split))

    def class_file_counts(self, split: str) -> dict[str, int]:
        """Returns the number of images per class."""
        return files_per_class(image_files(self.folder, split))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the images of a split as rows of grey values."""
        return image_rows(image_files(self.folder, split), split, self.labels)


@dataclasses.dataclass(frozen=True)
class CitationPairs(FileDataset):
    """Pairs of papers from the AAN citation data, as bytes; `citation_pair_rows` describes the rows."""

    kind = 'aan'
    vocabulary = 'bytes'
    texts = 2

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names 0 and 1."""
        return PAIR_LABELS

    def digest(self, split: str) -> str:
        """Returns a hash of the file with the pairs of a split."""
        return digest_files((citation_pair_file(self.folder, split),))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the pairs of papers of a split as rows of bytes."""
        return citation_pair_rows(citation_pair_file(self.folder, split))


@dataclasses.dataclass(frozen=True)
class ListOpsTables(FileDataset):
    """The ListOps tables that Long Range Arena released; `listops_rows` describes the rows."""

    kind = 'listops'
    vocabulary = 'listops'

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names, the digits 0 to 9."""
        return tuple(map(str, range(10)))

    def digest(self, split: str) -> str:
        """Returns a hash of the table of a split."""
        return digest_files((listops_file(self.folder, split),))

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the rows of the table of a split."""
        return listops_rows(listops_file(self.folder, split))


@dataclasses.dataclass(frozen=True)
class PathfinderImages(FileDataset):
    """The Pathfinder images that Long Range Arena released; `pathfinder_image_rows` describes the rows."""

    kind = 'pathfinder'
    vocabulary = 'grey'

    def digest(self, split: str) -> str:
        """Returns a hash of all metadata files, which have the labels, and of the images of a split."""
        pictures = [picture.path for picture in pathfinder_image_paths(self.folder, split)]
        return digest_files([*pathfinder_metadata_files(self.folder), *pictures])

    def rows(self, split: str) -> Iterator[ArenaRow]:
        """Returns the images of a split as rows of grey values."""
        return pathfinder_image_rows(pathfinder_image_paths(self.folder, split))

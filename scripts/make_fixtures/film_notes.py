"""Defines a tiny TFDS dataset of our own, with features of many kinds, for tests of the TFDS reader.

`make tfds NAME=scripts/make_fixtures/film_notes.py` prepares it. tfds_sets.py does so for the tests.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

TEXTS = ('A grëat film.', 'Dull.', 'Good, then bad.', 'So slow!', 'A joy\nin two lines.', 'No.', 'Fine.')


class FilmNotes(tfds.core.GeneratorBasedBuilder):
    """Notes on films, each with a label, a number of stars, tags and a picture of 2 by 3 pixels."""

    VERSION = tfds.core.Version('1.0.0')

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            'note': tfds.features.Text(),
            'mood': tfds.features.ClassLabel(names=['bad', 'good']),
            'stars': np.float32,
            'year': np.int64,
            'tags': tfds.features.Sequence(tfds.features.Text()),
            'picture': tfds.features.Image(shape=(2, 3, 3)),
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # These rows need no download.
        return {'train': self._generate_examples(range(5)), 'test': self._generate_examples(range(5, 7))}

    def _generate_examples(self, numbers: range) -> Iterator[tuple[int, dict[str, Any]]]:
        for number in numbers:
            picture = np.arange(18, dtype=np.uint8).reshape(2, 3, 3) + np.uint8(number)
            note = {'note': TEXTS[number], 'mood': number % 2, 'stars': number / 2, 'year': 1990 + number}
            yield number, note | {'tags': ['film'] * (number % 3), 'picture': picture}

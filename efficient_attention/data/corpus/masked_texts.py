"""Makes rows for masked language models with one text per row, such as the texts of a fine-tuning task."""

from collections.abc import Sequence

import numpy as np

from efficient_attention.config.data import DataConfig
from efficient_attention.data.batching.epoch_cache import TwoEpochCache
from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.data.corpus.masking import Masker
from efficient_attention.data.tokenizers.vocabulary import Vocabulary
from efficient_attention.errors import InputError

Row = dict[str, np.ndarray]


class MaskedTexts:
    """Masked rows from a list of texts, one text per row; implements `RowSource` of batches.py.

    Attributes:
        count: rows of an epoch, one per text.
    """

    def __init__(self, texts: Sequence[np.ndarray], vocabulary: Vocabulary, config: DataConfig, seed: int) -> None:
        """Stores the texts, each an array of ids [l]; a row uses the first `config.length` ids. Raises InputError if
        the seed is out of range."""
        if not 0 <= seed < 2**64:
            raise InputError(f'the seed is {seed}; it must be at least 0 and below 2^64')
        self.count, self._texts, self._seed = len(texts), texts, seed
        self._pad, self._length, self._copies = vocabulary.pad, config.length, config.static_copies
        self._masker = Masker(vocabulary, config)
        self._orders: TwoEpochCache[np.ndarray] = TwoEpochCache()

    def training_row(self, position: int) -> Row:
        """Returns the training row at a position, which counts rows over all epochs; each epoch contains all rows in a
        new random order."""
        epoch, turn = divmod(position, self.count)
        return self.row(epoch, int(self._orders.get(epoch, self._make_order)[turn]))

    def row(self, epoch: int, index: int) -> Row:
        """Returns the row with number `index`, masked as in the given epoch."""
        text = self.token_ids(index)
        used, places = len(text), np.arange(self._length, dtype=np.int32)
        tokens = np.full(self._length, self._pad, np.int32)
        tokens[:used] = text
        masks = epoch % self._copies if self._copies else epoch
        row = {'segments': (places < used).astype(np.int32), 'token_types': np.zeros(self._length, np.int32)}
        row |= {'positions': places * row['segments'], 'lengths': np.array(used, np.int32)}
        return row | self._masker(tokens, used, random_stream(self._seed, RandomStreamId.CORPUS_ROW, masks, index))

    def token_ids(self, index: int) -> np.ndarray:
        """Returns the ids of a row before masking, cut to the length of a row: integers [l]."""
        return self._texts[index][: self._length]

    def is_cut(self, index: int) -> bool:
        """Whether the text with this number is longer than a row, so that the row contains only its beginning."""
        return len(self._texts[index]) > self._length

    def padding_row(self) -> Row:
        """Returns a row of only padding, which has the same arrays as other rows and weight 0 everywhere."""
        row = {name: np.zeros_like(array) for name, array in self.row(0, 0).items()}
        row['tokens'][...] = self._pad
        return row

    def _make_order(self, epoch: int) -> np.ndarray:
        return random_stream(self._seed, RandomStreamId.CORPUS_ORDER, epoch).permutation(self.count)

"""Makes rows for an encoder-decoder that restores noised texts; all random numbers are functions of (seed, epoch, row
index).

If the noise crosses documents, a split is read as one sequence of tokens, cut into texts of equal length. Each epoch
samples where the first text starts, and drops a rest that fills no text. In evaluation, texts start at the first token
and the last text is shorter. Other noise reads as many whole sentences of one document as fit, the same in every epoch.
The noise is new in each epoch of training; evaluation always has the noise of epoch 0.
"""

import numpy as np

from efficient_attention.data.batching.epoch_cache import TwoEpochCache
from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.data.corpus.noise_interface import Noise, TextToNoise
from efficient_attention.data.corpus.packing import cut_excerpts
from efficient_attention.data.corpus.prepared_corpus import CorpusSplit
from efficient_attention.data.corpus.sentence_pairs import cumulative_token_counts
from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds
from efficient_attention.errors import InputError

SHORTEST = 2  # minimum number of tokens of a text to which noise is added


class NoisedRows:
    """The rows of one corpus split with noise, for an encoder-decoder; can be pickled.

    Attributes:
        count: rows of an epoch.

    Raises:
        InputError: the split has too little text; the seed is out of range.
    """

    def __init__(
        self, corpus: CorpusSplit, noise: Noise, ends: SequenceSpecialIds, seed: int, *, is_training: bool
    ) -> None:
        if not 0 <= seed < 2**64:
            raise InputError(f'the seed is {seed}; it must be at least 0 and below 2^64')
        self._corpus, self._noise, self._ends, self._seed = corpus, noise, ends, seed
        self._before = cumulative_token_counts(corpus.sentence_lengths)
        self._starts, self._stops = self._text_bounds(is_training=is_training)
        self._room = self.token_count - int(self._stops[-1]) if noise.crosses_documents and is_training else 0
        self._orders: TwoEpochCache[np.ndarray] = TwoEpochCache()
        self._offsets: TwoEpochCache[int] = TwoEpochCache()
        self.count = len(self._starts)

    @property
    def token_count(self) -> int:
        """Returns the number of tokens in the split."""
        return int(self._before[-1])

    @property
    def lengths(self) -> tuple[int, int]:
        """Returns the padded lengths of sources and of targets, begin and end tokens included."""
        source, target = self._noise.lengths
        return source + self._ends.special_id_count, target + self._ends.special_id_count

    def training_row(self, position: int) -> dict[str, np.ndarray]:
        """Returns the training row at a position, which counts rows over all epochs; each epoch contains all rows in a
        new random order."""
        epoch, turn = divmod(position, self.count)
        return self.row(epoch, int(self._orders.get(epoch, self._make_order)[turn]))

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        """Returns the row with number `index` of an epoch; it has the arrays of a `PairBatches` batch, without the
        batch axis.

        Raises:
            InputError: these tokens of the corpus cannot be read.
        """
        offset = self._offsets.get(epoch, self._random_text_offset)
        start, stop = int(self._starts[index]) + offset, int(self._stops[index]) + offset
        try:
            text = self.tokens_and_sentence_starts(start, stop)
        except Exception as error:
            kind = InputError if isinstance(error, (InputError, OSError)) else RuntimeError
            where = f'{self._corpus.split} tokens {start} to {stop}, epoch {epoch}, row {index}'
            raise kind(f'{where}: {one_line(error)}') from error
        pair = self._noise(text, random_stream(self._seed, RandomStreamId.CORPUS_ROW, epoch, index))
        return self._padded_row(index, *map(self._ends.add_special_ids, pair))

    def padding_row(self) -> dict[str, np.ndarray]:
        """Returns a row of only padding, which has the same arrays as other rows and weight 0 in every loss."""
        return self._padded_row(-1, np.zeros(0, np.int32), np.zeros(0, np.int32))

    def tokens_and_sentence_starts(self, start: int, stop: int) -> TextToNoise:
        """Returns the tokens start:stop of the split, and where the sentences in this range start."""
        first = int(np.searchsorted(self._before, start, side='right')) - 1
        end = int(np.searchsorted(self._before, stop))
        of_documents = np.asarray(self._corpus.document_starts)
        documents = np.searchsorted(of_documents, [first, end - 1], side='right') - 1
        sentences: list[np.ndarray] = []
        for document in range(documents[0], documents[1] + 1):
            before = int(of_documents[document])
            sentences += self._corpus.sentences(document, max(first - before, 0), end - before)
        skipped = start - int(self._before[first])
        tokens = np.concatenate(sentences)[skipped : skipped + stop - start]
        return TextToNoise(tokens, np.maximum(self._before[first:end] - start, 0))

    def _text_bounds(self, *, is_training: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first and the end token of each text, counted over the split; leaves some tokens unused, so that
        texts can be shifted in each epoch."""
        least = self._noise.tokens if self._noise.crosses_documents and is_training else SHORTEST
        if self.token_count < least:
            change = 'lower' if self._corpus.split == 'train' else 'raise'
            raise InputError(
                f'the {self._corpus.split} split of the corpus has {self.token_count} tokens, and '
                f'noise.name needs {least}; '
                f'add documents or {change} data.held_out'
            )
        return (
            self._equal_length_texts(is_training=is_training)
            if self._noise.crosses_documents
            else self._texts_of_whole_sentences()
        )

    def _equal_length_texts(self, *, is_training: bool) -> tuple[np.ndarray, np.ndarray]:
        """Cuts the split into texts of equal length, which may cross document borders. Training has one text fewer, so
        that a random offset can shift all texts."""
        most = self._noise.tokens
        starts = np.arange(max(1, self.token_count // most - 1) if is_training else -(-self.token_count // most)) * most
        stops = np.minimum(starts + most, self.token_count)
        is_long = stops - starts >= SHORTEST
        return starts[is_long], stops[is_long]

    def _texts_of_whole_sentences(self) -> tuple[np.ndarray, np.ndarray]:
        """Cuts documents into texts of whole sentences, in the order of the split; a sentence that is too long is cut
        anywhere."""
        # `cut_excerpts` needs a random generator, which has no effect if the share of short excerpts is 0.
        of_documents, rng = (
            np.asarray(self._corpus.document_starts),
            np.random.default_rng(0),
        )
        _, starts, stops = cut_excerpts(self._before, of_documents, self._noise.tokens, 0.0, rng)
        order = np.argsort(starts)
        return starts[order], stops[order]

    def _random_text_offset(self, epoch: int) -> int:
        return int(random_stream(self._seed, RandomStreamId.CORPUS_PLAN, epoch).integers(self._room + 1))

    def _make_order(self, epoch: int) -> np.ndarray:
        return random_stream(self._seed, RandomStreamId.CORPUS_ORDER, epoch).permutation(self.count)

    def _padded_row(self, index: int, source: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a row with the padded source and target texts, the segments of both, and the weighted ids to
        predict."""
        (source_M, source_segments_M), (target_L, segments_L) = (
            (np.append(ids, np.full(length - len(ids), self._ends.pad, np.int32)), (np.arange(length) < len(ids)) * 1)
            for ids, length in zip((source, target), self.lengths, strict=True)
        )
        return {
            'source': source_M,
            'source_segments': source_segments_M.astype(np.int32),
            'tokens': np.append(np.int32(self._ends.start), target_L[:-1]),
            'targets': target_L,
            'segments': segments_L.astype(np.int32),
            'source_lengths': np.array(len(source), np.int32),
            'lengths': np.array(len(target), np.int32),
            'weights': segments_L.astype(np.float32),
            'index': np.array(index, np.int32),
        }

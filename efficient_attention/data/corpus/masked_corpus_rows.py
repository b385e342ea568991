"""Builds any masked row of a corpus split on request; all random numbers are functions of (seed, epoch, index), so no
row is stored.

An epoch has a plan and an order. The plan is a table of the sentences in each row, made from only sentence lengths.
With `static_copies` = n, epoch e has the plan and the masks of epoch e mod n, in another order.
"""

import numpy as np

from efficient_attention.config.data import DataConfig
from efficient_attention.data.batching.epoch_cache import TwoEpochCache
from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.data.corpus.masking import Masker
from efficient_attention.data.corpus.packing import PackingPlan, packed_row, plan_packing
from efficient_attention.data.corpus.prepared_corpus import CorpusSplit
from efficient_attention.data.corpus.sentence_pairs import PairPlan, pair_row, plan_pairs
from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.tokenizers.vocabulary import Vocabulary
from efficient_attention.errors import InputError

Plan = PairPlan | PackingPlan


class MaskedCorpusRows:
    """The masked rows of one corpus split; can be pickled, but each process then plans the rows of an epoch again.

    Attributes:
        count: rows of epoch 0; every training epoch has this many rows.

    Raises:
        InputError: the split has no document, or too few for sentence pairs; the seed is out of range.
    """

    def __init__(self, corpus: CorpusSplit, vocabulary: Vocabulary, config: DataConfig, seed: int) -> None:
        if not 0 <= seed < 2**64:
            raise InputError(f'the seed is {seed}; it must be at least 0 and below 2^64')
        check_not_empty(corpus)
        self._corpus = corpus
        self._vocabulary = vocabulary
        self._config = config
        self._seed = seed
        self._masker = Masker(vocabulary, config)
        self._plans: TwoEpochCache[Plan] = TwoEpochCache()
        self._orders: TwoEpochCache[np.ndarray] = TwoEpochCache()
        self.count = len(self.epoch_plan(0))

    def epoch_plan(self, epoch: int) -> Plan:
        """Returns the plan of an epoch, which lists the sentences of every row."""
        return self._plans.get(self._static_copy_epoch(epoch), self._make_epoch_plan)

    def training_row(self, position: int) -> dict[str, np.ndarray]:
        """Returns the training row at a position, which counts rows over all epochs; each epoch has its own random
        order of rows.

        Plans of later epochs may have more or fewer rows than `count`, because splits or packing differ. A longer plan
        omits some rows at random; a shorter plan repeats some.
        """
        epoch, turn = divmod(position, self.count)
        order = self._orders.get(epoch, self._make_order)
        return self.row(epoch, int(order[turn % len(order)]))

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        """Returns the row with number `index` in the plan of an epoch, with masked tokens.

        Raises:
            InputError: the corpus cannot be read there, or has an id outside the vocabulary, which a model on a device
                would not notice; the message names the documents.
        """
        plan = self.epoch_plan(epoch)
        rng = random_stream(self._seed, RandomStreamId.CORPUS_ROW, self._static_copy_epoch(epoch), index)
        try:
            row = self._unmasked_row(plan, index, rng)
            self._check_ids(row['tokens'])
            return row | self._masker(row['tokens'], int(np.count_nonzero(row['segments'])), rng)
        except Exception as error:
            kind = InputError if isinstance(error, (InputError, OSError)) else RuntimeError
            where = f'{self._corpus.split} documents {plan.documents_of_row(index)}, epoch {epoch}, row {index}'
            raise kind(f'{where}: {one_line(error)}') from error

    def padding_row(self) -> dict[str, np.ndarray]:
        """Returns a row of only padding, which has the same arrays as other rows and weight 0 everywhere."""
        row = {name: np.zeros_like(array) for name, array in self.row(0, 0).items()}
        row['tokens'][...] = self._vocabulary.pad
        return row

    def _unmasked_row(self, plan: Plan, index: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        length = self._config.length
        if isinstance(plan, PackingPlan):
            return packed_row(plan, index, self._corpus, self._vocabulary, length)
        return pair_row(plan, index, self._corpus, self._vocabulary, length, rng)

    def _check_ids(self, tokens: np.ndarray) -> None:
        # Viewed as uint32, a negative id becomes a large number, so this test also finds negative ids.
        if tokens.view(np.uint32).max() >= self._vocabulary.size:
            wrong = tokens[tokens.view(np.uint32) >= self._vocabulary.size][0]
            raise InputError(f'token id {wrong} is not in the vocabulary (0 to {self._vocabulary.size - 1})')

    def _static_copy_epoch(self, epoch: int) -> int:
        return epoch % self._config.static_copies if self._config.static_copies else epoch

    def _make_epoch_plan(self, epoch: int) -> Plan:
        make = plan_packing if self._config.pairs == 'none' else plan_pairs
        return make(self._corpus, self._config, random_stream(self._seed, RandomStreamId.CORPUS_PLAN, epoch))

    def _make_order(self, epoch: int) -> np.ndarray:
        return random_stream(self._seed, RandomStreamId.CORPUS_ORDER, epoch).permutation(len(self.epoch_plan(epoch)))


def check_not_empty(corpus: CorpusSplit) -> None:
    """Raises InputError if a corpus split contains no text."""
    if not len(corpus.sentence_lengths):
        change = 'lower' if corpus.split == 'train' else 'raise'
        raise InputError(f'the {corpus.split} split of the corpus is empty; add documents or {change} data.held_out')

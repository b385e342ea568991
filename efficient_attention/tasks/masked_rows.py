"""Masked-LM pretraining on the rows of a long-range task, to initialise a classifier for the same task."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from efficient_attention.config.data import ARENA_SOURCE
from efficient_attention.config.run import RunConfig
from efficient_attention.data.arena.arena_row import ArenaSet
from efficient_attention.data.arena.arena_set import open_set
from efficient_attention.data.arena.prepared import prepared_rows, set_identity
from efficient_attention.data.batching.host_block import HostBlock
from efficient_attention.data.corpus.batches import batches_of_rows, every_row_once
from efficient_attention.data.corpus.masked_texts import MaskedTexts
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.tokenizers.fixed import check_vocabulary
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError
from efficient_attention.tasks.pretraining import PretrainingTask, unigram_losses
from efficient_attention.tasks.task import HostBatch
from efficient_attention.whole_files import write_atomically

SPLITS = ('train', 'dev')  # splits of the datasets: training and evaluation


class MaskedRowsTask(PretrainingTask):
    """Masked-LM on `data.source` 'arena:<training dataset>;<evaluation dataset>'; each text is one row."""

    def __init__(self, config: RunConfig) -> None:
        """Opens the datasets and checks them; the rows are read at first use and cached in `data.cache`.

        Raises:
            InputError: the datasets, the tokenizer or the sizes do not fit the config; the message names which.
        """
        self.set_up(config)
        self.sets = sets_of(self.data.source)
        self.encoder = text_encoder(Path(self.data.tokenizer))
        for arena_set in self.sets:
            check_vocabulary(self.encoder.tokenizer, arena_set.kind, arena_set.vocabulary)
        if self.encoder.size > self.model.vocab_size:
            raise InputError(
                f'the tokenizer has {self.encoder.size} tokens, more than model.vocab_size {self.model.vocab_size}'
            )
        self.held_out_metrics = self.metric_names()
        identities = [set_identity(one, split) for one, split in zip(self.sets, SPLITS, strict=True)]
        self.fingerprint = {'corpus': '-'.join(identity[:32] for identity in identities)}

    @property
    def notes(self) -> list[str]:
        """See `Task`."""
        cut = sum(self.rows.is_cut(index) for index in range(self.rows.count))
        return [f'{cut} of {self.rows.count} rows have more than data.length {self.data.length} words and were cut'] * (
            cut > 0
        )

    def rows_of(self, split: str) -> MaskedTexts:
        """Returns the rows of 'train' or 'dev'."""
        arena_set = self.sets[SPLITS.index(split)]
        rows = prepared_rows(arena_set, split, Path(self.data.cache), field='data.cache')
        texts = [text for row in rows for text in row.texts]
        vocabulary = vocabulary_of(self.encoder.tokenizer, self.data.tokenizer)
        return MaskedTexts(texts, vocabulary, self.data, self.seed)

    @functools.cached_property
    def rows(self) -> MaskedTexts:  # type: ignore[override]  # another row type with the same interface
        """The rows to train on."""
        return self.rows_of('train')

    @functools.cached_property
    def held_out_rows(self) -> MaskedTexts:
        """The held-out rows."""
        return self.rows_of('dev')

    @functools.cached_property
    def unigram_losses_V(self) -> np.ndarray:  # type: ignore[override]  # computed at first use
        """float32 [V]: the loss of each id, in nats, under a unigram model of the training rows."""
        counts_V = np.zeros(self.encoder.size, np.int64)
        for index in range(self.rows.count):
            counts_V += np.bincount(self.rows.text(index), minlength=self.encoder.size)
        return unigram_losses(counts_V)

    def prepare_training(self) -> None:
        """See `Task`."""
        _ = self.rows

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """See `Task`."""
        block, steps = HostBlock(self.batch_size, process_index, process_count), range(start_step, stop_step)
        return batches_of_rows(self.rows, self.data, block, steps)

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """See `Task`. Adds the unigram model's loss of each masked token."""
        block = HostBlock(self.eval_batch_size, process_index, process_count)
        for batch in every_row_once(self.held_out_rows, self.data, block):
            yield batch | {'unigram_losses': self.unigram_losses_V[batch['masked_tokens']]}

    @property
    def vocabulary(self) -> dict[str, int]:
        """The fixed vocabulary of the task."""
        return self.encoder.tokenizer.get_vocab()

    def save_assets(self, workdir: Path) -> None:
        """Writes the vocabulary as a tokenizer file."""
        write_atomically(workdir / 'tokenizer.json', self.encoder.tokenizer.to_str(pretty=True))


def sets_of(source: str) -> tuple[ArenaSet, ArenaSet]:
    """Returns the training and the evaluation dataset; a single name means the different splits of one dataset.

    Raises:
        InputError: as `open_set`.
    """
    first, _, second = source.removeprefix(ARENA_SOURCE).partition(';')
    return open_set(first.strip(), 'data.source'), open_set((second or first).strip(), 'data.source')

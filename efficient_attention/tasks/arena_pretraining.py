"""Pretrains a masked language model on the rows of a Long Range Arena task, to initialise a classifier for the same
task."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.data import ARENA_SOURCE
from efficient_attention.config.run import RunConfig
from efficient_attention.data.arena.dataset_interface import ArenaDataset
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.row_cache import cached_rows, dataset_hash
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.corpus.batches import evaluation_batches_of_rows, training_batches_of_rows
from efficient_attention.data.corpus.masked_texts import MaskedTexts
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.tokenizers.fixed_vocabulary import check_fixed_vocabulary
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError
from efficient_attention.tasks.pretraining import PretrainingTask, unigram_losses
from efficient_attention.tasks.task import BatchShapes, HostBatch

SPLITS = ('train', 'dev')  # splits of the training dataset and of the evaluation dataset


class ArenaPretrainingTask(PretrainingTask):
    """Masked-LM pretraining on datasets of Long Range Arena, with one row per text.

    `data.source` is 'arena:<training dataset>;<evaluation dataset>'.
    """

    def __init__(self, config: RunConfig) -> None:
        """Opens the datasets and checks them; rows are read at first use and cached in `data.cache`.

        Raises:
            InputError: the datasets, the tokenizer or the sizes do not fit the config; the message names which.
        """
        self.set_up_from_config(config)
        self.sets = parse_train_and_dev_datasets(self.data.source)
        self.encoder = text_encoder(Path(self.data.tokenizer))
        for arena_set in self.sets:
            check_fixed_vocabulary(self.encoder.tokenizer, arena_set.kind, arena_set.vocabulary)
        if self.encoder.size > self.model.vocab_size:
            raise InputError(
                f'the tokenizer has {self.encoder.size} tokens, more than model.vocab_size {self.model.vocab_size}'
            )
        self.held_out_metrics = self.metric_names()
        identities = [dataset_hash(one, split) for one, split in zip(self.sets, SPLITS, strict=True)]
        self.fingerprint = {'corpus': '-'.join(identity[:32] for identity in identities)}

    def batch_shapes(self) -> BatchShapes:
        """Returns the array shapes of a global training batch; each row has one text, so batches have lengths."""
        shapes = super().batch_shapes()
        return shapes | {'lengths': shapes['tokens'].update(shape=(self.batch_size,))}

    @property
    def notes(self) -> list[str]:
        """Returns a warning about rows that are longer than `data.length` and were cut, if there are any."""
        cut = sum(self.rows.is_cut(index) for index in range(self.rows.count))
        return [f'{cut} of {self.rows.count} rows have more than data.length {self.data.length} words and were cut'] * (
            cut > 0
        )

    def rows_of_split(self, split: str) -> MaskedTexts:
        """Returns the rows of the split 'train' or 'dev'."""
        arena_set = self.sets[SPLITS.index(split)]
        rows = cached_rows(arena_set, split, Path(self.data.cache), field='data.cache')
        texts = [text for row in rows for text in row.texts]
        vocabulary = vocabulary_of(self.encoder.tokenizer, self.data.tokenizer)
        return MaskedTexts(texts, vocabulary, self.data, self.seed)

    @functools.cached_property
    def rows(self) -> MaskedTexts:  # type: ignore[override]  # another row type with the same interface
        """Returns the training rows."""
        return self.rows_of_split('train')

    @functools.cached_property
    def held_out_rows(self) -> MaskedTexts:
        """Returns the held-out rows."""
        return self.rows_of_split('dev')

    @functools.cached_property
    def unigram_losses_V(self) -> np.ndarray:  # type: ignore[override]  # computed at first use
        """Returns the loss of each token id, in nats, under a unigram model of the training rows: float32 [vocabulary
        size]."""
        counts_V = np.zeros(self.encoder.size, np.int64)
        for index in range(self.rows.count):
            counts_V += np.bincount(self.rows.token_ids(index), minlength=self.encoder.size)
        return unigram_losses(counts_V)

    def prepare_training(self) -> None:
        """Reads the training rows before training begins."""
        _ = self.rows

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`."""
        block, steps = HostBatchShard(self.batch_size, process_index, process_count), range(start_step, stop_step)
        return training_batches_of_rows(self.rows, self.data, block, steps)

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of the evaluation batches; each batch also has a unigram model's loss of each
        masked token."""
        block = HostBatchShard(self.eval_batch_size, process_index, process_count)
        for batch in evaluation_batches_of_rows(self.held_out_rows, self.data, block):
            yield batch | {'unigram_losses': self.unigram_losses_V[batch['masked_tokens']]}

    @property
    def vocabulary(self) -> dict[str, int]:
        """Returns the fixed vocabulary of the datasets."""
        return self.encoder.tokenizer.get_vocab()

    def save_assets(self, workdir: Path) -> None:
        """Writes the vocabulary into the workdir as a tokenizer file."""
        write_atomically(workdir / 'tokenizer.json', self.encoder.tokenizer.to_str(pretty=True))


def parse_train_and_dev_datasets(source: str) -> tuple[ArenaDataset, ArenaDataset]:
    """Returns the training dataset and the evaluation dataset that `data.source` names.

    A single name means two splits of one dataset.

    Raises:
        InputError: as `open_arena_dataset`.
    """
    first, _, second = source.removeprefix(ARENA_SOURCE).partition(';')
    return open_arena_dataset(first.strip(), 'data.source'), open_arena_dataset(
        (second or first).strip(), 'data.source'
    )

"""The text-to-text task: an encoder-decoder learns from pairs of texts to generate targets from sources."""

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.data import DataConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.batching.mixture import Mixture
from efficient_attention.data.pairs.packed_batches import PackedBatches
from efficient_attention.data.pairs.pair_batches import PairBatches
from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.data.pairs.pair_encoder import (
    EncodedPair,
    OverlongPairs,
    PairEncoder,
    SourceOrTargetEncoder,
    special_ids_of_tokenizer,
)
from efficient_attention.data.preparation.cache_folder import TARGET_TOKENIZER
from efficient_attention.data.tokenizers.config_tokenizer import load_config_tokenizer, train_config_tokenizer
from efficient_attention.data.tokenizers.training import unused_ids
from efficient_attention.errors import InputError
from efficient_attention.models.flops import encoder_decoder_flops
from efficient_attention.tasks.as_text.dataset_parsing import AnySet, parse_text_datasets
from efficient_attention.tasks.as_text.scored_text_dataset import ScoredTextDataset
from efficient_attention.tasks.denoising import DenoisingTask
from efficient_attention.tasks.encoder_decoder import EncoderDecoderTask
from efficient_attention.tasks.task import HostBatch

SPLITS = ('train', 'held_out', 'test')


class TextToTextTask(EncoderDecoderTask):
    """Text-to-text training on datasets of pairs, with one tokenizer for sources and targets or one for each."""

    has_short_batches = True

    def __init__(self, config: RunConfig) -> None:
        """Reads the pairs and loads the tokenizer that the config names, or trains one on the training pairs.

        Raises:
            InputError: datasets, files, tokenizer or lengths do not fit the config; the message names which.
        """
        self.set_up_from_config(config)
        self.sets = {split: parse_text_datasets(getattr(config.pairs, split), f'pairs.{split}') for split in SPLITS}
        check_prefixes(config.pairs.prefix, self.sets)
        self.found: dict[AnySet, list[TextPair]] = {}
        self.ids: dict[str, list[list[EncodedPair]]] = {}
        self.tokenizer, self.target_tokenizer = self.make_tokenizers()
        self.encoder = PairEncoder(self.source_encoder(), self.target_encoder(), config.pairs.overlong)
        self.overlong = {split: OverlongPairs() for split in SPLITS}
        digests = ' '.join(one.digest() for split in ('train', 'held_out') for one in self.sets[split])
        self.fingerprint = {
            'pairs': hashlib.sha256(digests.encode()).hexdigest(),
            'tokenizer': hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest(),
        }
        if config.pairs.target_tokenizer:
            self.fingerprint['target_tokenizer'] = hashlib.sha256(self.target_tokenizer.to_str().encode()).hexdigest()

    def set_up_from_config(self, config: RunConfig) -> None:
        """Sets the task's model, objective and config of pairs from the run's config; reads no data."""
        super().set_up_from_config(config)
        self.pairs = config.pairs

    @property
    def target_vocabulary(self) -> dict[str, int]:
        """Returns the pieces of the target tokenizer and their ids."""
        return self.target_tokenizer.get_vocab()

    @property
    def max_lengths(self) -> tuple[int, int]:
        """Returns the largest number of tokens of a source row and of a target row."""
        return self.config.data.length, self.pairs.target_length

    def make_tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Returns the tokenizers of sources and of targets, loaded from files or trained on the training pairs.

        A separate tokenizer is trained only on its side of the pairs, sources or targets.

        Without `pairs.target_tokenizer`, one tokenizer is used for sources and targets.
        """
        data = self.config.data
        if not self.pairs.target_tokenizer:
            both = self.make_tokenizer(data, (0, 1))
            return both, both
        size = self.pairs.target_vocab_size or data.vocab_size
        of_targets = dataclasses.replace(data, tokenizer=self.pairs.target_tokenizer, vocab_size=size)
        with name_target_fields_in_errors():
            target = self.make_tokenizer(of_targets, (1,))
        return self.make_tokenizer(data, (0,)), target

    def make_tokenizer(self, data: DataConfig, sides: tuple[int, ...]) -> Tokenizer:
        """Loads the tokenizer that the config names, or trains one on the sources (0 in `sides`) and targets (1 in
        `sides`) of the training pairs."""
        tokenizer = load_config_tokenizer(data, is_text_to_text=True)
        if tokenizer is not None:
            return tokenizer
        prefixed = zip(self.sets['train'], self.source_prefixes('train'), strict=True)
        found = ((prefix, pair) for one, prefix in prefixed for pair in self.pairs_of_dataset(one))
        texts = [(prefix + pair.source, pair.target)[side] for prefix, pair in found for side in sides]
        return train_config_tokenizer(data, lambda: iter(texts), sum(map(len, texts)))

    def source_encoder(self) -> SourceOrTargetEncoder:
        """Returns the encoder of sources; raises InputError if the tokenizer is too large or lacks a special token."""
        size, most, pairs = self.tokenizer.get_vocab_size(), self.model.vocab_size, self.pairs
        if size > most:
            raise InputError(f'the tokenizer has {size} pieces, more than model.vocab_size {most}')
        start = '' if pairs.target_tokenizer else pairs.start
        symbols = special_ids_of_tokenizer(self.tokenizer, start, pairs.begin)
        return SourceOrTargetEncoder(self.tokenizer, symbols, self.config.data.length, pairs.reverse_source)

    def target_encoder(self) -> SourceOrTargetEncoder:
        """Returns the encoder of targets; raises InputError if the tokenizer is too large or lacks a special token."""
        pairs, model, name = self.pairs, self.model, 'data.tokenizer'
        if pairs.target_tokenizer:
            size, most, name = (
                self.target_tokenizer.get_vocab_size(),
                model.decoder.vocab_size,
                'pairs.target_tokenizer',
            )
            if size > most:
                field = 'target_vocab_size' if model.target_vocab_size else 'vocab_size'
                raise InputError(f'{name} has {size} pieces, more than model.{field} {most}')
        symbols = special_ids_of_tokenizer(self.target_tokenizer, pairs.start, pairs.begin, name)
        return SourceOrTargetEncoder(self.target_tokenizer, symbols, pairs.target_length)

    def source_prefixes(self, split: str) -> tuple[str, ...]:
        """Returns the text that is put before the sources of each dataset of a split."""
        return self.pairs.prefix or ('',) * len(self.sets[split])

    def pairs_of_dataset(self, one: AnySet) -> list[TextPair]:
        """Returns the text pairs of a dataset; the dataset is read only once."""
        if one not in self.found:
            self.found[one] = list(one.read_pairs())
        return self.found[one]

    def encoded(self, split: str) -> list[list[EncodedPair]]:
        """Returns the pairs of each dataset of a split as token ids, without pairs that are left out.

        Raises:
            InputError: no pair is left, or a pair is too long and `pairs.overlong` is 'error'.
        """
        if split in self.ids:
            return self.ids[split]
        overlong = self.overlong[split] = OverlongPairs()
        found = [
            list(self.encoder.encode(self.pairs_of_dataset(one), prefix, overlong))
            for one, prefix in zip(self.sets[split], self.source_prefixes(split), strict=True)
        ]
        if not any(found):
            reason = (
                f': all {overlong.count:,} are above {self.encoder.limits} (pairs.overlong)' if overlong.count else ''
            )
            raise InputError(f'pairs.{split} {getattr(self.pairs, split)!r} gives no pair{reason}')
        self.ids[split] = found
        return found

    def batches(self, split: str, batch_size: int) -> PairBatches:
        """Returns the batches of pairs of a split."""
        alone = self.model.encoder.is_affected_by_padding, self.model.decoder.is_affected_by_padding
        options: dict[str, Any] = {'seed': self.config.train.seed, 'alone': alone}
        sets = self.encoded(split)
        options |= {'mixture': self.mixture(sets)} if split == 'train' else {}
        pairs, encoder = [pair for one in sets for pair in one], self.encoder
        return PairBatches(pairs, encoder.special_ids, encoder.lengths, self.pairs.buckets, batch_size, **options)

    def mixture(self, sets: list[list[EncodedPair]]) -> Mixture | None:
        """Returns how often training reads the pairs of each dataset; None = each pair once per epoch."""
        if not self.pairs.is_weighted_mixture:
            return None
        sizes = tuple(len(one) for one in sets)
        for one, size in zip(self.sets['train'], sizes, strict=True):
            if not size:
                raise InputError(f'pairs.train: the set {one.text!r} gives no pair, so it cannot be mixed with others')
        return Mixture(sizes, self.pairs.mixing_limit, self.pairs.mixing_temperature, self.config.train.seed)

    @functools.cached_property
    def training_data(self) -> PairBatches | PackedBatches:
        """Returns the batches of training pairs."""
        batches = self.batches('train', self.config.train.batch_size)
        if not self.pairs.packed:
            return batches
        options: dict[str, Any] = {'seed': batches.seed, 'mixture': batches.mixture}
        return PackedBatches(batches.pairs, batches.symbols, batches.lengths, batches.batch_size, **options)

    @functools.cached_property
    def held_out_data(self) -> PairBatches:
        """Returns the batches of pairs to evaluate on."""
        return self.batches(self.config.eval.split, self.config.eval.batch_size)

    def rows_per_epoch(self) -> int:
        """Returns the number of training rows per epoch."""
        return self.training_data.rows_per_epoch

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`."""
        return self.training_data.training_batches(start_step, stop_step, process_index, process_count)

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of the evaluation batches."""
        return self.held_out_data.evaluation_batches(process_index, process_count)

    @property
    def notes(self) -> list[str]:
        """Returns notes about cut or left-out pairs, the vocabulary, mixed datasets and packing, one line each."""
        done = 'left out' if self.pairs.overlong == 'skip' else 'cut'
        notes = [
            f'pairs.{split}: {overlong.count:,} pairs {done} (pairs.overlong), the first at {overlong.first}'
            for split, overlong in self.overlong.items()
            if overlong.count
        ]
        read = [one for split in SPLITS for one in self.sets[split] if one in self.found]
        notes += [note for one in read if isinstance(one, ScoredTextDataset) for note in one.notes]
        training = self.training_data if 'training_data' in self.__dict__ else None
        notes += [note] if (note := self.filler_pieces_note()) else []
        notes += [self.mixture_note(training.mixture)] if training and training.mixture else []
        return notes + ([self.packing_note(training)] if isinstance(training, PackedBatches) else [])

    def filler_pieces_note(self) -> str:
        """Returns a note if most pieces of the vocabulary are fillers, which are never used; otherwise ''."""
        pieces = self.tokenizer.get_vocab(with_added_tokens=True)
        found = len(unused_ids(pieces))
        if 2 * found < len(pieces):
            return ''
        return (
            f'data.vocab_size is {len(pieces):,}, and the pairs have {len(pieces) - found:,} pieces; '
            'the others only fill the vocabulary up'
        )

    def packing_note(self, packed: PackedBatches) -> str:
        """Returns a note that compares the padding of packed rows with the padding of one pair per row."""
        rows, (source, target) = packed.rows_per_epoch, packed.lengths
        before = self.batches('train', packed.batch_size).padding_share()
        share = f'{packed.padding_share():.1%} of them padding; a row for each pair would have {before:.1%}'
        return f'pairs.packed: {rows:,} rows of {source} and {target} tokens in the first epoch, {share}'

    def mixture_note(self, mixture: Mixture) -> str:
        """Returns a note about the number of pairs that an epoch reads from each dataset."""
        counts = zip(mixture.rows_per_dataset.tolist(), mixture.sizes, self.sets['train'], strict=True)
        each = '; '.join(f'{rows:,} of the {size:,} of {one.text}' for rows, size, one in counts)
        return f'pairs.train: an epoch has {mixture.rows_per_epoch:,} pairs: {each}'

    def tokens_per_step(self) -> float:
        """Returns the mean number of source and target tokens in a training batch, padding included."""
        return self.training_data.tokens_per_step()

    def training_flops(self) -> float:
        """Returns the floating-point operations per training step, at the mean row lengths of a batch.

        A backward pass counts as two forward passes.
        """
        lengths = self.training_data.mean_padded_lengths() if self.has_data else self.max_lengths
        return 3.0 * self.config.train.batch_size * encoder_decoder_flops(self.model, *lengths)

    def save_assets(self, workdir: Path) -> None:
        """Writes the source tokenizer, and a separate target tokenizer if there is one, into the workdir."""
        super().save_assets(workdir)
        if self.pairs.target_tokenizer:
            write_atomically(workdir / TARGET_TOKENIZER, self.target_tokenizer.to_str(pretty=True))


@contextlib.contextmanager
def name_target_fields_in_errors() -> Iterator[None]:
    """Makes errors about the target tokenizer name its config fields instead of the fields of the source tokenizer."""
    try:
        yield
    except InputError as error:
        line = str(error).replace('data.tokenizer', 'pairs.target_tokenizer')
        raise InputError(line.replace('data.vocab_size', 'pairs.target_vocab_size')) from None


def source_padded_lengths(config: RunConfig) -> tuple[int, ...]:
    """Returns the lengths to which a source can be padded if it is the only row of an evaluation batch, shortest
    first."""
    most = config.data.length
    rows = DenoisingTask.without_data(config).lengths[:1] if config.has_noise else config.pairs.buckets
    return tuple(sorted({min(length, most) for length in rows} | {most}))


def check_prefixes(prefixes: tuple[str, ...], sets: dict[str, list[AnySet]]) -> None:
    """Raises InputError if source prefixes are given, but not exactly one for each dataset of a split."""
    for split, some in sets.items():
        if prefixes and some and len(prefixes) != len(some):
            raise InputError(
                f'pairs.prefix has {len(prefixes)} prefixes, and pairs.{split} {len(some)} datasets; write '
                "several prefixes as ('a','b'), because a,b is a single prefix"
            )

"""Pretrains encoder-decoders by denoising: the decoder restores documents from corrupted text, as in T5 and BART."""

import functools
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from efficient_attention.config.run import RunConfig
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.corpus.bart_noise import BartNoise
from efficient_attention.data.corpus.batches import evaluation_batches, training_batches
from efficient_attention.data.corpus.noise_interface import Noise
from efficient_attention.data.corpus.noised_rows import SHORTEST, NoisedRows
from efficient_attention.data.corpus.prepare import prepare_corpus
from efficient_attention.data.corpus.prepared_corpus import CorpusSplit, PreparedCorpus
from efficient_attention.data.corpus.span_corruption import (
    SpanCorruption,
    max_uncorrupted_tokens,
    noised_lengths,
    span_counts,
)
from efficient_attention.data.preparation.held_out_documents import few_held_out_note, held_out_share_note, split_counts
from efficient_attention.data.tokenizers.config_tokenizer import load_config_tokenizer
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.text_to_text_special_ids import (
    SequenceSpecialIds,
    TextToTextSpecialIds,
    find_text_to_text_special_ids,
)
from efficient_attention.errors import InputError
from efficient_attention.models.flops import encoder_decoder_flops
from efficient_attention.tasks.encoder_decoder import EncoderDecoderTask
from efficient_attention.tasks.task import HostBatch


class DenoisingTask(EncoderDecoderTask):
    """Denoising pretraining of an encoder-decoder; `noise.name` chooses how documents become sources and targets."""

    def __init__(self, config: RunConfig) -> None:
        """Prepares the corpus, or opens a corpus that is already prepared.

        Raises:
            InputError: the corpus, the tokenizer or the lengths do not fit the config; the message names which.
        """
        self.set_up_from_config(config)
        loaded = load_config_tokenizer(config.data, is_text_to_text=True)
        if loaded is not None:
            # This call raises InputError for an unsuitable tokenizer before the corpus is prepared.
            self.checked_special_ids(loaded)
        self.corpus: PreparedCorpus = prepare_corpus(config.data, sentinels=self.spans)
        self.tokenizer: Tokenizer = load_tokenizer(self.corpus.tokenizer_file, lowercase=True)
        ids, begin = self.checked_special_ids(self.tokenizer)
        self.ends = SequenceSpecialIds(ids.pad, ids.end, ids.start, begin)
        self.noise = self.make_noise_function(ids)
        self.fingerprint = {'corpus': self.corpus.fingerprint}

    def set_up_from_config(self, config: RunConfig) -> None:
        """Sets the task's model, objective, and source and target lengths from the run's config; reads no data."""
        super().set_up_from_config(config)
        self.data = config.data
        self.has_spans = config.noise.name == 'span_corruption'
        self.tokens, self.room = max_text_lengths(config)
        self.lengths = (
            self.room[0] + special_token_count_per_text(config),
            self.room[1] + special_token_count_per_text(config),
        )
        self.spans = span_counts(self.tokens, config.noise.density, config.noise.mean_span)[1] if self.has_spans else 0

    def checked_special_ids(self, tokenizer: Tokenizer) -> tuple[TextToTextSpecialIds, int]:
        """Returns the special token ids of a tokenizer, and the id of `pairs.begin` (-1 = none).

        Raises:
            InputError: the tokenizer lacks an end, sentinel or mask token, or has more pieces than the model.
        """
        config, begin = self.config, self.config.pairs.begin
        ids = find_text_to_text_special_ids(tokenizer, config.data.tokenizer, start=config.pairs.start)
        ids.check_fits_vocab_size(config.model.vocab_size)
        ids.check_sentinels(self.spans)
        if ids.mask is None and not self.has_spans:
            raise InputError(
                f"tokenizer {ids.name}: no [MASK] or <mask> in its vocabulary, which noise.name 'bart' needs"
            )
        found = tokenizer.token_to_id(begin) if begin else -1
        if found is None:
            raise InputError(f'pairs.begin is {begin!r}, which the tokenizer lacks')
        return ids, found

    def make_noise_function(self, ids: TextToTextSpecialIds) -> Noise:
        """Returns the noise that the config describes, which turns documents into sources and targets."""
        config = self.config.noise
        if self.has_spans:
            sentinels = np.array(ids.sentinels[: self.spans], np.int32)
            return SpanCorruption(config.density, config.mean_span, sentinels, self.tokens, self.room)
        assert (
            ids.mask is not None
        )  # For a vocabulary without a mask token, `checked_special_ids` has raised InputError.
        return BartNoise(config, ids.mask, self.corpus.vocabulary.is_continuation, self.tokens, self.room)

    @property
    def notes(self) -> list[str]:
        """Returns notes about the spans of the noise and about the size of the held-out split, one line each."""
        documents, tokens = split_counts(self.corpus.manifest)
        spans = [f'noise: texts of {self.tokens} tokens with {self.spans} spans and as many sentinels'] * self.has_spans
        share = self.data.held_out
        return [*spans, *held_out_share_note(share, documents, tokens), *few_held_out_note(share, tokens)]

    def rows_of_split(self, corpus: CorpusSplit, *, is_training: bool) -> NoisedRows:
        """Returns the noised rows of a corpus split; raises InputError if the split has too little text."""
        return NoisedRows(corpus, self.noise, self.ends, self.config.train.seed, is_training=is_training)

    @property
    def max_lengths(self) -> tuple[int, int]:
        """Returns the largest number of tokens of a source row and of a target row."""
        return self.lengths

    @functools.cached_property
    def training_data(self) -> NoisedRows:
        """Returns the noised rows of the training split."""
        return self.rows_of_split(self.corpus.train, is_training=True)

    @functools.cached_property
    def held_out_data(self) -> NoisedRows:
        """Returns the noised rows of the held-out split."""
        return self.rows_of_split(self.corpus.held_out, is_training=False)

    def rows_per_epoch(self) -> int:
        """Returns the number of training rows per epoch."""
        return self.training_data.count

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`."""
        block = HostBatchShard(self.config.train.batch_size, process_index, process_count)
        steps, seed = range(start_step, stop_step), self.config.train.seed
        return training_batches(self.corpus, self.data, block, seed=seed, steps=steps, rows=self.training_data)

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of the evaluation batches of the held-out split."""
        block = HostBatchShard(self.config.eval.batch_size, process_index, process_count)
        return evaluation_batches(self.corpus, self.data, block, seed=self.config.train.seed, rows=self.held_out_data)

    def tokens_per_step(self) -> float:
        """Returns the number of source and target tokens in a training batch, padding included."""
        return float(self.config.train.batch_size * sum(self.lengths))

    def training_flops(self) -> float:
        """Returns the floating-point operations per training step; a backward pass counts as two forward passes."""
        return 3.0 * self.config.train.batch_size * encoder_decoder_flops(self.model, *self.lengths)


def special_token_count_per_text(config: RunConfig) -> int:
    """Returns the number of special tokens that a source or a target has besides its text."""
    return 1 + bool(config.pairs.begin)


def max_text_lengths(config: RunConfig) -> tuple[int, tuple[int, int]]:
    """Returns the length of the longest text, and of the longest source and target made from it, in tokens.

    Special tokens are not counted.

    Raises:
        InputError: `data.length` or `pairs.target_length` is too short for any text.
    """
    room = (
        config.data.length - special_token_count_per_text(config),
        config.pairs.target_length - special_token_count_per_text(config),
    )
    if config.noise.name == 'span_corruption':
        spans = config.noise.density, config.noise.mean_span
        tokens = max_uncorrupted_tokens(room, *spans)
        return tokens, noised_lengths(tokens, *spans)
    if min(room) < SHORTEST:
        least = SHORTEST + special_token_count_per_text(config)
        raise InputError(f'pairs.target_length is {config.pairs.target_length}; with noise it must be {least} or more')
    return min(room), (min(room), min(room))

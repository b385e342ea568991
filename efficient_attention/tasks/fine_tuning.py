"""The fine-tuning task: batches of labelled rows, and the official metrics of the problem."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import OF_ROWS, POOLED, HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.arena.row_cache import dataset_hash
from efficient_attention.data.examples.batches import FeatureBatches
from efficient_attention.data.examples.glue import glue_sources
from efficient_attention.data.examples.labelled_text import ARENA, arena_dataset
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.sources.arrow_files import find_table_files
from efficient_attention.data.sources.text_files import digest_files
from efficient_attention.errors import InputError
from efficient_attention.models.fine_tuning import OF_SEVERAL, FineTuningModel, token_output_names
from efficient_attention.models.flops import encoder_flops
from efficient_attention.models.sentence_level_encoder import sentence_config
from efficient_attention.objectives.fine_tuning import TERM, FineTuning
from efficient_attention.tasks.encoded_examples import EncodedExamples, load_examples
from efficient_attention.tasks.problems.problem import Feature, Problem
from efficient_attention.tasks.task import HostBatch, Task

SELECTED = (
    'squad',
    'hotpotqa',
)  # formats whose file names may end in a selection, see data/examples/example_selection.py


class FineTuningTask(Task):
    """Fine-tuning of one encoder on one problem, such as classification or question answering."""

    has_short_batches = True

    def __init__(self, config: RunConfig, examples: EncodedExamples | None = None) -> None:
        """Reads the rows to evaluate on; the training files are read only at first use.

        Args:
            config: the run's config.
            examples: the config's examples, if they are already loaded.

        Raises:
            InputError: files, labels, tokenizer or model do not fit the config; the message names which.
        """
        data, model, head, fields = config.data, config.model, config.head, config.examples
        self.data, self.model, self.head, self.examples = data, model, head, fields
        self.encoded = examples or load_examples(fields, data)
        self.problem = self.encoded.problem
        if not fields.dev.strip():
            raise InputError('examples.dev is empty; it must name files to evaluate on')
        check_head(self.problem, head)
        encoder = self.problem.encoder
        if encoder.size > model.vocab_size:
            raise InputError(f'the tokenizer has {encoder.size} tokens, more than model.vocab_size {model.vocab_size}')
        if fields.has_global != (model.global_tokens > 0):
            raise InputError(
                f'examples.has_global is {fields.has_global} with model.global_tokens {model.global_tokens}; '
                'it must be True if model.global_tokens is above 0, and False otherwise'
            )
        self.batch_size, self.seed, self.eval_batch_size = (
            config.train.batch_size,
            config.train.seed,
            config.eval.batch_size,
        )
        self.objective, self.token_outputs = FineTuning(head), token_output_names(head)
        self.held_out_metrics = self.problem.metric_names | {f'{TERM}_loss'}
        self.split = 'test' if config.eval.split == 'test' else 'dev'
        # The files are hashed before any rows are prepared, so that missing files are reported at once.
        self.fingerprint = {'tokenizer': tokenizer_digest(encoder), 'examples': files_digest(fields)}
        self.dev = [
            feature for features in getattr(self.encoded, f'{self.split}_rows').values() for feature in features
        ]
        if not self.dev:
            found = getattr(fields, self.split)
            raise InputError(f'examples.{self.split} {found!r} gives no row to evaluate on')
        check_global_token_count(self.dev, model)

    def batches(self, features: Sequence[Feature], batch_size: int) -> FeatureBatches:
        """Returns batches of the given encoded rows."""
        pad, is_row_alone = self.problem.encoder.pad, self.model.is_affected_by_padding
        sizes = self.examples.buckets, self.data.length, batch_size, pad, self.seed
        return FeatureBatches(features, *sizes, is_row_alone, self.examples.sentences)

    @functools.cached_property
    def training_data(self) -> FeatureBatches:
        """Returns batches of the training rows."""
        check_global_token_count(self.encoded.train_rows, self.model)
        return self.batches(self.encoded.train_rows, self.batch_size)

    def prepare_training(self) -> None:
        """Encodes the training rows before training begins."""
        _ = self.training_data

    def rows_per_epoch(self) -> int:
        """Returns the number of training rows per epoch."""
        return len(self.encoded.train_rows)

    def make_model(self, rngs: nnx.Rngs) -> FineTuningModel:
        """Returns the encoder with its task head and initial parameters."""
        return FineTuningModel(self.model, self.head, rngs=rngs)

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`."""
        return self.training_data.training_batches(start_step, stop_step, process_index, process_count)

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of evaluation batches: of all dev splits in turn, or of the test split."""
        return self.batches(self.dev, self.eval_batch_size).evaluation_batches(process_index, process_count)

    def scores(self, outputs: Sequence[dict[str, np.ndarray]]) -> dict[str, float]:
        """Returns the official metrics of each dev split, or of the test split, from the outputs of each row."""
        scores: dict[str, float] = {}
        start = 0
        for split, examples in getattr(self.encoded, f'{self.split}_examples').items():
            features = getattr(self.encoded, f'{self.split}_rows')[split]
            predictions = self.problem.predict_from_outputs(examples, features, outputs[start : start + len(features)])
            scores |= self.problem.score(examples, predictions, split)
            start += len(features)
        return scores

    def set_thresholds(self, chosen: Mapping[str, float]) -> None:
        """Sets decision thresholds that were chosen on the dev split, to score other splits.

        Thresholds that are not given stay unchanged.
        """
        self.problem.thresholds |= {name: chosen[name] for name in self.problem.thresholds if name in chosen}

    @property
    def notes(self) -> list[str]:
        """Returns warnings about examples that were cut, left out, broken or split into windows, one line each."""
        return self.problem.notes

    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the mean losses and metrics unchanged."""
        return means

    def tokens_per_step(self) -> float:
        """Returns the mean number of tokens in a training batch, padding included."""
        return self.training_data.tokens_per_step()

    def training_flops(self) -> float:
        """Returns the floating-point operations per training step, at the mean row length of a batch.

        A backward pass counts as two forward passes.
        """
        rows = self.batch_size
        if self.head.kind in OF_SEVERAL:
            rows *= len(self.encoded.train_rows[0]['tokens'])  # each choice or tower is a separate row of the encoder
        length = max(int(self.tokens_per_step() / rows), 1)
        above = 0.0
        if self.head.sentence_layers:
            length, sentences = self.data.length, max(length // self.data.length, 1)
            level = sentence_config(self.model, self.head.sentence_layers)
            above, rows = rows * encoder_flops(level, sentences, predictions=0), rows * sentences
        return 3.0 * (rows * encoder_flops(self.model, length, predictions=0) + above)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Returns the vocabulary of the tokenizer that encodes the examples."""
        return self.problem.encoder.tokenizer.get_vocab()

    def save_assets(self, workdir: Path) -> None:
        """Writes the tokenizer into the workdir."""
        write_atomically(workdir / 'tokenizer.json', self.problem.encoder.tokenizer.to_str(pretty=True))


def check_head(problem: Problem[Any, Any], head: HeadConfig) -> None:
    """Raises InputError if the head's kind or size does not match the problem, or if an unused head field is set."""
    if head.kind != problem.head:
        raise InputError(
            f'head.kind is {head.kind!r}; examples.problem {problem.config.problem!r} needs {problem.head!r}'
        )
    check_head_output_count(problem, head)
    unread = {'outputs': head.kind not in (*OF_ROWS, 'token'), 'sentence_layers': head.kind != 'sequence'}
    unread |= dict.fromkeys(('transform', 'pooling'), head.kind not in POOLED)
    for name in (name for name, is_unread in unread.items() if is_unread):
        value, default = getattr(head, name), getattr(HeadConfig(), name)
        if value != default:
            raise InputError(
                f'head.{name} is {value!r}; a {head.kind} head does not read it, so it must be {default!r}'
            )


def check_head_output_count(problem: Problem[Any, Any], head: HeadConfig) -> None:
    """Raises InputError if a classification head and the problem have different numbers of classes."""
    if head.kind in (*OF_ROWS, 'token') and head.outputs != problem.head_output_count:
        raise InputError(
            f'head.outputs is {head.outputs}; the examples have {problem.head_output_count} '
            f'({", ".join(problem.labels)})'
        )


def check_global_token_count(features: Sequence[Feature], model: ModelConfig) -> None:
    """Raises InputError if a row has more global tokens than `model.global_tokens`."""
    # for each row, how many tokens are global
    marked = [feature['is_global'].sum(axis=-1) for feature in features if 'is_global' in feature]
    most = max((int(counts.max()) for counts in marked), default=0)
    if most > model.global_tokens:
        raise InputError(
            f'a row has {most} global tokens; model.global_tokens {model.global_tokens} must be at least as many'
        )


def files_digest(config: ExamplesConfig) -> str:
    """Returns one SHA-256 hash for the training and dev data.

    It covers the content of files, the names of TFDS datasets, and the identity of long-range datasets.
    """
    total = hashlib.sha256()
    for split in ('train', 'dev'):
        is_arena = config.format == ARENA
        digests = [dataset_hash(arena_dataset(config, split), split)] if is_arena else content_digests(config, split)
        total.update(''.join(f'{digest}\n' for digest in digests).encode())
    return total.hexdigest()


def content_digests(config: ExamplesConfig, split: str) -> list[str]:
    """Returns one text per glob or TFDS name of a split: the SHA-256 hash of the glob's files, or the name of the TFDS
    dataset."""
    names = globs_and_names_of_split(config, split)
    return [name if name.startswith('tfds:') else digest_files(_find_split_files(name, split)) for name in names]


def _find_split_files(name: str, split: str) -> tuple[Path, ...]:
    """Returns the files that match a glob; if there are none, raises InputError that names the config field."""
    try:
        return find_table_files(name)
    except InputError as error:
        raise InputError(f'examples.{split}: {error}') from None


def globs_and_names_of_split(config: ExamplesConfig, split: str) -> list[str]:
    """Returns the globs and TFDS names of a split; a suffix that selects a part of a file is cut off.

    A GLUE folder is replaced by its files.
    """
    text = getattr(config, split)
    if config.format == 'glue':
        return glue_sources(text, split)
    names = [part.strip() for part in text.split(',') if part.strip()]
    return [name.split('#')[0] for name in names] if config.format in SELECTED else names


def tokenizer_digest(encoder: TextEncoder) -> str:
    """Returns the SHA-256 hash of the tokenizer."""
    return hashlib.sha256(json.dumps(json.loads(encoder.tokenizer.to_str()), sort_keys=True).encode()).hexdigest()

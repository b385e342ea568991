"""The pretraining task of encoders: masked-LM on a prepared corpus, with or without sentence pairs."""

import functools
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from efficient_attention.atomic_files import atomic_file
from efficient_attention.config.evaluation import has_held_out
from efficient_attention.config.run import RunConfig
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.corpus.batches import evaluation_batches, evaluation_row_count, training_batches
from efficient_attention.data.corpus.masked_corpus_rows import MaskedCorpusRows, check_not_empty
from efficient_attention.data.corpus.prepare import prepare_corpus
from efficient_attention.data.corpus.prepared_corpus import PreparedCorpus
from efficient_attention.data.preparation.held_out_documents import few_held_out_note, held_out_share_note, split_counts
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.models.flops import encoder_flops
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.objectives.bert_pretraining import Pretraining
from efficient_attention.tasks.task import BatchShapes, HostBatch, Task


class PretrainingTask(Task):
    """Masked-LM pretraining of an encoder, with next-sentence or sentence-order prediction if `data.pairs` is set."""

    def __init__(self, config: RunConfig) -> None:
        """Prepares the corpus, or opens a corpus that is already prepared.

        Raises:
            InputError: the corpus, the tokenizer or the sizes do not fit the config; the message names which.
        """
        self.set_up_from_config(config)
        data, model, seed = self.data, self.model, self.seed
        self.corpus: PreparedCorpus = prepare_corpus(data)
        if self.corpus.vocabulary.size > model.vocab_size:
            raise InputError(
                f'the tokenizer has {self.corpus.vocabulary.size} tokens, more than model.vocab_size {model.vocab_size}'
            )
        if has_held_out(data.held_out, config.eval.split):
            # This call raises InputError now if the held-out split is too small, instead of at an evaluation.
            evaluation_row_count(self.corpus, data, seed)
        self.held_out_metrics = self.metric_names()
        self.fingerprint = {'corpus': self.corpus.fingerprint}
        self.unigram_losses_V = unigram_losses(self.corpus.unigram_counts)

    def set_up_from_config(self, config: RunConfig) -> None:
        """Sets the task's model, objective and batch sizes from the run's config; reads no data."""
        self.data, self.model, self.seed = config.data, config.model, config.train.seed
        self.batch_size, self.eval_batch_size = config.train.batch_size, config.eval.batch_size
        self.has_pairs = config.data.pairs != 'none'
        self.objective = Pretraining(self.has_pairs)

    def batch_shapes(self) -> BatchShapes:
        """Returns the array shapes of a global training batch."""
        ids_BL = jax.ShapeDtypeStruct((self.batch_size, self.data.length), np.int32)
        ids_BP = jax.ShapeDtypeStruct((self.batch_size, self.data.max_masked), np.int32)
        shapes = dict.fromkeys(('tokens', 'segments', 'token_types', 'positions'), ids_BL)
        shapes |= {
            'masked_positions': ids_BP,
            'masked_tokens': ids_BP,
            'masked_weights': ids_BP.update(dtype=np.float32),
        }
        if self.has_pairs:
            labels_B = jax.ShapeDtypeStruct((self.batch_size,), np.int32)
            shapes |= {'pair_labels': labels_B, 'pair_weights': labels_B.update(dtype=np.float32), 'lengths': labels_B}
        return shapes

    @property
    def notes(self) -> list[str]:
        """Returns notes about the size of the held-out split, one line each."""
        documents, tokens = split_counts(self.corpus.manifest)
        share = self.data.held_out
        return [*held_out_share_note(share, documents, tokens), *few_held_out_note(share, tokens)]

    @functools.cached_property
    def rows(self) -> MaskedCorpusRows:
        """Returns the rows of the training split; raises InputError if the split is too small."""
        return MaskedCorpusRows(self.corpus.train, self.corpus.vocabulary, self.data, self.seed)

    def rows_per_epoch(self) -> int:
        """Returns the number of training rows per epoch."""
        return self.rows.count

    def prepare_training(self) -> None:
        """Raises InputError if there is no text to train on; the rows are prepared only at first use."""
        check_not_empty(self.corpus.train)

    def make_model(self, rngs: nnx.Rngs) -> PretrainingModel:
        """Returns the encoder with its pretraining heads and initial parameters."""
        return PretrainingModel(self.model, has_pairs=self.has_pairs, rngs=rngs)

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`."""
        return training_batches(
            self.corpus,
            self.data,
            HostBatchShard(self.batch_size, process_index, process_count),
            seed=self.seed,
            steps=range(start_step, stop_step),
            rows=self.rows,
        )

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of the evaluation batches; each batch also has a unigram model's loss of each
        masked token."""
        block = HostBatchShard(self.eval_batch_size, process_index, process_count)
        for batch in evaluation_batches(self.corpus, self.data, block, seed=self.seed):
            yield batch | {'unigram_losses': self.unigram_losses_V[batch['masked_tokens']]}

    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the mean metrics with perplexity and, if measured, the gain over a unigram model.

        Names of sentence-pair metrics begin with the value of `data.pairs`, 'nsp' or 'sop'.
        """
        metrics = {name.replace('pair_', f'{self.data.pairs}_'): value for name, value in means.items()}
        if 'masked_lm_loss' not in metrics:  # distillation without labels has no masked-LM loss
            return metrics
        metrics['masked_lm_perplexity'] = math.exp(min(metrics['masked_lm_loss'], 700.0))
        if metrics.get('masked_lm_unigram_loss'):
            metrics['masked_lm_below_unigram'] = 1.0 - metrics['masked_lm_loss'] / metrics['masked_lm_unigram_loss']
        return metrics

    def metric_names(self) -> frozenset[str]:
        """Returns the names of the metrics of the held-out split."""
        means = {f'masked_lm_{name}': 1.0 for name in ('loss', 'accuracy', 'unigram_loss', 'weight')}
        pair = {f'pair_{name}': 1.0 for name in ('loss', 'accuracy', 'weight')} if self.has_pairs else {}
        return frozenset(self.finish_metrics(means | pair))

    def training_flops(self) -> float:
        """Returns the floating-point operations per training step; a backward pass counts as two forward passes."""
        return 3.0 * self.batch_size * encoder_flops(self.model, self.data.length, predictions=self.data.max_masked)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Returns the vocabulary of the corpus's tokenizer."""
        return load_tokenizer(self.corpus.tokenizer_file, lowercase=True).get_vocab()

    def save_assets(self, workdir: Path) -> None:
        """Copies the corpus's tokenizer into the workdir."""
        with atomic_file(workdir / 'tokenizer.json') as partial:
            shutil.copyfile(self.corpus.tokenizer_file, partial)


def unigram_losses(counts_V: np.ndarray) -> np.ndarray:
    """Returns each token's loss, -log p(token) in nats, under a unigram model with add-one smoothing: float32
    [vocabulary size]."""
    smoothed = counts_V.astype(np.float64) + 1.0
    return -np.log(smoothed / smoothed.sum()).astype(np.float32)

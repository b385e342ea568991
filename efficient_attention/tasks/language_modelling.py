"""The language-modelling task: a decoder predicts each token of a text from the tokens before it."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.evaluation import EvalConfig, has_held_out
from efficient_attention.config.model import ModelConfig, check_compression_rate, check_memory
from efficient_attention.config.run import RunConfig
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.preparation.held_out_documents import (
    FEW_TOKENS,
    few_held_out_note,
    held_out_share_note,
    split_counts,
)
from efficient_attention.data.text.batches import evaluation_batches, memory_evaluation_batches, training_batches
from efficient_attention.data.text.prepare import prepare_text
from efficient_attention.data.text.prepared_text import PreparedText
from efficient_attention.data.text.rows import TextRows, check_enough_targets
from efficient_attention.data.text.text_units import TextUnits, TokenizerUnits
from efficient_attention.errors import InputError, require
from efficient_attention.models.bidirectional_lm import TwoWayLanguageModel
from efficient_attention.models.decoder import Decoder, check_causal
from efficient_attention.models.flops import encoder_flops
from efficient_attention.modules.memory_compression import auxiliary_losses
from efficient_attention.objectives.language_modelling import LanguageModelling
from efficient_attention.tasks.pretraining import unigram_losses
from efficient_attention.tasks.task import BatchShapes, HostBatch, Task

BITS = {'bytes': 'bits_per_byte', 'characters': 'bits_per_character', 'pixels': 'bits_per_dimension'}
PERPLEXITIES = {'tokenizer': 'causal_lm_perplexity', 'words': 'word_perplexity'}


class LanguageModellingTask(Task):
    """Causal language modelling on bytes, characters, words or tokenizer pieces of a text, or on image bytes."""

    has_training_text = True  # False = all text is held out, and the vocabulary is that of a trained model

    def __init__(self, config: RunConfig, units: TextUnits | None = None) -> None:
        """Prepares the text, or opens a text that is already prepared.

        Args:
            config: the run's config.
            units: the vocabulary of a trained model, to evaluate it on text of which nothing is trained on; None = the
                vocabulary of the config.

        Raises:
            InputError: text, tokenizer, attention or sizes do not fit the config; the message names which.
        """
        self.set_up_from_config(config)
        self.has_training_text = units is None
        data, model, evaluation = self.data, self.model, self.evaluation
        self.context = evaluation.context or data.length
        self.stride = evaluation.stride or self.context
        self.text: PreparedText = prepare_text(data, units=units)
        self.unigram_losses_V = unigram_losses(self.text.unigram_counts) if self.has_training_text else None
        size = self.text.units.size
        if size > model.vocab_size:
            raise InputError(
                f'the text has a vocabulary of {size} {data.units}, above model.vocab_size {model.vocab_size}'
            )
        if self.has_training_text:
            check_enough_targets(self.rows('train', data.length))
        if data.units == 'pixels' and (model.memory_length or self.evaluation_model.memory_length):
            raise InputError("memory_length must be 0 with data.units 'pixels': memory would go from image to image")
        if data.units == 'pixels' and (self.context, self.stride) != (data.length, data.length):
            raise InputError(
                f'eval.context {self.context} and eval.stride {self.stride} cut images; with data.units '
                f"'pixels' they must be 0 or {data.length}"
            )
        self.check_evaluation()
        if has_held_out(data.held_out, evaluation.split):
            # This call raises InputError now if the split is too small, instead of at the first evaluation.
            self.evaluation_batches(0, 1)
        self.held_out_metrics = self.metric_names()
        self.fingerprint = {'text': self.text.fingerprint}

    def set_up_from_config(self, config: RunConfig) -> None:
        """Sets the task's model, objective and batch sizes from the run's config; reads no data."""
        if not config.model.directions_apart:
            check_causal(config.model)
        self.data, self.model, self.seed = config.data, config.model, config.train.seed
        self.batch_size, self.evaluation = config.train.batch_size, config.eval
        self.evaluation_model = evaluation_model_config(config.model, config.eval)
        check_memory(self.evaluation_model)
        self.objective = LanguageModelling(config.model)

    def batch_shapes(self) -> BatchShapes:
        """Returns the array shapes of a global training batch."""
        ids_BL = jax.ShapeDtypeStruct((self.batch_size, self.data.length), np.int32)
        shapes = dict.fromkeys(('tokens', 'targets', 'segments'), ids_BL) | {'weights': ids_BL.update(dtype=np.float32)}
        if not self.data.cut_at_documents and self.data.batches == 'windows':
            shapes['lengths'] = ids_BL.update(shape=(self.batch_size,))
        return shapes

    def check_evaluation(self) -> None:
        """Raises InputError if the split has too little text for the configured evaluation."""
        split, tokens = self.evaluation.split, len(self.text.splits[self.evaluation.split])
        if not self.has_training_text:
            if tokens < 2:
                raise InputError(f'source {self.data.source!r} has fewer than 2 tokens, so nothing can be predicted')
            return
        if split == 'test' and not tokens:
            raise InputError("the run has no test split: it needs data.test above 0, with data.splitting 'end'")
        if has_held_out(self.data.held_out, split) and self.evaluation.context >= max(tokens, 2):
            raise InputError(f'eval.context is {self.evaluation.context}; the {split} text has {tokens} tokens')

    @property
    def notes(self) -> list[str]:
        """Returns warnings about the text and its splits, one line each."""
        documents, tokens = split_counts(self.text.manifest)
        if not self.has_training_text:
            few = f'{self.data.source} has {tokens[1]:,} tokens, so few that a score on them is partly chance'
            return [few] if tokens[1] < FEW_TOKENS else []
        share = self.data.held_out
        notes = held_out_share_note(share, documents, tokens) if self.data.splitting == 'documents' else []
        return [*notes, *few_held_out_note(share, tokens)]

    @property
    def vocabulary(self) -> dict[str, int] | None:
        """Returns the tokenizer's pieces and their ids; None if ids are bytes, characters, words or pixels."""
        units = self.text.units
        return units.tokenizer.get_vocab() if isinstance(units, TokenizerUnits) else None

    def rows_per_epoch(self) -> int:
        """Returns the number of windows into which the training text can be cut without overlap.

        Training windows overlap, so this is only the size of an epoch.
        """
        return self.rows('train', self.data.length).target_count // self.data.length

    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the decoder, or the bidirectional language model, with initial parameters."""
        return make_language_model(self.model, rngs)

    def make_evaluation_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the language model with the memory lengths of the evaluation."""
        return make_language_model(self.evaluation_model, rngs)

    @property
    def evaluation_objective(self) -> LanguageModelling:
        """Returns the objective with the memory lengths of the evaluation."""
        return LanguageModelling(self.evaluation_model)

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`."""
        return training_batches(
            self.rows('train', self.data.length),
            self.data.batches,
            HostBatchShard(self.batch_size, process_index, process_count),
            seed=self.seed,
            steps=range(start_step, stop_step),
        )

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of evaluation batches, which cover each token of the split except the first.

        They include each token's loss under a unigram model, if the task has training text.
        """
        rows = self.rows(self.evaluation.split, self.context)
        block = HostBatchShard(self.evaluation.batch_size, process_index, process_count)
        if self.evaluation_model.memory_length:
            batches = memory_evaluation_batches(rows, block)
        else:
            batches = evaluation_batches(rows, block, stride=self.stride)
        losses_V = self.unigram_losses_V
        if losses_V is None:
            return batches
        return (batch | {'unigram_losses': losses_V[batch['targets']]} for batch in batches)

    def rows(self, split: str, length: int) -> TextRows:
        """Returns a split of the text as rows of `length` tokens, with or without document boundaries as configured."""
        return self.text.rows(split, length, cut_at_documents=self.data.cut_at_documents)

    @property
    def evaluation_protocol(self) -> dict[str, str | int]:
        """Returns how evaluation cuts the text into windows or segments, and the lengths of these pieces.

        It is 'memory', 'no_context' (separate segments) or 'sliding_window'.

        With memory, the text is cut into `streams` equal parts. Each part starts with an empty memory.
        """
        model = self.evaluation_model
        name = 'no_context' if self.stride == self.context else 'sliding_window'
        text = {'split': self.evaluation.split} if self.has_training_text else {'source': self.data.source}
        protocol: dict[str, str | int] = {
            **text,
            'protocol': 'memory' if model.memory_length else name,
            'context': self.context,
            'stride': self.stride,
            'cut_at_documents': self.data.cut_at_documents,
        }
        if model.memory_length:
            protocol |= {'memory_length': model.memory_length, 'clamp_length': model.clamp_length}
            protocol |= {'same_length': model.same_length, 'streams': self.evaluation.batch_size}
        if model.compressed_length:
            protocol |= {'compressed_length': model.compressed_length, 'compression_rate': model.compression_rate}
        return protocol

    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the mean metrics with bits or perplexity per unit and, if measured, the gain over a unigram model.

        On other text than the run's own, models with other units also get the bits per byte of the documents, with
        which models of different vocabularies can be compared.
        """
        metrics = dict(means)
        loss = metrics['causal_lm_loss']
        if self.data.units in BITS:
            metrics[BITS[self.data.units]] = loss / math.log(2)
        else:
            metrics[PERPLEXITIES[self.data.units]] = math.exp(min(loss, 700.0))
        if not self.has_training_text and self.data.units in ('tokenizer', 'words', 'characters'):
            nats = loss * metrics['causal_lm_weight']
            metrics['bits_per_byte'] = nats / math.log(2) / self.text.manifest['counts']['held_out']['bytes']
        if metrics.get('causal_lm_unigram_loss'):
            metrics['causal_lm_below_unigram'] = 1.0 - loss / metrics['causal_lm_unigram_loss']
        return metrics

    def metric_names(self) -> frozenset[str]:
        """Returns the names of the metrics of the held-out split."""
        measured = ('loss', 'accuracy', *['unigram_loss'] * self.has_training_text, 'weight')
        names = [f'causal_lm_{name}' for name in measured]
        names += [f'backward_lm_{name}' for name in ('loss', 'accuracy', 'weight')] * self.model.directions_apart
        names += [f'{term}_{name}' for term in auxiliary_losses(self.evaluation_model) for name in ('loss', 'weight')]
        return frozenset(self.finish_metrics(dict.fromkeys(names, 1.0)))

    def training_flops(self) -> float:
        """Returns the floating-point operations per training step of a model that predicts at every position.

        A backward pass counts as two forward passes.
        """
        model, length = self.model, self.data.length
        width = model.embedding_width if model.tied_output else model.width
        # A chunked loss computes the tails of an adaptive softmax only for rare tokens, so the tails are not counted.
        cutoffs = model.adaptive_cutoffs if model.loss_chunk else ()
        words = cutoffs[0] + len(cutoffs) if cutoffs else model.vocab_size
        head = width * words + (model.width * width if width != model.width else 0)
        return 3.0 * self.batch_size * (encoder_flops(model, length, predictions=0) + 2.0 * length * head)

    def save_assets(self, workdir: Path) -> None:
        """Writes the vocabulary of the text into the workdir, if the text has a vocabulary."""
        self.text.units.save(workdir)


def make_language_model(model: ModelConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Returns the language model that a model config describes, with initial parameters."""
    return TwoWayLanguageModel(model, rngs=rngs) if model.directions_apart else Decoder(model, rngs=rngs)


def evaluation_model_config(model: ModelConfig, evaluation: EvalConfig) -> ModelConfig:
    """Returns the model's config with the memory lengths of the evaluation.

    Raises:
        InputError: `eval.stride` is set together with memory, which already gives every token its context; or a
            compressed memory is set without memory, or without `model.compression`; or the segment length is not a
            multiple of the compression rate.
    """
    chosen = {name: getattr(evaluation, name) for name in ('memory_length', 'compressed_length', 'clamp_length')}
    chosen = {name: value for name, value in chosen.items() if value >= 0}
    has_memory = chosen.get('memory_length', model.memory_length) > 0
    slots = chosen.get('compressed_length', 0)
    require(has_memory or not slots, 'eval.compressed_length', slots, '0 without memory, which tokens leave for it')
    has_slots = model.compression != 'none' or not slots
    require(has_slots, 'eval.compressed_length', slots, '0 or -1 in a run without model.compression')
    chosen |= {} if has_memory else {'compressed_length': 0}
    chosen['same_length'] = has_memory and (model.same_length or evaluation.same_length)
    model = dataclasses.replace(model, **chosen)
    check_compression_rate(model, {'eval.context': evaluation.context})
    if model.memory_length and evaluation.stride:
        raise InputError(
            f'eval.stride is {evaluation.stride} with a memory of {model.memory_length} tokens; set one of '
            'eval.stride and eval.memory_length to 0 (flag --memory_length 0)'
        )
    return model

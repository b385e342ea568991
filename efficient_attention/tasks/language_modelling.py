"""Language modelling with a decoder: each token of a text from those before it."""

import math
from collections.abc import Iterator
from pathlib import Path

from flax import nnx

from efficient_attention.data.config import DataConfig
from efficient_attention.data.prepare_text import prepare_text
from efficient_attention.data.text_batches import check_length, text_batches, text_evaluation_batches
from efficient_attention.data.token_text import TokenText
from efficient_attention.errors import InputError
from efficient_attention.models.config import ModelConfig
from efficient_attention.models.decoder import Decoder, check_causal
from efficient_attention.models.flops import encoder_flops
from efficient_attention.objectives.language_modelling import LanguageModelling
from efficient_attention.tasks.evaluation_config import EvalConfig
from efficient_attention.tasks.pretraining import unigram_losses
from efficient_attention.tasks.task import HostBatch, Task

BITS = {'bytes': 'bits_per_byte', 'characters': 'bits_per_character'}  # a tokenizer's pieces have a perplexity


class LanguageModellingTask(Task):
    """Causal language modelling on the bytes, characters or pieces of a text."""

    def __init__(
        self, data: DataConfig, model: ModelConfig, *, batch_size: int, evaluation: EvalConfig, seed: int
    ) -> None:
        """Prepares the text, or opens it where that was done before.

        Raises:
            InputError: the text, the tokenizer, the attention or the sizes do not serve; names which.
        """
        check_causal(model)
        self.data, self.model, self.seed = data, model, seed
        self.batch_size, self.evaluation = batch_size, evaluation
        self.context = evaluation.context or data.length
        self.stride = evaluation.stride or self.context
        self.text: TokenText = prepare_text(data)
        size = self.text.units.size
        if size > model.vocab_size:
            raise InputError(
                f'the text has a vocabulary of {size} {data.units}, above model.vocab_size {model.vocab_size}'
            )
        check_length(self.text.splits['train'], data.length)
        self.evaluation_batches(0, 1)  # raises now what would else end the run at its first evaluation
        self.objective = LanguageModelling()
        self.held_out_metrics = self.metric_names()
        self.fingerprint = {'text': self.text.fingerprint}
        self.unigram_losses_V = unigram_losses(self.text.unigram_counts)

    def make_model(self, rngs: nnx.Rngs) -> Decoder:
        """The decoder."""
        return Decoder(self.model, rngs=rngs)

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """See `Task`."""
        return text_batches(
            self.text.splits['train'],
            self.data,
            batch_size=self.batch_size,
            seed=self.seed,
            start_step=start_step,
            stop_step=stop_step,
            process_index=process_index,
            process_count=process_count,
        )

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """See `Task`; each token but the first of the split with what a unigram model loses on it."""
        batches = text_evaluation_batches(
            self.text.splits[self.evaluation.split],
            self.context,
            stride=self.stride,
            batch_size=self.evaluation.batch_size,
            process_index=process_index,
            process_count=process_count,
        )
        return (batch | {'unigram_losses': self.unigram_losses_V[batch['targets']]} for batch in batches)

    @property
    def protocol(self) -> dict[str, str | int]:
        """How the text is evaluated: in segments that know nothing of one another, or by a sliding window."""
        name = 'no_context' if self.stride == self.context else 'sliding_window'
        return {'split': self.evaluation.split, 'protocol': name, 'context': self.context, 'stride': self.stride}

    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Adds bits per byte or character, or a perplexity; compares with the unigram model where that was counted."""
        metrics = dict(means)
        loss = metrics['causal_lm_loss']
        if self.data.units in BITS:
            metrics[BITS[self.data.units]] = loss / math.log(2)
        else:
            metrics['causal_lm_perplexity'] = math.exp(min(loss, 700.0))
        if metrics.get('causal_lm_unigram_loss'):
            metrics['causal_lm_below_unigram'] = 1.0 - loss / metrics['causal_lm_unigram_loss']
        return metrics

    def metric_names(self) -> frozenset[str]:
        """The names of the held-out metrics."""
        return frozenset(
            self.finish_metrics({f'causal_lm_{name}': 1.0 for name in ('loss', 'accuracy', 'unigram_loss', 'weight')})
        )

    def training_flops(self) -> float:
        """See `Task`; backward counts twice the forward, and every position is predicted."""
        model, length = self.model, self.data.length
        width = model.embedding_width if model.tied_output else model.width
        head = width * model.vocab_size + (model.width * width if width != model.width else 0)
        return 3.0 * self.batch_size * (encoder_flops(model, length, predictions=0) + 2.0 * length * head)

    def save_assets(self, workdir: Path) -> None:
        """Writes the vocabulary, where there is one."""
        self.text.units.save(workdir)

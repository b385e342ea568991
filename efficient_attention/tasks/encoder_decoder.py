"""The common base class of two encoder-decoder tasks: training on text-to-text pairs, and denoising of documents."""

import abc
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.run import RunConfig
from efficient_attention.data.preparation.cache_folder import TOKENIZER
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.objectives.text_to_text import TERM, TextToText
from efficient_attention.tasks.task import BatchShapes, Task


class EncoderDecoderTask(Task, abc.ABC):
    """The model, objective, metrics and tokenizer of an encoder-decoder run."""

    tokenizer: Tokenizer  # tokenizer of sources, and of targets unless they have a separate tokenizer
    held_out_metrics = frozenset(f'{TERM}_{name}' for name in ('loss', 'cross_entropy', 'accuracy', 'weight'))

    def set_up_from_config(self, config: RunConfig) -> None:
        """Sets the task's model and objective from the run's config; reads no data."""
        self.config, self.model = config, config.model
        smoothing, z_loss = config.train.label_smoothing, config.train.z_loss
        self.objective = TextToText(label_smoothing=smoothing, z_loss=z_loss)

    @property
    def evaluation_objective(self) -> TextToText:
        """Returns the loss without label smoothing, so that evaluations report the cross-entropy."""
        return TextToText()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Returns the pieces of the source tokenizer and their ids."""
        return self.tokenizer.get_vocab()

    @property
    @abc.abstractmethod
    def training_data(self) -> object:
        """Returns the rows or batches to train on, made at first use."""

    @property
    @abc.abstractmethod
    def held_out_data(self) -> object:
        """Returns the rows or batches to evaluate on, made at first use."""

    @property
    @abc.abstractmethod
    def max_lengths(self) -> tuple[int, int]:
        """Returns the largest number of tokens of a source row and of a target row."""

    def batch_shapes(self) -> BatchShapes:
        """Returns the array shapes of a global training batch, with rows of the maximum lengths."""
        source, target = (
            jax.ShapeDtypeStruct((self.config.train.batch_size, length), np.int32) for length in self.max_lengths
        )
        ids = dict.fromkeys(('source', 'source_segments'), source)
        ids |= dict.fromkeys(('tokens', 'targets', 'segments'), target)
        if self.config.pairs.packed:
            ids |= {'source_positions': source, 'positions': target}
        else:
            ids |= dict.fromkeys(('source_lengths', 'lengths'), target.update(shape=target.shape[:1]))
        return ids | {'weights': target.update(dtype=np.float32)}

    def prepare_training(self) -> None:
        """Makes the training data, and the held-out data if there is any, before training begins."""
        _ = self.training_data
        if self.config.has_evaluation_data:
            _ = self.held_out_data

    def make_model(self, rngs: nnx.Rngs) -> EncoderDecoder:
        """Returns the encoder-decoder with initial parameters."""
        return EncoderDecoder(self.model, rngs=rngs)

    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the mean losses and metrics unchanged."""
        return means

    def save_assets(self, workdir: Path) -> None:
        """Writes the source tokenizer into the workdir."""
        write_atomically(workdir / TOKENIZER, self.tokenizer.to_str(pretty=True))

"""The interface of a training task, which the training loop and the evaluation loop call."""

import abc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.run import RunConfig
from efficient_attention.objectives.objective import Objective

HostBatch = dict[str, np.ndarray]
BatchShapes = dict[str, jax.ShapeDtypeStruct]


class Task(abc.ABC):
    """A training task: the data, objective and metrics of a run."""

    objective: Objective
    # names of the metrics that `finish_metrics` and `scores` return for the held-out split
    held_out_metrics: frozenset[str]
    # Names of the per-token outputs that an evaluation gathers for each row; None = it gathers no outputs.
    token_outputs: frozenset[str] | None = None
    has_short_batches = False  # whether rows of weight 0 pad the last training batch of an epoch
    has_data = True  # whether the task has data; False if `without_data` made it
    # name -> SHA-256 of data, tokenizer and so on; a checkpoint is only valid with the same hashes
    fingerprint: dict[str, str]

    @abc.abstractmethod
    def __init__(self, config: RunConfig) -> None:
        """Sets up the task from the config and prepares its data; raises InputError if data or config is invalid."""

    def set_up_from_config(self, config: RunConfig) -> None:  # noqa: ARG002
        """Sets the task's attributes for model, objective and batch shapes from the run's config; reads no data.

        Raises:
            InputError: the config is invalid with any data.
        """
        raise NotImplementedError

    @classmethod
    def without_data(cls, config: RunConfig) -> Self:
        """Returns a task with model, objective and batch shapes but without data, for estimates of memory and time."""
        task = cls.__new__(cls)
        task.has_data = False
        task.set_up_from_config(config)
        return task

    def batch_shapes(self) -> BatchShapes:
        """Returns the array shapes of a global training batch; works without data."""
        raise NotImplementedError

    @property
    def evaluation_objective(self) -> Objective:
        """Returns the objective of an evaluation; by default the training objective."""
        return self.objective

    def make_evaluation_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the model for evaluations, with the training model's parameters; by default the training model."""
        return self.make_model(rngs)

    @property
    def vocabulary(self) -> dict[str, int] | None:
        """Returns the tokenizer's pieces and their ids; None if token ids do not come from a tokenizer."""
        return None

    @property
    def target_vocabulary(self) -> dict[str, int] | None:
        """Returns the pieces and ids of the tokenizer of targets; None if there is no tokenizer."""
        return self.vocabulary

    @property
    def evaluation_protocol(self) -> dict[str, str | int]:
        """Returns a description of how the held-out split is evaluated, for the evaluation result; empty if there is
        only one way."""
        return {}

    @abc.abstractmethod
    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the model with initial parameters."""

    @abc.abstractmethod
    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of each global training batch; a batch does not depend on earlier batches."""

    @abc.abstractmethod
    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of evaluation batches, each example once; rows of weight 0 pad the last batch."""

    @abc.abstractmethod
    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the metrics to report, computed from the means of the objective's losses and metrics."""

    def prepare_training(self) -> None:  # noqa: B027  most tasks prepare everything in `__init__`
        """Prepares data that only training reads; raises the errors that `training_batches` would raise."""

    def rows_per_epoch(self) -> int | None:
        """Returns the number of rows in one epoch of training data; None if batches have different numbers of rows."""
        return None

    @property
    def notes(self) -> list[str]:
        """Returns warnings about the data, such as rows that were cut, one line each."""
        return []

    def scores(self, outputs: Sequence[dict[str, np.ndarray]]) -> dict[str, float]:  # noqa: ARG002
        """Returns metrics of the held-out split, computed from the model outputs of each row; {} if the evaluation
        gathers no outputs."""
        return {}

    def tokens_per_step(self) -> float | None:
        """Returns the tokens of a training batch, padding included; None = every row has `data.length` tokens."""
        return None

    @abc.abstractmethod
    def training_flops(self) -> float:
        """Returns the model's floating-point operations per training step, without recomputation.

        Without data, every row of the batch counts with the maximum length.
        """

    @abc.abstractmethod
    def save_assets(self, workdir: Path) -> None:
        """Writes files that users of the checkpoint need, such as the tokenizer, into the workdir."""

"""The interface of a task, used by the training loop and the evaluation loop."""

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
    """Data, objective and metrics of a run."""

    objective: Objective
    held_out_metrics: frozenset[str]  # metric names that `finish_metrics` and `scores` return for the held-out split
    # Names of per-token outputs, if an evaluation gathers the outputs of each row; None = outputs are not gathered.
    token_outputs: frozenset[str] | None = None
    has_short_batches = False  # whether the last training batch of an epoch is padded with rows of weight 0
    has_data = True  # False for a task made by `without_data`
    fingerprint: dict[str, str]  # name -> SHA-256 of data, tokenizer, ...; a checkpoint is only valid with the same

    @abc.abstractmethod
    def __init__(self, config: RunConfig) -> None:
        """Reads the config with `set_up`, then prepares the data; raises InputError if data or config is invalid."""

    def set_up(self, config: RunConfig) -> None:  # noqa: ARG002
        """Reads the config fields that model, objective and `batch_shapes` depend on; reads no data.

        Raises:
            InputError: the config is invalid with any data.
        """
        raise NotImplementedError

    @classmethod
    def without_data(cls, config: RunConfig) -> Self:
        """Returns the task for a plan: model, objective and batch shapes without data."""
        task = cls.__new__(cls)
        task.has_data = False
        task.set_up(config)
        return task

    def batch_shapes(self) -> BatchShapes:
        """Returns the array shapes of a global training batch; works without data."""
        raise NotImplementedError

    @property
    def evaluation_objective(self) -> Objective:
        """The objective of an evaluation; by default the training objective."""
        return self.objective

    def make_evaluation_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the model that an evaluation runs, with the same parameters; by default the training model."""
        return self.make_model(rngs)

    @property
    def vocabulary(self) -> dict[str, int] | None:
        """The tokenizer's pieces and their ids; None if ids do not come from a tokenizer."""
        return None

    @property
    def target_vocabulary(self) -> dict[str, int] | None:
        """Like `vocabulary`, for the tokenizer of the targets; None if there is no tokenizer."""
        return self.vocabulary

    @property
    def evaluation_protocol(self) -> dict[str, str | int]:
        """How the held-out split is evaluated, for the evaluation result; empty if there is only one way."""
        return {}

    @abc.abstractmethod
    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the model with initial parameters."""

    @abc.abstractmethod
    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """Yields this process's rows of each global batch; a step's batch does not depend on earlier batches."""

    @abc.abstractmethod
    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """Yields this process's rows of held-out batches, each example once; rows of weight 0 pad the last batch."""

    @abc.abstractmethod
    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the metrics to report, from the means of the objective's sums."""

    def prepare_training(self) -> None:  # noqa: B027  most tasks prepare everything in `__init__`
        """Prepares data that only training reads; raises the errors that `training_batches` would raise."""

    def rows_per_epoch(self) -> int | None:
        """Returns the rows of one epoch of training data; None if the number of rows per batch varies."""
        return None

    @property
    def notes(self) -> list[str]:
        """Warnings about the data, such as rows that were cut, one line each."""
        return []

    def scores(self, outputs: Sequence[dict[str, np.ndarray]]) -> dict[str, float]:  # noqa: ARG002
        """Returns metrics of the held-out split from the outputs of each row; {} if outputs are not gathered."""
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

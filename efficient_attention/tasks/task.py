"""The interface of a task, as the loops of training and evaluation use it."""

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
    held_out_metrics: frozenset[str]  # names that `finish_metrics` gives for the held-out split
    # Where an evaluation gathers what the model says of each row: the names of the outputs with an axis of tokens.
    token_outputs: frozenset[str] | None = None
    has_short_batches = False  # whether rows of weight 0 fill up the last training batch of an epoch
    has_data = True  # False in a plan, see `without_data`
    fingerprint: dict[str, str]  # what a checkpoint is only valid with: name -> SHA-256 of data, tokenizer, ...

    @abc.abstractmethod
    def __init__(self, config: RunConfig) -> None:
        """Takes the config with `set_up`, then prepares the data; raises InputError where it does not serve."""

    def set_up(self, config: RunConfig) -> None:  # noqa: ARG002
        """Takes from the config what model, objective and `batch_shapes` need; reads no data.

        Raises:
            InputError: the config is bad whatever the data are.
        """
        raise NotImplementedError

    @classmethod
    def without_data(cls, config: RunConfig) -> Self:
        """The task for a plan, with the model, the objective and the shapes of its batches, but without any batch."""
        task = cls.__new__(cls)
        task.has_data = False
        task.set_up(config)
        return task

    def batch_shapes(self) -> BatchShapes:
        """The arrays of a global training batch, for a task that `without_data` serves."""
        raise NotImplementedError

    @property
    def evaluation_objective(self) -> Objective:
        """The objective of an evaluation: by default the same."""
        return self.objective

    def make_evaluation_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """The model as an evaluation runs it, with the same parameters: by default the same."""
        return self.make_model(rngs)

    @property
    def vocabulary(self) -> dict[str, int] | None:
        """The id of each piece of a tokenizer's; None where ids do not come from one."""
        return None

    @property
    def target_vocabulary(self) -> dict[str, int] | None:
        """The same of the tokenizer that targets have, the same one or another; None where there are no targets."""
        return self.vocabulary

    @property
    def protocol(self) -> dict[str, str | int]:
        """How the held-out split is evaluated, for the result of an evaluation; empty where there is one way alone."""
        return {}

    @abc.abstractmethod
    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """The model with initial parameters."""

    @abc.abstractmethod
    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[HostBatch]:
        """This process's rows of each global batch; step s gives the same batch whatever came before."""

    @abc.abstractmethod
    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[HostBatch]:
        """This process's rows of held-out batches, each example once; rows of weight 0 fill up the last one."""

    @abc.abstractmethod
    def finish_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """The metrics to report, from the means of the objective's sums."""

    def prepare_training(self) -> None:  # noqa: B027  most tasks are prepared when they are made
        """Reads what training alone needs; raises what `training_batches` would raise about it."""

    def rows_per_epoch(self) -> int | None:
        """Rows that the training data has before it repeats itself; None where a batch may have any number of rows."""
        return None

    @property
    def notes(self) -> list[str]:
        """What happened to the data that a user should know, a line each, such as rows that were cut."""
        return []

    def scores(self, outputs: Sequence[dict[str, np.ndarray]]) -> dict[str, float]:  # noqa: ARG002
        """Metrics of the held-out split from what the model says of each row, where that is gathered."""
        return {}

    def tokens_per_step(self) -> float | None:
        """Tokens of a training batch, padding included; None = every row has `data.length`."""
        return None

    @abc.abstractmethod
    def training_flops(self) -> float:
        """Floating-point operations of the model in one training step, recomputation not counted.

        Without data every row of the batch counts as the longest.
        """

    @abc.abstractmethod
    def save_assets(self, workdir: Path) -> None:
        """Puts into the workdir what a user of the checkpoint needs beside it, such as the tokenizer."""

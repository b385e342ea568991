"""Decides when a run stops early, because its validation metric has stopped improving."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.workdir.metrics import STILL_PRUNING


class Patience:
    """Counts how many evaluations in a row have not improved the metric `checkpoint.best_metric`, for early stopping.

    Args:
        evaluations: the run ends after this many evaluations without a better value; 0 = it never ends early.
        config: names the metric, and whether higher or lower is better.
        earlier: the metrics of a resumed run's earlier evaluations, oldest first.
    """

    def __init__(self, evaluations: int, config: CheckpointConfig, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._evaluations, self._name = evaluations, config.best_metric
        self._sign = 1.0 if config.best_mode == 'max' else -1.0
        self._best, self._since_best, self._is_counted = -math.inf, 0, True
        for metrics in earlier:
            self.add_evaluation(metrics)

    def add_evaluation(self, metrics: Mapping[str, Any]) -> None:
        """Counts one evaluation, given its metrics. Evaluations before the end of pruning are ignored."""
        if metrics.get(STILL_PRUNING):
            self._is_counted = False
            return
        self._is_counted = True
        value = self._sign * metrics.get(self._name, -math.inf)
        is_better = value > self._best
        self._best = value if is_better else self._best
        self._since_best = 0 if is_better else self._since_best + 1

    @property
    def is_best(self) -> bool:
        """Whether the last evaluation is the best one so far."""
        return self._is_counted and self._since_best == 0

    @property
    def is_patience_exhausted(self) -> bool:
        """Whether the run should stop early, because too many evaluations in a row have not improved the metric."""
        return 0 < self._evaluations <= self._since_best

    def describe_early_stop(self) -> str:
        """Returns the reason for an early stop as a short text."""
        return f'{self._since_best} evaluations without a better {self._name} than {self._sign * self._best:.4g}'

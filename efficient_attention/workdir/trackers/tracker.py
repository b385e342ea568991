"""Defines the interface of all experiment trackers, and the facts about a run that a tracker gets."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

# How a run ends: complete, stopped by a signal or a kill (it can be resumed), or by an error.
End = Literal['finished', 'stopped', 'failed']
PROJECT = 'efficient-attention'  # default name of the project or experiment that contains the entries of all runs


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """The facts about a run that a tracker shows.

    Args:
        workdir: folder of the run.
        config: the config fields by dotted name, such as 'train.steps'; JSON values.
        start_step: step of the restored checkpoint; 0 for a new run.
    """

    workdir: Path
    config: Mapping[str, Any]
    start_step: int

    @property
    def name(self) -> str:
        """The name of the run's folder; for one seed of several, '<name of the parent folder>-<name of the folder>'."""
        folder = self.workdir
        return f'{folder.parent.name}-{folder.name}' if folder.name.startswith('seed_') else folder.name


class Tracker(Protocol):
    """Interface of all experiment trackers. Each method may raise any error; the tracker is then turned off."""

    def start(self) -> str:
        """Creates the entry of the run, or continues it. Returns its address for the terminal; '' = none."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of one split after `step` updates, under names such as 'train/loss'. All are finite."""

    def finish(self, end: End) -> None:
        """Writes all pending metrics, and marks the entry with how the run ended."""


def split_of(metrics: Mapping[str, float]) -> str:
    """Returns the split of metrics with names such as 'held_out/loss'."""
    return next(iter(metrics)).partition('/')[0]

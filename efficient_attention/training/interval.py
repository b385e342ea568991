"""The steps between two lines of the training log: what is summed, and what a checkpoint keeps of it."""

import math
from collections.abc import Mapping
from typing import Any

from efficient_attention.errors import InputError

INTERVAL = 'interval'  # its name in the record of a checkpoint


class Interval:
    """Sums of the metrics of the steps since the last line of the log.

    A step that was skipped has no share in the means, unless all were. Sums are taken in the order of the steps, so
    that an interval that a checkpoint has cut gives the means of one that was not, bit by bit.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0  # steps of the whole run so far
        self._counted = 0  # steps that were not skipped
        self._sums: dict[str, float] = {}  # of those, or of all while there are none

    def add(self, metrics: Mapping[str, float], *, is_skipped: bool) -> None:
        """Adds a step; `metrics` holds 'skipped', the number of steps skipped so far."""
        self.steps += 1
        self.skipped = int(metrics['skipped'])
        if is_skipped and self._counted:
            return
        if not is_skipped and not self._counted:
            self._sums = {}
        self._counted += not is_skipped
        for name, value in metrics.items():
            if name != 'skipped':
                self._sums[name] = self._sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """The means and 'skipped', which is the number so far; {} of no steps."""
        shares = {name: total / (self._counted or self.steps) for name, total in self._sums.items()}
        return shares | ({'skipped': self.skipped} if self.steps else {})

    def as_json(self) -> dict[str, Any]:
        """What `restored` reads."""
        sums = [[name, total if math.isfinite(total) else str(total)] for name, total in self._sums.items()]
        return {'steps': self.steps, 'skipped': self.skipped, 'counted': self._counted, 'sums': sums}

    @classmethod
    def restored(cls, saved: Any) -> 'Interval':
        """An interval as it was when `as_json` was called.

        Raises:
            InputError: this is not what `as_json` gives.
        """
        found = cls()
        try:
            found.steps, found.skipped, found._counted = (int(saved[name]) for name in ('steps', 'skipped', 'counted'))
            found._sums = {str(name): float(total) for name, total in saved['sums']}  # in their order
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError(
                f'{INTERVAL} of a checkpoint is {str(saved)[:40]!r}, which are no sums of metrics'
            ) from None
        return found

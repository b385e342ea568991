"""Fields of the config group `checkpoint`: the steps at which a run is saved, and what is kept."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When a run is saved and what is kept: the fields of a config's `checkpoint` group.

    Raises:
        InputError: a field is out of its range; names the field, its value and what is allowed.
    """

    every_steps: int = 1000  # steps between checkpoints
    keep: int = 3  # newest checkpoints kept
    keep_best: int = 0  # checkpoints kept for their metric, beside the newest ones
    best_metric: str = ''  # name among the metrics given at save time; '' = none
    best_mode: str = 'min'  # 'min' | 'max': which value of it is best
    when_save_fails: str = 'continue'  # 'continue' to the next save | 'stop' at once; several processes always stop
    save_best: bool = False  # save at every evaluation that is the best so far, too; else only every `every_steps`

    def __post_init__(self) -> None:
        check_within('checkpoint.every_steps', self.every_steps, 1)
        check_within('checkpoint.keep', self.keep, 1)
        check_within('checkpoint.keep_best', self.keep_best, 0)
        check_one_of('checkpoint.best_mode', self.best_mode, ('min', 'max'))
        check_one_of('checkpoint.when_save_fails', self.when_save_fails, ('continue', 'stop'))
        if self.save_best and not self.keep_best:
            raise InputError('checkpoint.save_best is True; it needs checkpoint.keep_best above 0')
        if self.keep_best and not self.best_metric:
            raise InputError(f'checkpoint.keep_best is {self.keep_best}, but checkpoint.best_metric names no metric')

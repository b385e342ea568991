"""Fields of the config group `checkpoint`: when a run saves checkpoints and which checkpoints stay on disk."""

import dataclasses

from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """Settings of the checkpoints: when a run saves one, and which ones stay on disk.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    every_steps: int = 1000  # steps between checkpoints
    keep: int = 3  # number of newest checkpoints that stay on disk
    keep_best: int = 0  # number of checkpoints with the best metric that stay on disk besides the newest ones
    best_metric: str = ''  # name of the evaluation metric that ranks checkpoints; '' = none
    best_mode: str = 'min'  # whether the best checkpoint has the smallest ('min') or the largest ('max') metric
    # after a failed save: 'continue' training until the next save | 'stop'; a run of several processes always stops
    when_save_fails: str = 'continue'
    # True = also save after each evaluation that is the best so far; False = save only every `every_steps` steps
    save_best: bool = False

    def __post_init__(self) -> None:
        check_in_interval('checkpoint.every_steps', self.every_steps, 1)
        check_in_interval('checkpoint.keep', self.keep, 1)
        check_in_interval('checkpoint.keep_best', self.keep_best, 0)
        check_one_of('checkpoint.best_mode', self.best_mode, ('min', 'max'))
        check_one_of('checkpoint.when_save_fails', self.when_save_fails, ('continue', 'stop'))
        if self.save_best and not self.keep_best:
            raise InputError('checkpoint.save_best is True; it needs checkpoint.keep_best above 0')
        if self.keep_best and not self.best_metric:
            raise InputError(f'checkpoint.keep_best is {self.keep_best}, but checkpoint.best_metric names no metric')

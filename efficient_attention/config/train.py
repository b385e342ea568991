"""Fields of the config group `train`: length, batch size, initial parameters and logging of a run."""

import dataclasses

from efficient_attention.config.field_metadata import (
    CHANGEABLE,
    CHANGEABLE_WITH_MORE_STEPS,
    COMMA_LIST,
    field_read_by_tasks,
    field_with_marks,
)
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError

MOST_SEED = 2**31
TRACKERS = ('tensorboard', 'csv', 'trackio', 'wandb', 'mlflow')


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Length, batch size, initial parameters and logging of a run."""

    steps: int = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=1000)  # optimizer steps of the whole run
    batch_size: int = 32  # rows of the global batch, over all devices and micro-batches
    micro_batches: int = 1  # number of parts of a batch that are computed in sequence, to save memory
    seed: int = 0  # seed of initial parameters, data order, masks and dropout
    start_from: str = ''  # initial parameters: a Hugging Face folder or a workdir; '' = random parameters
    # True = take only sizes and tokenizer from `start_from`, and initialise all parameters at random
    start_random: bool = False
    # layers of the checkpoint of `start_from` that the model starts with, such as '1,3,5', counted from 1; '' = all
    start_layers: str = field_read_by_tasks('pretraining', 'fine_tuning', default='', marks=(COMMA_LIST,))
    # stop after this many evaluations in a row without a better checkpoint.best_metric; 0 = never
    early_stop: int = field_read_by_tasks('fine_tuning', default=0, marks=(CHANGEABLE,))
    # label smoothing: share of each label's probability that is spread over the vocabulary.
    # Source of label smoothing: Szegedy et al. 2015, arXiv 1512.00567, section 7.
    label_smoothing: float = field_read_by_tasks('text_to_text', default=0.0)
    # weight of the z-loss, the squared log normaliser of each softmax
    z_loss: float = field_read_by_tasks('text_to_text', default=0.0)
    log_every_steps: int = field_with_marks(CHANGEABLE, default=20)  # steps between logged lines of metrics
    # experiment trackers, separated by commas: tensorboard, csv, trackio, wandb, mlflow; '' = none
    trackers: str = field_with_marks(CHANGEABLE, COMMA_LIST, default='tensorboard')
    # stop after this many steps in a row with a loss, gradient or memory that is not finite
    max_skipped_in_row: int = field_with_marks(CHANGEABLE, default=10)
    # seconds without a new input batch or a finished step after which the process ends; 0 = never.
    # The limit is 6 times as long while the run compiles, evaluates a batch or saves.
    stall_seconds: float = field_with_marks(CHANGEABLE, default=600.0)

    def __post_init__(self) -> None:
        for name in ('steps', 'batch_size', 'micro_batches', 'log_every_steps', 'max_skipped_in_row'):
            check_in_interval(f'train.{name}', getattr(self, name), 1)
        check_in_interval('train.seed', self.seed, 0, MOST_SEED)
        check_in_interval('train.early_stop', self.early_stop, 0)
        check_in_interval('train.label_smoothing', self.label_smoothing, 0, 1, high_is_open=True)
        check_in_interval('train.z_loss', self.z_loss, 0)
        check_in_interval('train.stall_seconds', self.stall_seconds, 0)
        for name in self.tracker_names:
            check_one_of('train.trackers', name, TRACKERS)
        if len(set(self.tracker_names)) < len(self.tracker_names):
            raise InputError(f'train.trackers is {self.trackers!r}; a tracker is listed twice')

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The names in `trackers`, without spaces."""
        return tuple(name.strip() for name in self.trackers.split(',')) if self.trackers.strip() else ()

    def check_start_checkpoint(self) -> None:
        """Raises InputError if a field selects parts of a checkpoint but `train.start_from` is empty."""
        if self.start_random and not self.start_from:
            raise InputError('train.start_random is True; it needs train.start_from, the checkpoint with the sizes')
        if self.start_layers and not self.start_from:
            raise InputError(
                f'train.start_layers is {self.start_layers!r}; it needs train.start_from, the checkpoint with them'
            )

"""Fields of the config group `optimizer`: the update rule, learning rate and frozen parameters of a run."""

import dataclasses
import re

from efficient_attention.config.field_metadata import CHANGEABLE_WITH_MORE_STEPS, field_with_marks
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError

NAMES = ('adamw', 'lamb', 'adafactor', 'adadelta')
SCHEDULES = ('bert', 'linear', 'cosine', 'constant', 'rsqrt')
SCHEDULES_WITH_AN_END = ('bert', 'linear', 'cosine')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Update rule and learning rate of a run; defaults as BERT's (Devlin et al. 2018, arXiv 1810.04805, A.2).

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # update rule: 'adamw', 'lamb', 'adafactor' or 'adadelta'.
    # With 'adafactor', the learning rate is relative to each parameter's size.
    # For 'adadelta', set learning_rate to 1; `beta2` is the decay of its two running means (the paper: 0.95).
    name: str = 'adamw'
    learning_rate: float = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=1e-4)  # peak learning rate
    warmup_steps: int = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=10_000)  # steps of linear warm-up from 0
    # learning-rate schedule: 'bert' | 'linear' | 'cosine' | 'constant' | 'rsqrt', see schedules.py
    schedule: str = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default='bert')
    # final learning rate divided by the peak; only the schedules 'bert', 'linear' and 'cosine' have an end
    end_learning_rate_ratio: float = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=0.0)
    beta1: float = 0.9  # decay of the running mean of the gradients
    beta2: float = 0.999  # decay of the running mean of the squared gradients
    # small number added to the root of the mean squared gradient.
    # Adadelta adds this number to its running means of squared gradients and squared updates before their roots.
    eps: float = 1e-6
    weight_decay: float = 0.01  # decoupled weight decay: each step shrinks parameters by learning rate * weight_decay
    # True = Adam's bias correction: divide both running means by 1 - beta^step; the code of BERT and ALBERT lacks it
    bias_correction: bool = False
    # maximum norm of all gradients together; gradients are clipped before the update rule; 0 = no clipping
    clip_norm: float = 1.0
    # regular expressions: parameters whose path matches have neither weight decay nor a trust ratio
    no_decay: tuple[str, ...] = (r'(^|/)bias$', r'(^|/)scale$')

    # each layer's learning rate divided by the rate of the layer above; the embeddings count as the lowest layer
    layer_decay: float = 1.0
    frozen_layers: int = 0  # number of frozen layers, from the lowest; above 0, the embeddings are frozen, too
    frozen: tuple[str, ...] = ()  # regular expressions: parameters whose path matches are frozen

    def __post_init__(self) -> None:
        check_one_of('optimizer.name', self.name, NAMES)
        check_one_of('optimizer.schedule', self.schedule, SCHEDULES)
        for name in ('learning_rate', 'warmup_steps', 'weight_decay', 'clip_norm'):
            check_in_interval(f'optimizer.{name}', getattr(self, name), 0)
        for name in ('beta1', 'beta2'):
            check_in_interval(f'optimizer.{name}', getattr(self, name), 0, 1, high_is_open=True)
        check_in_interval(
            'optimizer.eps', self.eps, 0, low_is_open=True
        )  # With eps 0, a parameter whose gradient is always 0 gets the update 0 / 0.
        check_in_interval('optimizer.end_learning_rate_ratio', self.end_learning_rate_ratio, 0, 1)
        if self.end_learning_rate_ratio and self.schedule not in SCHEDULES_WITH_AN_END:
            raise InputError(
                f'optimizer.end_learning_rate_ratio is {self.end_learning_rate_ratio}, '
                f'but the schedule {self.schedule!r} has no end; it must be 0'
            )
        if self.name == 'adafactor':
            _check_fields_at_default(self, ('beta1', 'beta2', 'eps', 'bias_correction'))
        if self.name == 'adadelta':
            _check_fields_at_default(self, ('beta1', 'bias_correction'))
        check_in_interval('optimizer.layer_decay', self.layer_decay, 0, 1, low_is_open=True)
        check_in_interval('optimizer.frozen_layers', self.frozen_layers, 0)
        _check_patterns('optimizer.no_decay', self.no_decay)
        _check_patterns('optimizer.frozen', self.frozen)


def _check_fields_at_default(config: OptimizerConfig, names: tuple[str, ...]) -> None:
    for field in dataclasses.fields(config):
        if field.name in names and getattr(config, field.name) != field.default:
            value = getattr(config, field.name)
            raise InputError(
                f'optimizer.{field.name} is {value}, which {config.name!r} does not read; leave it at {field.default}'
            )


def _check_patterns(field: str, patterns: tuple[str, ...]) -> None:
    if isinstance(patterns, str):
        raise InputError(f'{field} is the text {patterns!r}; it must be a tuple of regular expressions')
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f'{field} has {pattern!r}, which is no regular expression: {error}') from None

"""A run's whole config as frozen dataclasses, made from nested dicts: a ConfigDict's or a workdir's config.json."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.data import DataConfig
from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.memory import check_memory
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError

TASKS = ('pretraining', 'language_modelling', 'fine_tuning')


def defaults_of(group: str, kind: type, *, read: tuple[str, ...] = ()) -> dict[str, Any]:
    """'<group>.<field>' -> its default, for all fields but those that are `read`."""
    return {f'{group}.{field.name}': field.default for field in dataclasses.fields(kind) if field.name not in read}


ONE_SPLIT = {  # what evaluations without a protocol of their own do not read
    'eval.split': 'held_out',
    'eval.context': 0,
    'eval.stride': 0,
    'eval.memory_length': -1,
    'eval.clamp_length': -1,
    'eval.same_length': False,
}
ENCODER = {  # what an encoder does not read
    'model.tied_output': True,
    'model.output_bias': False,
    'model.adaptive_cutoffs': (),
    'model.memory_length': 0,
    'model.loss_chunk': 0,
}
NO_FINE_TUNING = defaults_of('examples', ExamplesConfig) | defaults_of('head', HeadConfig) | {'train.early_stop': 0}
# Fields that a task does not read, and the value that they must have: nothing that a config asks for is ignored.
NOT_READ: dict[str, dict[str, Any]] = {
    'fine_tuning': {
        **defaults_of('data', DataConfig, read=('length', 'tokenizer', 'lowercase')),
        **ONE_SPLIT,
        **ENCODER,
    },
    'pretraining': {
        'data.units': 'tokenizer',
        'data.splitting': 'documents',
        'data.batches': 'windows',
        'data.cut_at_documents': False,
        'model.global_tokens': 0,
        **ONE_SPLIT,
        **ENCODER,
        **NO_FINE_TUNING,
    },
    'language_modelling': {
        'data.pairs': 'none',
        'data.static_copies': 0,
        'data.workers': 0,
        'data.processes': 0,
        'data.prefetch': 4,
        'data.mask_rate': 0.15,
        'data.max_masked': 20,
        'data.mask_unit': 'token',
        'data.max_ngram': 3,
        'data.mask_token_share': 0.8,
        'data.random_token_share': 0.1,
        'data.short_sequence_probability': 0.1,
        'model.token_types': 0,
        'model.global_tokens': 0,
        **NO_FINE_TUNING,
    },
}

LISTED = {str: 'texts', int: 'whole numbers'}  # what a field that is a list may hold, in words


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Length, batch and logging of a run."""

    steps: int = 1000  # optimizer steps of the whole run
    batch_size: int = 32  # rows of the global batch, over all devices and micro-batches
    micro_batches: int = 1  # parts of a batch computed one after another, to save memory
    seed: int = 0  # of parameters, data order, masks and dropout
    start_from: str = ''  # where parameters come from at step 0: a Hugging Face folder or a workdir; '' = drawn
    start_random: bool = False  # draw them all the same, and take sizes and tokenizer alone from `start_from`
    early_stop: int = 0  # evaluations in a row without a better checkpoint.best_metric that end the run; 0 = none do
    log_every_steps: int = 20  # steps between lines of metrics
    max_skipped_in_row: int = 10  # stop when this many steps in a row have a loss or gradient that is not finite

    def __post_init__(self) -> None:
        for name in ('steps', 'batch_size', 'micro_batches', 'log_every_steps', 'max_skipped_in_row'):
            check_within(f'train.{name}', getattr(self, name), 1)
        check_within('train.seed', self.seed, 0, 2**31)
        check_within('train.early_stop', self.early_stop, 0)
        if self.start_random and not self.start_from:
            raise InputError('train.start_random is True; it needs train.start_from, whose sizes it takes')


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that defines a run."""

    task: str = 'pretraining'
    data: DataConfig = DataConfig()
    examples: ExamplesConfig = ExamplesConfig()
    head: HeadConfig = HeadConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()

    def __post_init__(self) -> None:
        check_one_of('task', self.task, TASKS)
        for name, value in NOT_READ[self.task].items():
            group, field = name.split('.')
            found = getattr(getattr(self, group), field)
            if found != value:
                raise InputError(f'{name} is {found!r}; the task {self.task} does not read it, so it must be {value!r}')
        self.check_positions()
        if not self.eval.context and self.eval.stride > self.data.length:
            raise InputError(
                f'eval.stride is {self.eval.stride}, above data.length {self.data.length}: tokens would be left out'
            )
        check_memory(self.model)
        if self.model.memory_length and self.data.batches != 'streams':
            raise InputError(
                f'data.batches is {self.data.batches!r}; with model.memory_length {self.model.memory_length} it must '
                "be 'streams', so that each row goes on where it was"
            )
        if self.train.early_stop and not self.checkpoint.best_metric:
            raise InputError(f'train.early_stop is {self.train.early_stop}; it needs checkpoint.best_metric')
        if self.task == 'fine_tuning' and self.examples.problem == 'none':
            raise InputError("examples.problem is 'none'; the task fine_tuning needs one")
        if self.task != 'fine_tuning' and self.model.vocab_size < self.data.vocab_size:
            raise InputError(
                f'model.vocab_size {self.model.vocab_size} is below data.vocab_size {self.data.vocab_size}'
            )
        if self.data.pairs != 'none' and 0 < self.model.token_types < 2:
            raise InputError(
                f'model.token_types {self.model.token_types} is too few for data.pairs {self.data.pairs!r}; '
                'use 2, or 0 for none'
            )

    def check_positions(self) -> None:
        """Raises InputError where rows are longer than what the model has positions for, or fill no axial shape."""
        model, limit = self.model, self.model.position_limit
        if model.positions == 'axial' and self.data.length != limit:
            raise InputError(
                f'model.axial_shape {model.axial_shape} has {limit} positions; their number must be '
                f'data.length {self.data.length}'
            )
        table = 'model.axial_shape' if model.positions == 'axial' else 'model.max_length'
        for name, length in (('data.length', self.data.length), ('eval.context', self.eval.context)):
            if limit is not None and length > limit:
                raise InputError(f'{name} {length} is beyond the position table, {table} {limit}')


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as nested dicts of JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in _walk(config)}


def _walk(config: Any) -> list[tuple[str, Any]]:
    fields = [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]
    return [(name, to_dict(value) if dataclasses.is_dataclass(value) else value) for name, value in fields]


def default_fields(kind: type = RunConfig) -> dict[str, Any]:
    """A config dataclass's defaults as nested dicts, before derived values (0 = width / heads) are filled in."""
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    return {
        name: default_fields(type(value)) if dataclasses.is_dataclass(value) else value
        for name, value in fields.items()
    }


def from_dict(values: Mapping[str, Any], kind: type = RunConfig, group: str = '') -> Any:
    """The config dataclass `kind` from nested dicts; fields that are not given keep their defaults.

    Raises:
        InputError: an unknown field (lists the known ones) or a value of another type than the field's.
    """
    if not isinstance(values, Mapping):
        raise InputError(f'{group.removesuffix(".") or "the config"} is {values!r}; it must be a group of fields')
    types_of = typing.get_type_hints(kind)
    for name in values:
        if name not in types_of:
            raise InputError(f'unknown config field {group}{name}; known: {", ".join(types_of)}')
    return kind(**{name: _convert(value, types_of[name], f'{group}{name}') for name, value in values.items()})


def _convert(value: Any, kind: Any, field: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_dict(value, typing.cast(type, kind), f'{field}.')
    if isinstance(kind, types.GenericAlias):  # tuple[str, ...] or tuple[int, ...]
        of = typing.get_args(kind)[0]
        if not isinstance(value, (list, tuple)) or not all(type(entry) is of for entry in value):
            raise InputError(f'{field} is {value!r}; it must be a list of {LISTED[of]}')
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InputError(f'{field} is {value!r}; it must be of type {kind.__name__}')
    return value

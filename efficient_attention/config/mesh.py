"""Fields of the config group `mesh`: the layout of a run's devices, and checks of sequence parallel."""

import dataclasses

from efficient_attention.config.layer import UNTIED
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.value_checks import check_in_interval
from efficient_attention.errors import InputError

# These attention backends return no log-sum-exp, so results over parts of the keys cannot be merged.
WITHOUT_LSE = ('jax_nn', 'cudnn', 'splash')


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices along each mesh axis; `data` = 0 takes all devices that the other axes leave."""

    data: int = 0  # devices for data parallel: each has a share of the rows; 0 = all devices that other axes leave
    fsdp: int = 1  # devices over which both rows and parameters are sharded
    tensor: int = 1  # devices over which heads and features are sharded
    sequence: int = 1  # devices over which the tokens of each row are sharded (sequence parallel)

    def __post_init__(self) -> None:
        for axis in dataclasses.fields(self):
            check_in_interval(f'mesh.{axis.name}', getattr(self, axis.name), 0 if axis.name == 'data' else 1)


def check_sequence_parallel(mesh: MeshConfig, model: ModelConfig, lengths: dict[str, int]) -> None:
    """Raises InputError if `mesh.sequence` is above 1 and the model or the row lengths rule out sequence parallel.

    lengths: field name -> length of the model's rows, in tokens; 0 = no such rows.
    """
    count = mesh.sequence
    if count == 1:
        return
    asked = f'mesh.sequence is {count}; '
    memory = {f'model.{name}': getattr(model, name) for name in ('memory_length', 'compressed_length')}
    for name, length in (lengths | memory).items():
        if length % count:
            raise InputError(f'{asked}{name} {length} is not a multiple of it')
    check_mechanisms_shardable(mesh, model, 'model.attention', model.attention)
    if model.decoder_layers:
        check_mechanisms_shardable(mesh, model.decoder, 'model.decoder_attention', model.decoder_attention)
    if model.decoder_layers and (
        not model.cross_mechanism.capabilities.splits_tokens or model.cross_mechanism.requirements.positions
    ):
        raise InputError(
            f'{asked}model.cross_attention {model.cross_attention!r} does not work with sequence parallel; '
            'use full, favor or linear'
        )
    if model.attention_backend in WITHOUT_LSE:
        raise InputError(
            f'{asked}model.attention_backend {model.attention_backend!r} gives no log-sum-exp to merge results by; '
            "use 'auto', 'blocked' or 'dense'"
        )
    if model.score == 'additive':
        raise InputError(f"{asked}model.score 'additive' does not work with sequence parallel; use another score")
    if model.relative in UNTIED:
        raise InputError(f'{asked}model.relative {model.relative!r} needs the positions of whole rows; use another one')


def check_mechanisms_shardable(mesh: MeshConfig, stack: ModelConfig, field: str, texts: str) -> None:
    """Raises InputError if an attention mechanism of an encoder or decoder rules out sequence parallel.

    `field` is the config field of the mechanisms, and `texts` is its value.
    """
    asked = f'mesh.sequence is {mesh.sequence}; '
    for text, mechanism in zip(texts.split(';'), stack.mechanisms, strict=True):
        if not mechanism.capabilities.splits_tokens:
            raise InputError(
                f'{asked}{field} {text.strip()!r} rules out sequence parallel: {mechanism.name} needs whole rows'
            )
        if mesh.tensor > 1 and mechanism.differs_by_head(stack.heads):
            raise InputError(f'{asked}{field} {text.strip()!r} differs by head, which needs mesh.tensor 1')

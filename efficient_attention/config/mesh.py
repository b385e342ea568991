"""Fields of the config group `mesh`: the layout of a run's devices, and what may be spread over them."""

import dataclasses

from efficient_attention.config.checks import check_within
from efficient_attention.config.layer import UNTIED
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError

WITHOUT_LSE = ('jax_nn', 'cudnn')  # backends whose results over parts of the keys cannot be merged


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; `data` = 0 takes all that the others leave."""

    data: int = 0  # devices over which rows are spread; 0 = all that the other axes leave
    fsdp: int = 1  # over which rows and parameters are spread
    tensor: int = 1  # over which heads and features are spread
    sequence: int = 1  # over which the tokens of each row are spread

    def __post_init__(self) -> None:
        for axis in dataclasses.fields(self):
            check_within(f'mesh.{axis.name}', getattr(self, axis.name), 0 if axis.name == 'data' else 1)


def check_sequence(mesh: MeshConfig, model: ModelConfig, lengths: dict[str, int]) -> None:
    """Raises InputError where `mesh.sequence` is above 1 and the model or its rows cannot be split.

    lengths: of the rows that the model reads, in tokens, by the names of their fields; 0 = there are none.
    """
    count = mesh.sequence
    if count == 1:
        return
    asked = f'mesh.sequence is {count}; '
    memory = {f'model.{name}': getattr(model, name) for name in ('memory_length', 'compressed_length')}
    for name, length in (lengths | memory).items():
        if length % count:
            raise InputError(f'{asked}{name} {length} does not divide over so many devices')
    check_mechanisms(mesh, model, 'model.attention', model.attention)
    if model.decoder_layers:
        check_mechanisms(mesh, model.decoder, 'model.decoder_attention', model.decoder_attention)
    if model.decoder_layers and (not model.cross_mechanism.form.splits_tokens or model.cross_mechanism.needs.positions):
        raise InputError(
            f'{asked}model.cross_attention {model.cross_attention!r} reads positions that the program alone knows; '
            'use full, favor or linear'
        )
    if model.attention_backend in WITHOUT_LSE:
        raise InputError(
            f'{asked}model.attention_backend {model.attention_backend!r} gives no log-sum-exp to merge results by; '
            "use 'auto', 'blocked' or 'dense'"
        )
    if model.score == 'additive':
        raise InputError(f"{asked}model.score 'additive' has no form for rows that are split; use another score")
    if model.relative in UNTIED:
        raise InputError(f'{asked}model.relative {model.relative!r} reads positions of whole rows; use another one')


def check_mechanisms(mesh: MeshConfig, stack: ModelConfig, field: str, texts: str) -> None:
    """Raises InputError where an attention of a stack cannot be split; `field` has its mechanisms, `texts`."""
    asked = f'mesh.sequence is {mesh.sequence}; '
    for text, mechanism in zip(texts.split(';'), stack.mechanisms, strict=True):
        if not mechanism.form.splits_tokens:
            raise InputError(f'{asked}{field} {text.strip()!r} cannot split rows: {mechanism.name} needs them whole')
        if mesh.tensor > 1 and mechanism.differs_by_head(stack.heads):
            raise InputError(f'{asked}{field} {text.strip()!r} differs by head, which goes with mesh.tensor 1 alone')

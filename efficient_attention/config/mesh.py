"""Fields of the config group `mesh`: the layout of a run's devices."""

import dataclasses

from efficient_attention.config.checks import check_within


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

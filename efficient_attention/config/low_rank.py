"""Fields of kernels that are products of two, a part of the config group `model`."""

import dataclasses
import re

from efficient_attention.config.fields import EXPORTED, read_by
from efficient_attention.config.quantization import QuantizationConfig
from efficient_attention.errors import InputError, require

KINDS = ('query', 'key', 'value', 'out', 'gate', 'up', 'down', 'token')
ENTRY = re.compile(r'(\w+)=([1-9]\d*)')


@dataclasses.dataclass(frozen=True)
class LowRankConfig(QuantizationConfig):
    """Ranks of kernels of an encoder's layers, and of its token table.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # such as ('up=96', 'token=64'): kernels [I, O] of a kind as the product of [I, r] and [r, O] in all layers, the
    # token table as that of [V, r] and [r, E]; where the two have no fewer numbers it stays whole
    ranks: tuple[str, ...] = read_by('pretraining', 'fine_tuning', default=(), marks=(EXPORTED,))

    def __post_init__(self) -> None:
        QuantizationConfig.__post_init__(self)
        for entry in self.ranks:
            match = ENTRY.fullmatch(entry) if isinstance(entry, str) else None
            if match is None or match[1] not in KINDS:
                raise InputError(f"model.ranks has {entry!r}; entries are as 'up=96', of {', '.join(KINDS)}")
            most = min(self.sides(match[1]))
            require(int(match[2]) <= most, 'model.ranks', self.ranks, f'at most {most} of {match[1]}, its smaller side')
        kinds = [entry.split('=')[0] for entry in self.ranks]
        require(len(set(kinds)) == len(kinds), 'model.ranks', self.ranks, 'one entry of a kind')
        missing = {'gate': not (self.feed_forward and self.feed_forward_gate), 'up': not self.feed_forward}
        missing['down'] = missing['up']
        for kind in kinds:
            require(not missing.get(kind, False), 'model.ranks', self.ranks, f'no {kind!r}, which the layers lack')
        served = {'cell': 'none', 'adaptive_cutoffs': (), 'global_tokens': 0}
        for name, needed in served.items() if self.ranks else ():
            require(getattr(self, name) == needed, f'model.{name}', getattr(self, name), f'{needed!r} with model.ranks')

    @property
    def ranks_by_kind(self) -> tuple[tuple[str, int], ...]:
        """Each entry's kind and rank."""
        return tuple((entry.split('=')[0], int(entry.split('=')[1])) for entry in self.ranks)

    def sides(self, kind: str) -> tuple[int, int]:
        """The inputs and outputs of a kernel of a kind, of the token table its rows and their width."""
        inner = self.heads * self.head_width
        if kind == 'token':
            return self.vocab_size, self.embedding_width
        wide = self.feed_forward_width if kind in ('gate', 'up', 'down') else inner
        return (wide, self.width) if kind in ('out', 'down') else (self.width, wide)

    def rank_of(self, kind: str, inputs: int, outputs: int) -> int:
        """The rank of a kernel of this shape; 0 where it is whole."""
        rank = dict(self.ranks_by_kind).get(kind, 0)
        return rank if rank * (inputs + outputs) < inputs * outputs else 0

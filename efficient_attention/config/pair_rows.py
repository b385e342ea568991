"""Fields of the config group `pairs` that say which pairs training reads, how often and in which rows."""

import dataclasses

from efficient_attention.config.checks import check_within


@dataclasses.dataclass(frozen=True)
class PairRowsConfig:
    """How training mixes several sets of pairs.

    A set's share of what is read is r^(1 / mixing_temperature), made to sum to 1, where r is the number of its pairs,
    or `mixing_limit` where it has more (Raffel et al. 2019, arXiv 1910.10683, section 3.5.2: K and T).

    Raises:
        InputError: a field is out of its range; names the field, its value and what is allowed.
    """

    mixing_limit: int = 0  # pairs that a set counts for at most, 65536 or the like; 0 = as many as it has
    mixing_temperature: float = 1.0  # 1 = shares by the numbers of pairs; the larger, the more equal the shares

    def __post_init__(self) -> None:
        check_within('pairs.mixing_limit', self.mixing_limit, 0)
        check_within('pairs.mixing_temperature', self.mixing_temperature, 1, 1e6)

    @property
    def is_mixed(self) -> bool:
        """Whether shares decide how often a set is read; else an epoch reads every pair of every set once."""
        return self.mixing_limit > 0 or self.mixing_temperature > 1

"""What kind of attention is computed; the backends decide how."""

import dataclasses

from efficient_attention.attention.patterns import Full, Pattern, parse_pattern


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A way to compute attention; frozen and hashable, so it can be a static argument."""


@dataclasses.dataclass(frozen=True)
class Softmax(Mechanism):
    """softmax(q k^T / sqrt(K)) v over the pairs that `pattern` allows.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.
    """

    pattern: Pattern = Full()


def parse_mechanism(text: str) -> Mechanism:
    """The mechanism that a config's text names: a pattern's text means softmax attention over that pattern.

    Raises:
        InputError: an unknown name; lists the known ones.
    """
    return Softmax(parse_pattern(text))

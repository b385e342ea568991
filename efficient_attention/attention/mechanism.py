"""What kind of attention is computed; the backends decide how."""

import dataclasses
from typing import cast

from efficient_attention.attention.patterns import Full, Pattern
from efficient_attention.attention.patterns.primitives import is_whole_number
from efficient_attention.errors import InputError

KERNELS = ('softmax', 'relu')


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A way to compute attention; frozen and hashable, so it can be a static argument."""

    @property
    def needs_rng(self) -> bool:
        """Whether the mechanism itself draws something, so that `attend` asks for a key."""
        return False

    @property
    def compares_positions(self) -> bool:
        """Whether the mechanism needs to know how query and key positions relate."""
        return True

    @property
    def normalises_keys(self) -> bool:
        """Whether the mechanism makes its keys from the queries (shared QK)."""
        return False

    @property
    def reads_length(self) -> bool:
        """Whether what a query reads depends on the number of keys, so on padding at their end."""
        return False

    @property
    def has_dropout(self) -> bool:
        """Whether there are weights that dropout can act on."""
        return True

    def check_heads(self, heads: int) -> None:  # noqa: B027  most serve any number
        """Raises an InputError where the mechanism cannot serve this number of heads."""

    def for_layer(self, layer: int) -> 'Mechanism':  # noqa: ARG002  most are the same in every layer
        """The mechanism of layer number `layer`."""
        return self


@dataclasses.dataclass(frozen=True)
class Softmax(Mechanism):
    """softmax(q k^T / sqrt(K)) v over the pairs that `pattern` allows.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.
    """

    pattern: Pattern = Full()

    def __post_init__(self) -> None:
        require(isinstance(self.pattern, Pattern), 'softmax pattern', self.pattern, 'a pattern, such as Causal()')

    @property
    def compares_positions(self) -> bool:
        """As its pattern does."""
        return self.pattern.compares_positions

    @property
    def reads_length(self) -> bool:
        """Where random tiles or the last global tokens are placed by it."""
        return self.pattern.for_keys(64) != self.pattern.for_keys(4096)

    def check_heads(self, heads: int) -> None:
        """Its pattern may differ by head."""
        self.pattern.for_head(0, heads)

    def for_layer(self, layer: int) -> 'Softmax':
        """Its pattern may draw something for each layer."""
        return Softmax(self.pattern.for_layer(layer))


@dataclasses.dataclass(frozen=True)
class LSH(Mechanism):
    """Softmax attention over the pairs that fall into one chunk of a sort by angular hash, in one of several rounds.

    The key is the unit vector of the query (shared QK), so `attend` takes query and key as the same array. Defaults
    follow the paper's released code rather than the paper: a query also reads keys of neighbouring buckets inside its
    chunks, and a pair found in two rounds counts twice. Source: Kitaev et al. 2020, arXiv 2001.04451, section 2.

    Args:
        bucket_size: positions in a chunk of the sorted order; a query reads its own and the previous chunk.
        rounds: independent hashes, T.
        buckets: hash values a round, an even number; 0 = 2 x max(1, L // bucket_size). Above 128 two hashes are
            combined, into a product of two even numbers of at most this.
        causal: k <= q.
        within_buckets: read keys of the query's own bucket alone (the paper's definition).
        deduplicate: count a pair once however many rounds found it (the paper's N term).
        sequential: compute the rounds one after another, so that temporary memory hardly grows with T.
    """

    bucket_size: int = 64
    rounds: int = 4
    buckets: int = 0
    causal: bool = False
    within_buckets: bool = False
    deduplicate: bool = False
    sequential: bool = False

    def __post_init__(self) -> None:
        for name in ('bucket_size', 'rounds'):
            require_at_least(1, f'lsh {name}', getattr(self, name))
        require_at_least(0, 'lsh buckets', self.buckets)
        require(self.buckets % 2 == 0, 'lsh buckets', self.buckets, 'even, or 0 to choose')

    @property
    def needs_rng(self) -> bool:
        """The hashes are random rotations."""
        return True

    @property
    def normalises_keys(self) -> bool:
        """Keys are unit queries."""
        return True

    @property
    def reads_length(self) -> bool:
        """Chunks and the number of buckets follow from it."""
        return True


@dataclasses.dataclass(frozen=True)
class FAVOR(Mechanism):
    """Linear attention with random features: phi(q) (phi(k)^T v), normalised; estimates softmax attention without bias.

    Source: Choromanski et al. 2020, arXiv 2009.14794 (FAVOR+), sections 2.3 and 2.4, appendix B.

    Args:
        features: R.
        causal: k <= q, through chunks and a running state.
        kernel: 'softmax' = positive features of the softmax kernel | 'relu' = generalised features relu(w x) + 1e-3.
        orthogonal: draw the features in orthogonal blocks of K.
        chunk: positions computed at once in the causal form and where rows hold several segments.
    """

    features: int = 256
    causal: bool = False
    kernel: str = 'softmax'
    orthogonal: bool = True
    chunk: int = 128

    def __post_init__(self) -> None:
        for name in ('features', 'chunk'):
            require_at_least(1, f'favor {name}', getattr(self, name))
        require(self.kernel in KERNELS, 'favor kernel', self.kernel, f'one of {", ".join(KERNELS)}')

    @property
    def needs_rng(self) -> bool:
        """The features are random projections."""
        return True

    @property
    def has_dropout(self) -> bool:
        """The weights never exist."""
        return False

    @property
    def compares_positions(self) -> bool:
        """Where it is causal."""
        return self.causal


def model_needs(mechanism: Mechanism) -> str:
    """What a config sets for a mechanism, in words; '' where any model may have it."""
    needs = ['model.shared_qk=True'] if mechanism.normalises_keys else []
    needs += [] if mechanism.has_dropout else ['model.attention_dropout_rate=0.0']
    needs += (
        []
        if getattr(mechanism, 'causal', True)
        else ['causal=True among its arguments where it is in a language model']
    )
    return ', '.join(needs)


MECHANISMS: dict[str, type[Mechanism]] = {'lsh': LSH, 'favor': FAVOR}


def require_at_least(minimum: int, what: str, value: object) -> None:
    """Raises an InputError that names the argument unless it is a whole number of at least `minimum`."""
    require(is_whole_number(value), what, value, 'a whole number')
    require(cast(int, value) >= minimum, what, value, f'at least {minimum}')


def require(holds: bool, what: str, value: object, allowed: str) -> None:
    """Raises an InputError that names the argument, its value and what is allowed, unless `holds`."""
    if not holds:
        raise InputError(f'{what} is {value!r}; it must be {allowed}')

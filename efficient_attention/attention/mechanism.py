"""The class of mechanisms: the properties that others may ask for. What computes each lies in its room (`room.py`)."""

import dataclasses
from typing import ClassVar, TypeVar

from efficient_attention.attention.patterns import Pattern
from efficient_attention.errors import InputError

CAUSAL_OPTION = 'causal=True among its arguments'


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that a mechanism learns beside the projections of queries, keys and values.

    A running mean [..., K + 1] is learned otherwise than by a loss: K coordinates of points on the unit sphere, where
    they also start, and a column that stays 0. In place of its gradient the mechanism returns the sum of the vectors
    that belong to each point and, in the last column, their number; `training/running_means.py` does the rest.
    """

    shape: tuple[int, ...]
    deviation: float  # of the normal distribution around 0 that it is drawn from
    is_shared: bool = False  # one for all layers of a stack, else each layer has its own
    is_running_mean: bool = False


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A way to compute attention; frozen and hashable, so it can be a static argument.

    Every property has an answer here that refuses or promises nothing; a mechanism that knows better overrides it.
    """

    name: ClassVar[str] = 'mechanism'
    """What texts, the registry and error lines call it, and what its room's folder is called."""

    @property
    def is_causal(self) -> bool:
        """Whether no query reads a later key, whatever the length."""
        return False

    @property
    def has_causal_option(self) -> bool:
        """Whether `causal=True` among its arguments makes it causal."""
        return False

    @property
    def needs_rng(self) -> bool:
        """Whether the mechanism itself draws something, so that `attend` asks for a key."""
        return False

    @property
    def draws_for_all_heads(self) -> bool:
        """Whether heads share one draw that depends on their number, so that a head less changes what others read."""
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

    @property
    def has_logits(self) -> bool:
        """Whether a bias and a relative term can be added to logits, which may be additive scores."""
        return False

    @property
    def merges(self) -> bool:
        """Whether results over parts of the keys merge, through a log-sum-exp."""
        return False

    @property
    def has_backends(self) -> bool:
        """Whether `backend` chooses how it is executed; others have one fast form."""
        return False

    @property
    def splits_tokens(self) -> bool:
        """Whether it can be computed where the tokens of each row are spread over devices."""
        return False

    @property
    def goes_by_distance(self) -> bool:
        """Whether query position - key position alone decides who may read whom."""
        return False

    @property
    def reads_other_sequence(self) -> bool:
        """Whether queries may read keys of another sequence: all of them, or by the distance of their positions."""
        return not self.is_causal and (self.goes_by_distance or not self.compares_positions)

    @property
    def why_one_row(self) -> str:
        """Why queries of another sequence are refused, behind its text in an error line."""
        return 'needs queries and keys in one row'

    @property
    def reads_itself(self) -> bool:
        """Whether queries may read keys of their own row."""
        return True

    @property
    def draws_in_training(self) -> bool:
        """Whether it draws keys where a call gives `rng`, as training does, whose loss then counts these draws."""
        return False

    @property
    def has_training_noise(self) -> bool:
        """Whether it adds noise where a call gives `rng`, as training does, and none where it does not."""
        return False

    @property
    def needs_centres(self) -> bool:
        """Whether each query says around which place it reads: `centres` of `attend`."""
        return False

    @property
    def drops_itself(self) -> bool:
        """Whether its weights already come with dropout, which acts on another matrix than theirs."""
        return False

    @property
    def reads_queries(self) -> bool:
        """Whether what a query reads depends on the query."""
        return True

    @property
    def reads_keys(self) -> bool:
        """Whether what a query reads depends on the keys."""
        return True

    @property
    def needs_whole_rows(self) -> bool:
        """Whether it mixes the tokens of a row before any are compared, so that a row has to be one text."""
        return False

    @property
    def chooses_by_row(self) -> bool:
        """Whether the other texts of a row decide, too, which of its own tokens a token reads."""
        return False

    @property
    def longest(self) -> int:
        """The most keys that it serves; 0 = any number."""
        return 0

    def learned_operands(self, heads: int, width: int) -> dict[str, Operand]:  # noqa: ARG002  most learn nothing
        """What it learns, by name, with so many query heads of this width: `learned` of `attend`."""
        return {}

    @property
    def is_band(self) -> bool:
        """Whether a query reads all keys within one run of distances and no others."""
        return False

    def keys_back(self, length: int) -> int:
        """How many of `length` positions a causal query reads at most: the last ones, itself among them."""
        return length

    def within(self, pattern: Pattern) -> 'Mechanism':  # noqa: ARG002  only some can
        """The mechanism over those pairs alone that the pattern allows; raises NotImplementedError without pairs."""
        raise lack(self.name, 'pattern')

    def everywhere(self) -> 'Mechanism':
        """The mechanism over all pairs; raises NotImplementedError where it is not one over pairs."""
        raise lack(self.name, 'form over all pairs')

    def causal_form(self, text: str) -> str:  # noqa: ARG002  only patterns repeat it
        """What one writes instead of the mechanism's text so that it is causal, for error lines."""
        return CAUSAL_OPTION if self.has_causal_option else f'another mechanism, as {self.name} has no causal form'

    def differs_by_head(self, heads: int) -> bool:  # noqa: ARG002  only patterns do
        """Whether some of so many heads differ in who may read whom."""
        return False

    def check_heads(self, heads: int) -> None:  # noqa: B027  most serve any number
        """Raises an InputError where the mechanism cannot serve this number of heads."""

    def check_decoding(self) -> None:
        """Raises an InputError where the mechanism cannot go on with a text token by token."""
        if not self.is_causal:
            raise InputError(f'{self} is not causal; only causal attention can go on token by token')

    def for_layer(self, layer: int) -> 'Mechanism':  # noqa: ARG002  most are the same in every layer
        """The mechanism of layer number `layer`."""
        return self


Kind = TypeVar('Kind', bound=Mechanism)


def of_kind(kind: type[Kind], mechanism: Mechanism) -> Kind:
    """The mechanism, in whose room the caller is; raises NotImplementedError for any other."""
    if not isinstance(mechanism, kind):
        raise NotImplementedError(f'{kind.name} computes {kind.__name__}, not {type(mechanism).__name__}')
    return mechanism


def lack(who: str, *missing: str) -> NotImplementedError:
    """The one line that refuses what a mechanism or a backend cannot do: 'lsh has no bias, no grouped heads'."""
    return NotImplementedError(f'{who} has no {", no ".join(missing)}')


def refuse(who: str, lacks: dict[str, bool]) -> None:
    """Raises the line of `lack` for those of the lacks, by name, that are asked for."""
    missing = [name for name, is_asked in lacks.items() if is_asked]
    if missing:
        raise lack(who, *missing)

"""The class of mechanisms, and the records by which each says what it is; its room (room.py) computes it."""

import dataclasses
import functools
from typing import ClassVar, TypeVar

from efficient_attention.attention.patterns import Pattern
from efficient_attention.errors import InputError

CAUSAL_OPTION = 'causal=True among its arguments'


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that a mechanism learns beside the projections of queries, keys and values.

    A running mean [..., K + 1] is learned otherwise than by a loss: K coordinates of points on the unit sphere, where
    they also start, and a column that stays 0. In place of its gradient the mechanism returns the sum of the vectors
    that belong to each point and, in the last column, their number; `training/optimizer.py` does the rest.
    """

    shape: tuple[int, ...]  # the first axis has the heads, or 1 where all share the array
    deviation: float  # of the normal distribution around 0 that it is drawn from
    is_shared: bool = False  # one for all layers of a stack, else each layer has its own
    is_running_mean: bool = False


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a call must give a mechanism, and what the rows must be.

    Args:
        positions: it must know how query and key positions relate.
        shared_qk: it makes its keys from the queries, so that both are one array.
        centres: each query says around which place it reads: `centres` of `attend`.
        whole_rows: it mixes the tokens of a row before it compares any, so a row must be one text.
        longest: the most keys that it serves; 0 = any number.
    """

    positions: bool = True
    shared_qk: bool = False
    centres: bool = False
    whole_rows: bool = False
    longest: int = 0


@dataclasses.dataclass(frozen=True)
class Form:
    """How a mechanism is computed, which decides what options of a call it serves.

    Args:
        has_logits: a bias and a relative term can be added to logits, which may be additive scores.
        has_dropout: there are weights that dropout can act on.
        drops_slots: its weights already come with dropout, which acts on slots that stand for keys.
        has_backends: `backend` chooses how it is executed; other mechanisms have one fast form.
        merges: results over parts of the keys merge, through a log-sum-exp.
        splits_tokens: it can be computed where the tokens of each row are spread over devices.
        why_no_decoding: why its causal form cannot go on token by token, for an error line; '' where it can.
    """

    has_logits: bool = False
    has_dropout: bool = True
    drops_slots: bool = False
    has_backends: bool = False
    merges: bool = False
    splits_tokens: bool = False
    why_no_decoding: str = ''


@dataclasses.dataclass(frozen=True)
class Reads:
    """Which keys a query reads, and what decides this.

    Args:
        by_distance: query position - key position alone decides who may read whom.
        one_band: a query reads all keys within one run of distances and no others.
        by_length: the number of keys decides too, so that padding at their end changes what is read.
        by_other_texts: the other texts packed into a row decide too.
        queries: what a query reads depends on the query.
        keys: what a query reads depends on the keys.
        own_row: queries may read keys of their own row.
        other_sequence: queries may read keys of another sequence; None = they may where the mechanism is not causal
            and either needs no positions or goes by distance.
        why_one_row: why queries of another sequence are refused, behind the mechanism's text in an error line.
    """

    by_distance: bool = False
    one_band: bool = False
    by_length: bool = False
    by_other_texts: bool = False
    queries: bool = True
    keys: bool = True
    own_row: bool = True
    other_sequence: bool | None = None
    why_one_row: str = 'needs queries and keys in one row'


@dataclasses.dataclass(frozen=True)
class Draws:
    """What a mechanism draws at random, from the key `rng` of a call.

    Args:
        always: it draws at every call, so that `attend` asks for a key.
        in_training: it samples the keys that queries read where a call gives `rng`, as training does; the loss then has
            a term for these samples (REINFORCE).
        noise: it adds noise where a call gives `rng`, as training does.
        for_all_heads: heads share one draw that depends on their number, so that a head less changes what others read.
    """

    always: bool = False
    in_training: bool = False
    noise: bool = False
    for_all_heads: bool = False


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A way to compute attention; frozen and hashable, so it can be a static argument.

    A subclass states what differs from the defaults of `needs`, `form`, `reads` and `draws`: as class attributes, or as
    cached properties where its fields decide. One with a field `causal` is causal where that is True.
    """

    name: ClassVar[str] = 'mechanism'
    """What texts, the registry and error lines call it, and what its room's folder is called."""

    @functools.cached_property
    def needs(self) -> Needs:
        """What a call must give it."""
        return Needs()

    @functools.cached_property
    def form(self) -> Form:
        """How it is computed."""
        return Form()

    @functools.cached_property
    def reads(self) -> Reads:
        """Which keys a query reads."""
        return Reads()

    @functools.cached_property
    def draws(self) -> Draws:
        """What it draws at random."""
        return Draws()

    def learned_operands(self, heads: int, width: int) -> dict[str, Operand]:  # noqa: ARG002  most learn nothing
        """What it learns, by name, with so many query heads of this width: `learned` of `attend`."""
        return {}

    @property
    def has_causal_option(self) -> bool:
        """Whether `causal=True` among its arguments makes it causal."""
        return hasattr(self, 'causal')

    @property
    def is_causal(self) -> bool:
        """Whether no query reads a later key, whatever the length."""
        return getattr(self, 'causal', False)

    @property
    def reads_other_sequence(self) -> bool:
        """Whether queries may read keys of another sequence."""
        if self.reads.other_sequence is not None:
            return self.reads.other_sequence
        return not self.is_causal and (self.reads.by_distance or not self.needs.positions)

    def differs_by_head(self, heads: int) -> bool:
        """Whether some of so many heads differ in who may read whom, or in an array that they learn."""
        return any(operand.shape[0] > 1 for operand in self.learned_operands(heads, 1).values())

    def keys_back(self, length: int) -> int:
        """How many of `length` positions a causal query reads at most: the last ones, itself among them."""
        return length

    def within(self, pattern: Pattern) -> 'Mechanism':  # noqa: ARG002  only some can
        """The mechanism over those pairs alone that the pattern allows; raises NotImplementedError for most."""
        raise lack(self.name, 'pattern')

    def everywhere(self) -> 'Mechanism':
        """The mechanism over all pairs; raises NotImplementedError where it is not one over pairs."""
        raise lack(self.name, 'form over all pairs')

    def for_layer(self, layer: int) -> 'Mechanism':  # noqa: ARG002  most are the same in every layer
        """The mechanism of layer number `layer`."""
        return self

    def causal_form(self, text: str) -> str:  # noqa: ARG002  only patterns repeat it
        """What one writes instead of the mechanism's text so that it is causal, for error lines."""
        return CAUSAL_OPTION if self.has_causal_option else f'another mechanism, as {self.name} has no causal form'

    def check_heads(self, heads: int) -> None:  # noqa: B027  most serve any number
        """Raises an InputError where the mechanism cannot serve this number of heads."""

    def check_decoding(self) -> None:
        """Raises an InputError where the mechanism cannot go on with a text token by token."""
        if self.form.why_no_decoding:
            raise InputError(f'{self.name} attention cannot go on token by token: {self.form.why_no_decoding}')
        if not self.is_causal:
            raise InputError(f'{self} is not causal; only causal attention can go on token by token')


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

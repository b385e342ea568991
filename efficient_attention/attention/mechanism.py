"""Defines `Mechanism`, the base class of attention mechanisms, and the records that describe a mechanism's properties.

implementation.py defines how a mechanism's implementation is declared.
"""

import dataclasses
import functools
from typing import ClassVar, TypeVar

from efficient_attention.attention.patterns import Pattern
from efficient_attention.errors import InputError

CAUSAL_OPTION = 'causal=True among its arguments'


@dataclasses.dataclass(frozen=True)
class LearnedOperand:
    """The declaration of an array that a mechanism learns besides the projections of queries, keys and values.

    A running mean [..., K + 1] is not learned by a loss. Its first K columns are points on the unit sphere; the last
    column stays 0. In place of a gradient, the mechanism returns the sum of the vectors assigned to each point and, in
    the last column, their number. `training/optimizer.py` then updates the mean.
    """

    shape: tuple[int, ...]  # the first axis is the heads; size 1 if all heads share the array
    deviation: float  # standard deviation of the normal initialisation, whose mean is 0
    is_shared: bool = False  # whether all layers of a stack share one array
    is_running_mean: bool = False


@dataclasses.dataclass(frozen=True)
class Requirements:
    """What a mechanism requires of a call: for example, that positions are given, or that each row holds a single text.

    Args:
        positions: the mechanism compares query and key positions.
        shared_qk: the mechanism derives its keys from the queries, so both must be one array.
        centres: each query has a centre around which it reads: `centres` of `attend`.
        whole_rows: the mechanism mixes the tokens of a row before it compares any, so a row must hold one text.
        longest: the largest supported number of keys; 0 = any number.
    """

    positions: bool = True
    shared_qk: bool = False
    centres: bool = False
    whole_rows: bool = False
    longest: int = 0


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """Which options of a call a mechanism supports, such as a bias or dropout, and how it can be computed.

    Args:
        has_logits: the mechanism has logits, so it supports a bias, a relative term and additive scores.
        has_dropout: the mechanism has weights that dropout can act on.
        drops_slots: the mechanism's weights already include dropout, which acts on compressed keys instead of keys.
        has_backends: the argument `backend` chooses how the mechanism is executed; other mechanisms have one fast form.
        merges: results over disjoint parts of the keys can be merged, through a log-sum-exp.
        splits_tokens: the mechanism can be computed sequence parallel: the tokens of each row are sharded over devices.
        why_no_decoding: for an error message, why the causal form cannot decode token by token; '' if it can.
    """

    has_logits: bool = False
    has_dropout: bool = True
    drops_slots: bool = False
    has_backends: bool = False
    merges: bool = False
    splits_tokens: bool = False
    why_no_decoding: str = ''


@dataclasses.dataclass(frozen=True)
class KeyAccess:
    """Which keys a query of a mechanism may read, and which inputs decide this.

    Args:
        by_distance: which pairs are allowed depends only on query position - key position.
        one_band: a query reads all keys in one range of distances and no others.
        by_length: the number of keys matters too, so padding at their end changes which keys are read.
        by_other_texts: other texts packed into the same row matter too.
        queries: which keys a query reads depends on the query vector.
        keys: which keys a query reads depends on the key vectors.
        own_row: queries may read keys of their own row.
        other_sequence: queries may read keys of another sequence. None means: yes, if the mechanism is not causal and
            either needs no positions or depends only on distance.
        why_one_row: why keys of another sequence are rejected; follows the mechanism's text in an error message.
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
class Randomness:
    """What a mechanism samples at random from the key `rng` of a call.

    Args:
        always: the mechanism samples at every call, so `attend` requires a key.
        in_training: if a call gives `rng`, as training does, the mechanism samples the keys that queries read. The loss
            then has a term for these samples (REINFORCE).
        noise: the mechanism adds noise if a call gives `rng`, as training does.
        for_all_heads: all heads share one sample whose values depend on the number of heads. Removing a head therefore
            changes which keys the other heads read.
    """

    always: bool = False
    in_training: bool = False
    noise: bool = False
    for_all_heads: bool = False


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A way to compute attention; frozen and hashable, so it can be a static argument.

    A subclass overrides `requirements`, `capabilities`, `key_access` and `randomness` where it differs from the
    defaults: with class attributes, or with cached properties if its fields decide. A mechanism with a field `causal`
    is causal if that field is True.
    """

    name: ClassVar[str] = 'mechanism'
    """The mechanism's name in config texts, the registry and error messages, and the name of its folder."""

    @functools.cached_property
    def requirements(self) -> Requirements:
        """The requirements of the mechanism on the arguments of a call and on the rows."""
        return Requirements()

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """The options that the mechanism supports, and the ways in which it can be computed."""
        return Capabilities()

    @functools.cached_property
    def key_access(self) -> KeyAccess:
        """Which keys a query of the mechanism may read."""
        return KeyAccess()

    @functools.cached_property
    def randomness(self) -> Randomness:
        """What the mechanism samples at random in a call."""
        return Randomness()

    def learned_operands(self, heads: int, width: int) -> dict[str, LearnedOperand]:  # noqa: ARG002  most learn nothing
        """Returns the declarations of the mechanism's learned arrays by name,
        for `heads` query heads of `width` each.
        """
        return {}

    @property
    def has_causal_option(self) -> bool:
        """Whether the mechanism has an argument `causal`, which makes it causal if True."""
        return hasattr(self, 'causal')

    @property
    def is_causal(self) -> bool:
        """Whether no query of the mechanism reads a later key, for any length."""
        return getattr(self, 'causal', False)

    @property
    def can_cross_attend(self) -> bool:
        """Whether queries of the mechanism may read keys of another sequence (cross-attention)."""
        if self.key_access.other_sequence is not None:
            return self.key_access.other_sequence
        return not self.is_causal and (self.key_access.by_distance or not self.requirements.positions)

    def differs_by_head(self, heads: int) -> bool:
        """Returns whether any of `heads` heads differs from the others in the keys
        that it reads or in a learned array.
        """
        return any(operand.shape[0] > 1 for operand in self.learned_operands(heads, 1).values())

    def causal_window_size(self, length: int) -> int:
        """Returns how many positions back a causal query reads at most, the query included; the result is at most
        `length`.
        """
        return length

    def restrict_to_pattern(self, pattern: Pattern) -> 'Mechanism':  # noqa: ARG002  only some can
        """Returns the mechanism restricted to the query-key pairs that the pattern allows; most mechanisms cannot be
        restricted and raise NotImplementedError.
        """
        raise unsupported_error(self.name, 'pattern')

    def without_pattern(self) -> 'Mechanism':
        """Returns the mechanism with every query-key pair allowed, as if it had no pattern; most mechanisms cannot do
        this and raise NotImplementedError.
        """
        raise unsupported_error(self.name, 'form over all pairs')

    def for_layer(self, layer: int | tuple[int, ...]) -> 'Mechanism':  # noqa: ARG002  most are the same in every layer
        """Returns the mechanism as layer number `layer` uses it; only mechanisms
        with random patterns differ by layer.

        A tuple of ascending numbers gives one mechanism for these layers; `CallOptions.layer` then chooses the layer.
        """
        return self

    def causal_alternative_text(self, text: str) -> str:  # noqa: ARG002  only patterns repeat it
        """Returns advice for error messages: what to write in place of the mechanism's config text to make the
        mechanism causal.
        """
        return CAUSAL_OPTION if self.has_causal_option else f'another mechanism, as {self.name} has no causal form'

    def check_heads(self, heads: int) -> None:  # noqa: B027  most support any number
        """Raises an InputError if the mechanism does not support this number of heads; does nothing by default."""

    def check_decoding(self) -> None:
        """Raises an InputError if the mechanism cannot decode token by token,
        such as a mechanism that is not causal.
        """
        if self.capabilities.why_no_decoding:
            raise InputError(f'{self.name} attention cannot decode token by token: {self.capabilities.why_no_decoding}')
        if not self.is_causal:
            raise InputError(f'{self} is not causal; only causal attention can decode token by token')


Kind = TypeVar('Kind', bound=Mechanism)


def ensure_kind(kind: type[Kind], mechanism: Mechanism) -> Kind:
    """Returns the mechanism, typed as the class `kind`; raises a NotImplementedError if it is not of this class."""
    if not isinstance(mechanism, kind):
        raise NotImplementedError(f'{kind.name} computes {kind.__name__}, not {type(mechanism).__name__}')
    return mechanism


class UnsupportedError(NotImplementedError):
    """The error for `features` that a mechanism or backend lacks, such as 'lsh has no bias, no grouped heads'."""

    def __init__(self, who: str, *features: str) -> None:
        super().__init__(f'{who} has no {", no ".join(features)}')
        self.features = features


def unsupported_error(who: str, *missing: str) -> UnsupportedError:
    """Returns the error for features that a mechanism or backend lacks."""
    return UnsupportedError(who, *missing)


def raise_unsupported(who: str, lacks: dict[str, bool]) -> None:
    """Raises an UnsupportedError that names every feature in `lacks` that a call requests;
    does nothing if no feature is requested.
    """
    missing = [name for name, is_asked in lacks.items() if is_asked]
    if missing:
        raise unsupported_error(who, *missing)

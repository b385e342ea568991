"""What mechanisms share that weigh the keys which a pattern allows by their logits."""

import dataclasses

from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.mechanism import Form, Mechanism, Needs, Reads
from efficient_attention.attention.patterns import Full, Pattern, head_patterns
from efficient_attention.attention.patterns.text_form import pattern_text
from efficient_attention.errors import require

Weights = tuple[Float[Array, 'B H L M'], Float[Array, 'B H L'] | None]


@dataclasses.dataclass(frozen=True)
class OverPattern(Mechanism):
    """A distribution over the keys that `pattern` allows, from logits such as q k^T / sqrt(K).

    Args:
        pattern: who may read whom.
    """

    name = 'logits'
    form = Form(has_logits=True)

    pattern: Pattern = Full()

    def __post_init__(self) -> None:
        require(isinstance(self.pattern, Pattern), f'{self.name} pattern', self.pattern, 'a pattern, such as Causal()')

    def distribute(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:  # noqa: ARG002
        """The weights of the allowed keys, zeros where there are none, and a log-sum-exp where there is one."""
        raise NotImplementedError(f'{self.name} has no distribution')

    @property
    def is_causal(self) -> bool:
        """Whether its pattern lets no query read a later key."""
        return self.pattern.is_causal

    @property
    def needs(self) -> Needs:
        """Positions, unless its pattern allows every pair."""
        return Needs(positions=self.pattern.compares_positions)

    @property
    def reads(self) -> Reads:
        """What its pattern says; some place random tiles, or the last global tokens, by the number of keys."""
        return Reads(
            by_distance=self.pattern.goes_by_distance,
            one_band=self.pattern.is_band,
            by_length=self.pattern.for_keys(64) != self.pattern.for_keys(4096),
        )

    def keys_back(self, length: int) -> int:
        """How many of `length` positions a causal query reads at most: itself and as far as its pattern reaches."""
        return int(min(self.pattern.for_keys(length).reach.back + 1, length))

    def within(self, pattern: Pattern) -> 'OverPattern':
        """It over the pairs that both its pattern and this one allow."""
        return dataclasses.replace(self, pattern=self.pattern & pattern)

    def everywhere(self) -> 'OverPattern':
        """It over all pairs, whatever its pattern."""
        return dataclasses.replace(self, pattern=Full())

    def causal_form(self, text: str) -> str:  # noqa: ARG002
        """The same over its pattern & causal, for error lines."""
        return f"'{self.name}(causal & ({pattern_text(self.pattern)}))', which keeps the pairs that look back"

    def differs_by_head(self, heads: int) -> bool:
        """Whether its pattern differs between some of so many heads."""
        return len(head_patterns(self.pattern, heads)) > 1

    def check_heads(self, heads: int) -> None:
        """Raises an InputError where its pattern cannot be split among this number of heads."""
        self.pattern.for_head(0, heads)

    def for_layer(self, layer: int) -> 'OverPattern':
        """It over its pattern for layer number `layer`, which may draw its tiles anew."""
        return dataclasses.replace(self, pattern=self.pattern.for_layer(layer))

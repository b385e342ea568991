"""Fields of the config group `noise`: how documents become corrupted sources that an encoder-decoder restores."""

import dataclasses

from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError

NOISES = ('none', 'span_corruption', 'bart')
# kind of noise -> fields of `noise` that it reads besides `name`
READ = {
    'none': (),
    'span_corruption': ('density', 'mean_span'),
    'bart': ('mean_span', 'permutation', 'infilling', 'masking', 'deletion', 'rotation'),
}


@dataclasses.dataclass(frozen=True)
class NoiseConfig:
    """Corruption of the texts of `data.source`, which the model learns to undo.

    'span_corruption' (T5, Raffel et al. 2019, arXiv 1910.10683, section 3.1.4) replaces each span of tokens by a
    sentinel; the target lists each sentinel and its span. 'bart' (Lewis et al. 2019, arXiv 1910.13461, section 2.2)
    applies permutation, infilling, masking, deletion and rotation, in this order; the target is the original text.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # kind of noise: 'span_corruption' | 'bart' | 'none' (no corruption; pairs come from `pairs.train`)
    name: str = 'none'
    density: float = 0.15  # share of a text's tokens that the spans of 'span_corruption' cover
    # mean length of a span: in tokens for 'span_corruption'; in words for 'bart', sampled from a Poisson distribution
    mean_span: float = 3.0
    permutation: float = 1.0  # share of a text's sentences that are shuffled
    infilling: float = 0.3  # share of the words that spans cover; one mask replaces each span
    # of the tokens that infilling leaves, the share that is masked; one mask replaces each of these tokens
    masking: float = 0.0
    deletion: float = 0.0  # of the tokens that masking leaves, the share that is deleted
    rotation: float = 0.0  # share of the texts that are rotated, so that they start at a random token

    def __post_init__(self) -> None:
        check_one_of('noise.name', self.name, NOISES)
        check_in_interval('noise.density', self.density, 0, 1, low_is_open=True, high_is_open=True)
        check_in_interval('noise.mean_span', self.mean_span, 1)
        for name in ('permutation', 'infilling', 'masking', 'deletion', 'rotation'):
            check_in_interval(f'noise.{name}', getattr(self, name), 0, 1)

    def check_no_unread_fields(self) -> None:
        """Raises InputError if a field is set although the chosen kind of noise does not read it."""
        check_others_at_default(self, 'noise', f'noise.name {self.name!r}', read=('name', *READ[self.name]))
        if self.name == 'bart' and not self.infilling:
            others = tuple(name for name in READ[self.name] if name != 'mean_span')
            check_others_at_default(self, 'noise', 'noise.infilling 0.0', read=('name', *others))


def check_others_at_default(group: object, name: str, reason: str, *, read: tuple[str, ...]) -> None:
    """Raises InputError if a field of a config group is not in `read` but differs from its default.

    Args:
        group: a config dataclass.
        name: name of the group, for the message.
        reason: the setting that makes the fields unused, for the message.
        read: names of the fields that may have any value.
    """
    for field in dataclasses.fields(group):  # type: ignore[arg-type]  # no type is every dataclass
        value = getattr(group, field.name)
        if field.name not in read and value != field.default:
            raise InputError(f'{name}.{field.name} is {value!r}; with {reason} it must be {field.default!r}')

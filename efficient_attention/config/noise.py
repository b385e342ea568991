"""Fields of the config group `noise`: how texts of documents become sources that an encoder-decoder mends."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.errors import InputError

NOISES = ('none', 'span_corruption', 'bart')
# The fields that each noise reads beside `name`.
READ = {
    'none': (),
    'span_corruption': ('density', 'mean_span'),
    'bart': ('mean_span', 'permutation', 'infilling', 'masking', 'deletion', 'rotation'),
}


@dataclasses.dataclass(frozen=True)
class NoiseConfig:
    """What is done to a text of `data.source` before a model restores it.

    'span_corruption' (T5, Raffel et al. 2019, arXiv 1910.10683, section 3.1.4): a sentinel in place of each span of
    tokens; the target has the spans behind their sentinels. 'bart' (Lewis et al. 2019, arXiv 1910.13461, section 2.2):
    permutation, infilling, masking, deletion and rotation, in this order; the target is the text.

    Raises:
        InputError: a field is out of its range; names the field, its value and what is allowed.
    """

    name: str = 'none'  # 'none' = pairs of `pairs.train` | 'span_corruption' | 'bart'
    density: float = 0.15  # of 'span_corruption': share of a text's tokens in spans
    mean_span: float = 3.0  # of 'span_corruption' tokens, of 'bart' words: the mean of a Poisson distribution
    permutation: float = 1.0  # share of a text's sentences that change places
    infilling: float = 0.3  # share of the words in spans, each of which becomes one mask
    masking: float = 0.0  # share of the tokens then left that become a mask each
    deletion: float = 0.0  # share of the tokens then left that go without a trace
    rotation: float = 0.0  # share of the texts that begin at a random token, with what was before it at the end

    def __post_init__(self) -> None:
        check_one_of('noise.name', self.name, NOISES)
        check_within('noise.density', self.density, 0, 1, low_is_open=True, high_is_open=True)
        check_within('noise.mean_span', self.mean_span, 1)
        for name in ('permutation', 'infilling', 'masking', 'deletion', 'rotation'):
            check_within(f'noise.{name}', getattr(self, name), 0, 1)

    def check_read(self) -> None:
        """Raises InputError where a field is set that the noise does not read."""
        check_default(self, 'noise', f'noise.name {self.name!r}', read=('name', *READ[self.name]))
        if self.name == 'bart' and not self.infilling:
            others = tuple(name for name in READ[self.name] if name != 'mean_span')
            check_default(self, 'noise', 'noise.infilling 0.0', read=('name', *others))


def check_default(group: object, name: str, reason: str, *, read: tuple[str, ...]) -> None:
    """Raises InputError where a field of a config group has another value than its default, but for those in `read`.

    Args:
        group: a config dataclass.
        name: of the group, for the message.
        reason: what does not read the fields, for the message.
        read: the names of fields that may have any value.
    """
    for field in dataclasses.fields(group):  # type: ignore[arg-type]  # no type is every dataclass
        value = getattr(group, field.name)
        if field.name not in read and value != field.default:
            raise InputError(f'{name}.{field.name} is {value!r}; with {reason} it must be {field.default!r}')

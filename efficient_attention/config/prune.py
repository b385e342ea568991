"""Fields of the config group `prune`: which weights of the layers become zero while a run trains."""

import dataclasses
import math

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.errors import InputError

NONE = 'none'
SORTED = ('magnitude', 'movement', 'random')  # methods that keep the share with the largest scores
PENALISED = ('soft_movement', 'l0')  # methods whose loss alone decides how many weights are left
TRAINED = ('movement', *PENALISED)  # methods whose scores are trained
STILL = ('random', 'fixed')  # methods whose scores stay as they begin
METHODS = (NONE, *SORTED, *PENALISED, 'fixed')
WEIGHT = 'weight'  # single weights are kept or removed
OF_ATTENTION = (WEIGHT, 'block', 'head', NONE)
OF_FEED_FORWARD = (WEIGHT, 'block', 'unit', NONE)
SCOPES = ('matrix', 'global')
EARLIER_KEEP = 0.15  # the default of `keep` in configs that were written before it became 0.5
# the methods that read a field; one that is not here is read by all but 'none'
READERS = {
    'keep': SORTED,
    'keep_attention': SORTED,
    'scope': SORTED,
    'begin': (*SORTED, *PENALISED),
    'end': (*SORTED, *PENALISED),
    'threshold': ('soft_movement',),
    'penalty': PENALISED,
    'learning_rate': TRAINED,
    'mask_from': ('fixed',),
}


@dataclasses.dataclass(frozen=True)
class PruneConfig:
    """Pruning while training: the model computes with masked kernels, in training as in evaluation.

    Raises:
        InputError: a field is out of range, or is set though the method does not read it; names the field.
    """

    # 'magnitude': the largest |W| are kept | 'movement': those with the largest score, where the gradient of a score is
    # that of the masked weight times the weight (Sanh et al. 2020, arXiv 2005.07683) | 'soft_movement': those with
    # sigmoid(score) above `threshold` | 'l0': gates of the hard concrete distribution (Louizos et al. 2018, arXiv
    # 1712.01312) | 'random': drawn from train.seed | 'fixed': those of `mask_from` | 'none'
    method: str = NONE
    attention: str = (
        'weight'  # what of it is kept or removed as one: 'weight' | 'block' | 'head' | 'none' = all is kept
    )
    # likewise 'weight' | 'block' | 'unit' = a column of `up` and `gate` with its row of `down` | 'none'
    feed_forward: str = 'weight'
    block: int = 32  # side of a block, in weights
    keep: float = 0.5  # share that is kept at the end
    keep_attention: float = 0.0  # the same of attention; 0 = `keep`
    # the share is that of each layer's matrix (heads, units) | 'global': of all layers together, of entries as large
    scope: str = 'matrix'
    begin: float = 0.1  # share of the run until which all is kept
    # share of the run after which the final share is kept; between them the share (for 'soft_movement' the threshold,
    # and the penalty) goes by a cubic (Zhu and Gupta 2017, arXiv 1710.01878)
    end: float = 0.8
    threshold: float = 0.1  # of sigmoid(score), at the end; at least 0.5 % of a matrix are kept
    penalty: float = 0.0  # factor of the mean of the probabilities of being kept, added to the loss; at the end
    learning_rate: float = 1e-2  # the peak of the scores', by the optimizer's schedule
    mask_from: str = ''  # workdir or folder whose zeros are the mask; weights are those of train.start_from, or drawn

    def __post_init__(self) -> None:
        if self.method not in SORTED and self.keep == EARLIER_KEEP:
            object.__setattr__(self, 'keep', PruneConfig.keep)  # these methods ignore `keep`: configs stay equal
        check_one_of('prune.method', self.method, METHODS)
        check_one_of('prune.attention', self.attention, OF_ATTENTION)
        check_one_of('prune.feed_forward', self.feed_forward, OF_FEED_FORWARD)
        check_one_of('prune.scope', self.scope, SCOPES)
        check_within('prune.block', self.block, 1)
        check_within('prune.keep', self.keep, 0, 1, low_is_open=True)
        check_within('prune.keep_attention', self.keep_attention, 0, 1)
        check_within('prune.begin', self.begin, 0, 1)
        check_within('prune.end', self.end, 0, 1)
        check_within('prune.threshold', self.threshold, 0, 1, low_is_open=True, high_is_open=True)
        check_within('prune.penalty', self.penalty, 0)
        check_within('prune.learning_rate', self.learning_rate, 0, low_is_open=True)
        if self.end < self.begin:
            raise InputError(f'prune.end is {self.end}; it must not be below prune.begin {self.begin}')

    def check_read(self) -> None:
        """Raises InputError where a field is set that the method does not read, or one is missing that it needs."""
        for field in dataclasses.fields(PruneConfig):
            value, readers = getattr(self, field.name), READERS.get(field.name, METHODS[1:])
            if field.name != 'method' and self.method not in readers and value != field.default:
                raise InputError(
                    f'prune.{field.name} is {value!r}, which prune.method {self.method!r} does not read; leave '
                    f'it at {field.default!r}'
                )
        has_blocks = 'block' in (self.attention, self.feed_forward)
        if not has_blocks and self.block != PruneConfig.block:
            raise InputError(f'prune.block is {self.block}, and neither attention nor feed_forward goes by blocks')
        if not self.is_on:
            return
        if self.attention == NONE and self.feed_forward == NONE:
            raise InputError('prune.attention and prune.feed_forward are both none, so that nothing is pruned')
        if self.keep_attention and self.attention == NONE:
            raise InputError(f"prune.keep_attention is {self.keep_attention}, and prune.attention is 'none'")
        if self.method in PENALISED and not self.penalty:
            raise InputError(
                f'prune.penalty is 0.0; with prune.method {self.method!r} it alone decides how much is removed, so it '
                'must be above 0'
            )
        if self.method == 'fixed' and not self.mask_from:
            raise InputError("prune.mask_from is empty; prune.method 'fixed' takes the zeros of that checkpoint")

    @property
    def is_on(self) -> bool:
        """Whether anything is pruned."""
        return self.method != NONE

    @property
    def has_schedule(self) -> bool:
        """Whether what is pruned follows a schedule in shares of the run."""
        return self.method in (*SORTED, *PENALISED)

    @property
    def has_trained_scores(self) -> bool:
        """Whether scores are trained beside the weights."""
        return self.method in TRAINED

    @property
    def has_still_scores(self) -> bool:
        """Whether there are scores that stay as they begin."""
        return self.method in STILL

    def final_step(self, steps: int) -> int:
        """The first step with the final share or penalty, in a run of so many steps; 0 where nothing changes."""
        return math.ceil(round(self.end * steps, 6)) if self.has_schedule else 0  # 0.55 * 100 is a little above 55

"""Fields of the config group `prune`: which weights of the layers become zero during training."""

import dataclasses
import math

from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError

NONE = 'none'
# pruning methods that keep the given share of the weights: those with the largest scores
SORTED = ('magnitude', 'movement', 'random')
PENALISED = ('soft_movement', 'l0')  # pruning methods where only a penalty decides how many weights remain
TRAINED = ('movement', *PENALISED)  # pruning methods with trained scores
STILL = ('random', 'fixed')  # pruning methods whose scores never change during training
METHODS = (NONE, *SORTED, *PENALISED, 'fixed')
WEIGHT = 'weight'  # pruning unit: single weights
OF_ATTENTION = (WEIGHT, 'block', 'head', NONE)
OF_FEED_FORWARD = (WEIGHT, 'block', 'unit', NONE)
SCOPES = ('matrix', 'global')
EARLIER_KEEP = 0.15  # an earlier default of `keep`, which saved configs may contain
# field -> pruning methods that read it; all methods except 'none' read the fields that this dict does not list
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
    """Pruning during training: the model computes with masked kernels, in training and in evaluation.

    Raises:
        InputError: a field is out of range, or is set though the method does not read it; the message names the field.
    """

    # pruning method: 'none' | 'magnitude' | 'movement' | 'random' | 'soft_movement' | 'l0' | 'fixed'
    # 'magnitude' keeps the weights with the largest |W|; 'movement' keeps the weights with the largest scores.
    # 'soft_movement' keeps weights with sigmoid(score) above `threshold`.
    # 'random' keeps a random sample of the weights, drawn with the seed train.seed.
    # 'l0' masks weights by gates with the hard concrete distribution (Louizos et al. 2018, arXiv 1712.01312).
    # 'fixed' keeps the weights that are not zero in the checkpoint `mask_from`.
    # A movement score's gradient is the masked weight's gradient times the weight (Sanh et al. 2020, arXiv 2005.07683).
    method: str = NONE
    # unit of pruning in attention: 'weight' | 'block' | 'head' | 'none' (no pruning of attention)
    attention: str = 'weight'
    # unit of pruning in feed-forward layers: 'weight' | 'block' | 'unit' | 'none' (no pruning of feed-forward layers)
    # A feed-forward 'unit' is one inner neuron: a column of the kernels `up` and `gate`, and a row of `down`.
    feed_forward: str = 'weight'
    block: int = 32  # side of a square block, in weights
    keep: float = 0.5  # share of the weights that are kept at the end of pruning
    keep_attention: float = 0.0  # overrides `keep` for attention; 0 = `keep`
    # to what the kept share applies: each 'matrix' (for heads and units, each layer) | 'global' (all layers together).
    # With scope 'global', weights, blocks, heads or units compete only with others of equal size.
    scope: str = 'matrix'
    begin: float = 0.1  # fraction of the run before pruning begins
    # fraction of the run after which the kept share is final.
    # Between `begin` and `end`, the kept share follows a cubic function (Zhu and Gupta 2017, arXiv 1710.01878).
    # The threshold of 'soft_movement' and the penalty follow the same cubic function.
    end: float = 0.8
    threshold: float = 0.1  # final threshold of sigmoid(score); at least 0.5 % of each matrix is kept
    # final weight of the penalty in the loss; the penalty is the mean probability that an entry is kept
    penalty: float = 0.0
    learning_rate: float = 1e-2  # peak learning rate of the scores, with the optimizer's schedule
    # workdir or model folder, whose zero weights become the mask of the method 'fixed'.
    # The initial weights of the method 'fixed' come from train.start_from, or are random.
    mask_from: str = ''

    def __post_init__(self) -> None:
        if self.method not in SORTED and self.keep == EARLIER_KEEP:
            # Methods that ignore `keep` get its present default, so that configs from old files equal new configs.
            object.__setattr__(self, 'keep', PruneConfig.keep)
        check_one_of('prune.method', self.method, METHODS)
        check_one_of('prune.attention', self.attention, OF_ATTENTION)
        check_one_of('prune.feed_forward', self.feed_forward, OF_FEED_FORWARD)
        check_one_of('prune.scope', self.scope, SCOPES)
        check_in_interval('prune.block', self.block, 1)
        check_in_interval('prune.keep', self.keep, 0, 1, low_is_open=True)
        check_in_interval('prune.keep_attention', self.keep_attention, 0, 1)
        check_in_interval('prune.begin', self.begin, 0, 1)
        check_in_interval('prune.end', self.end, 0, 1)
        check_in_interval('prune.threshold', self.threshold, 0, 1, low_is_open=True, high_is_open=True)
        check_in_interval('prune.penalty', self.penalty, 0)
        check_in_interval('prune.learning_rate', self.learning_rate, 0, low_is_open=True)
        if self.end < self.begin:
            raise InputError(f'prune.end is {self.end}; it must not be below prune.begin {self.begin}')

    def check_no_unread_fields(self) -> None:
        """Raises InputError if a field is set that the method does not read, or if a required field is missing."""
        for field in dataclasses.fields(PruneConfig):
            value, readers = getattr(self, field.name), READERS.get(field.name, METHODS[1:])
            if field.name != 'method' and self.method not in readers and value != field.default:
                raise InputError(
                    f'prune.{field.name} is {value!r}, which prune.method {self.method!r} does not read; leave '
                    f'it at {field.default!r}'
                )
        has_blocks = 'block' in (self.attention, self.feed_forward)
        if not has_blocks and self.block != PruneConfig.block:
            raise InputError(
                f"prune.block is {self.block}, and neither prune.attention nor prune.feed_forward is 'block'"
            )
        if not self.is_enabled:
            return
        if self.attention == NONE and self.feed_forward == NONE:
            raise InputError('prune.attention and prune.feed_forward are both none, so that nothing is pruned')
        if self.keep_attention and self.attention == NONE:
            raise InputError(f"prune.keep_attention is {self.keep_attention}, and prune.attention is 'none'")
        if self.method in PENALISED and not self.penalty:
            raise InputError(
                f'prune.penalty is 0.0; it must be above 0 with prune.method {self.method!r}, where only the penalty '
                'removes weights'
            )
        if self.method == 'fixed' and not self.mask_from:
            raise InputError("prune.mask_from is empty; prune.method 'fixed' takes the zeros of that checkpoint")

    @property
    def is_enabled(self) -> bool:
        """Whether the run prunes anything."""
        return self.method != NONE

    @property
    def has_schedule(self) -> bool:
        """Whether pruning follows a schedule, from the fraction `begin` to the fraction `end` of the training steps."""
        return self.method in (*SORTED, *PENALISED)

    @property
    def has_trained_scores(self) -> bool:
        """Whether the pruning method trains scores in addition to the weights."""
        return self.method in TRAINED

    @property
    def has_fixed_scores(self) -> bool:
        """Whether the pruning scores never change during training."""
        return self.method in STILL

    def final_step(self, steps: int) -> int:
        """Returns the first training step with the final kept share or penalty; 0 if the pruning method has no
        schedule.
        """
        # rounded, because 0.55 * 100 is slightly above 55
        return math.ceil(round(self.end * steps, 6)) if self.has_schedule else 0

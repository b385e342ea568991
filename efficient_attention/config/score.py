"""Fields of how queries and keys are compared, a part of the config group `model`."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.relative import RelativeConfig
from efficient_attention.errors import require

SCORES = ('dot', 'general', 'additive', 'location')
UNSCALED = ('additive', 'location')  # which 1 / sqrt(K) does not multiply
# Fields of which each score but 'dot' has no sense, or no form yet, with the values that they must have.
DOT_ALONE = {'shared_qk': False, 'rotary': False, 'global_tokens': 0}
BIASES = ('none', 'alibi', 't5')  # of `relative`: those that a sum with any logits makes sense of
ADDITIVE_BACKENDS = ('auto', 'reference', 'dense')


@dataclasses.dataclass(frozen=True)
class ScoreConfig(RelativeConfig):
    """The compatibility of a query q and a key k, in all attentions of the model, and how drawn keys are learnt.

    'dot' q k, 'general' q W k (Luong et al. 2015, arXiv 1508.04025, equation 8), 'additive' v tanh(q + k) (Bahdanau et
    al. 2014, arXiv 1409.0473), 'location' q t of a learned vector t for each key position (Luong, equation 9).

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # 'dot' | 'general' | 'additive' | 'location'; the first two times 1 / sqrt(K) with `scaled_logits`
    score: str = 'dot'
    location_length: int = 512  # key positions that have a vector of 'location'
    # factor of the gradient of what a sampled cross-attention draws; 1 = that of the expected loss
    reinforce_weight: float = 1.0

    def __post_init__(self) -> None:
        RelativeConfig.__post_init__(self)
        check_one_of('model.score', self.score, SCORES)
        check_within('model.reinforce_weight', self.reinforce_weight, 0)
        is_read = self.cross_mechanism.draws.in_training or self.reinforce_weight == 1.0
        allowed = '1.0 without a model.cross_attention that draws, such as hard(full, sampled=True)'
        require(is_read, 'model.reinforce_weight', self.reinforce_weight, allowed)
        length, default = self.location_length, ScoreConfig.location_length
        require(length >= 1, 'model.location_length', length, 'at least 1')
        is_read = self.score == 'location' or length == default
        require(is_read, 'model.location_length', length, f"{default} without model.score 'location', which reads it")
        if self.score == 'dot':
            return
        why = f'with model.score {self.score!r}'
        for name, needed in DOT_ALONE.items():
            require(getattr(self, name) == needed, f'model.{name}', getattr(self, name), f'{needed!r} {why}')
        require(self.relative in BIASES, 'model.relative', self.relative, f'one of {", ".join(BIASES)} {why}')
        is_read = self.scaled_logits or self.score not in UNSCALED
        require(is_read, 'model.scaled_logits', self.scaled_logits, f'True {why}, which is never scaled')
        self._check_logits(why)

    def _check_logits(self, why: str) -> None:
        if self.score != 'additive':
            return
        backends = ', '.join(ADDITIVE_BACKENDS)
        fits = self.attention_backend in ADDITIVE_BACKENDS
        require(fits, 'model.attention_backend', self.attention_backend, f'one of {backends} {why}')
        allowed = f'a distribution over the logits of a pattern {why}'
        has_logits = all(mechanism.form.has_logits for mechanism in self.mechanisms)
        require(has_logits, 'model.attention', self.attention, allowed)
        require(self.cross_mechanism.form.has_logits, 'model.cross_attention', self.cross_attention, allowed)

"""Fields of the config group `distill`: what a student learns from a teacher beside its labels."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import CHANGEABLE, marked
from efficient_attention.config.layer_numbers import is_layer_list
from efficient_attention.errors import InputError

MAPS = ('uniform', 'last')
PROJECTIONS = ('own', 'one', 'none')
# Terms that compare what lies inside both models, as fields of the group; 'soft' compares what comes out of them.
INSIDE = ('cosine', 'hidden', 'embeddings', 'attention', 'attention_relations', 'value_relations')
HEADS = ('attention', 'attention_relations', 'value_relations')  # those that compare heads
MAPPED = ('hidden', *HEADS)  # those that compare layers one by one


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """The teacher of a run, and a weight for each term of its loss; a term of weight 0 is not computed.

    Raises:
        InputError: a field is out of range, or is set without a teacher; names the field.
    """

    # a workdir or Hugging Face folder; several with commas are an ensemble, whose logits are averaged; '' = none
    teacher: str = marked(CHANGEABLE, default='')  # its numbers are in the fingerprint, the place of its files is not
    temperature: float = 1.0  # T, by which the logits of both are divided (Hinton et al. 2015, arXiv 1503.02531)
    labels: float = 1.0  # the task's loss, by its labels
    # T^2 KL(teacher || student) over classes, tags, choices, places of a span or masked words; of numbers the squared
    # difference
    soft: float = 1.0
    cosine: float = 0.0  # 1 - cosine of the last vectors of each token (DistilBERT, Sanh et al. 2019, arXiv 1910.01108)
    hidden: float = 0.0  # mean squared difference of the vectors after mapped layers (TinyBERT, Jiao et al. 2019)
    embeddings: float = 0.0  # the same of the vectors that both stacks begin with
    attention: float = 0.0  # mean squared difference of the attention logits of mapped layers
    attention_relations: float = 0.0  # KL of the attention weights of mapped layers (MiniLM, Wang et al. 2020)
    value_relations: float = 0.0  # KL of softmax(V V^T / sqrt(K)) of mapped layers
    # which layer of the teacher each of the student's learns from: 'uniform' = m N / M of the teacher's N for the
    # student's m of M | 'last' = the last from the last, no other from any | a list such as '2,3,5,6', counted from 1
    layers: str = 'uniform'
    # learned maps of the student's width to the teacher's, which no checkpoint's user needs: 'own' of each layer |
    # 'one' for all | 'none'
    projection: str = 'own'
    # keep what the teacher says of each training row and compute it once; for `soft` alone, in fine-tuning
    keep_logits: bool = marked(CHANGEABLE, default=True)
    cache: str = marked(CHANGEABLE, default='cache')  # the folder where they are kept

    def __post_init__(self) -> None:
        check_within('distill.temperature', self.temperature, 0, low_is_open=True)
        for name in ('labels', 'soft', *INSIDE):
            check_within(f'distill.{name}', getattr(self, name), 0)
        check_one_of('distill.projection', self.projection, PROJECTIONS)
        if not is_layer_list(self.layers):
            check_one_of('distill.layers', self.layers, (*MAPS, "a list such as '2,3,5,6'"))
        if not self.is_on:
            return
        if not (self.soft or self.inside):
            names = ', '.join(f'distill.{name}' for name in ('soft', *INSIDE))
            raise InputError(f'distill.teacher is {self.teacher!r}, and nothing is learned from it: {names} are all 0')
        if self.inside and len(self.teachers) > 1:
            allowed = f'one model with distill.{self.inside[0]}; an ensemble has no layers in common'
            raise InputError(f'distill.teacher is {self.teacher!r}; it must be {allowed}')

    def check_has_teacher(self) -> None:
        """Raises InputError where a field is set that nothing reads without a teacher."""
        known = [] if self.is_on else dataclasses.fields(DistillConfig)
        unread = [f'distill.{one.name}={one.default!r}' for one in known if getattr(self, one.name) != one.default]
        if unread:
            raise InputError(
                "distill.teacher is empty: name the teacher's folder there, or distill nothing, with "
                f'{", ".join(unread)}'
            )

    @property
    def is_on(self) -> bool:
        """Whether there is a teacher."""
        return bool(self.teachers)

    @property
    def teachers(self) -> tuple[str, ...]:
        """The folders of the teacher, or of each of an ensemble."""
        return tuple(part.strip() for part in self.teacher.split(',') if part.strip())

    @property
    def inside(self) -> tuple[str, ...]:
        """The terms with a weight that compare what lies inside both models."""
        return tuple(name for name in INSIDE if getattr(self, name))

    @property
    def maps_layers(self) -> bool:
        """Whether layers of the student learn each from one of the teacher's."""
        return any(getattr(self, name) for name in MAPPED)

    @property
    def has_projections(self) -> bool:
        """Whether the student's vectors are mapped to the teacher's width before they are compared."""
        return self.projection != 'none' and bool(self.hidden or self.embeddings)

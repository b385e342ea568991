"""Fields of the config group `distill`: the teacher of a student model and the weights of the distillation losses."""

import dataclasses

from efficient_attention.config.field_metadata import CHANGEABLE, COMMA_LIST, field_with_marks
from efficient_attention.config.layer_numbers import is_layer_list
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError

MAPS = ('uniform', 'last')
PROJECTIONS = ('own', 'one', 'none')
# Fields of the losses that compare hidden states or attention of student and teacher; `soft` compares their outputs.
INSIDE = ('cosine', 'hidden', 'embeddings', 'attention', 'attention_relations', 'value_relations')
HEADS = ('attention', 'attention_relations', 'value_relations')  # losses that compare student and teacher head by head
MAPPED = ('hidden', *HEADS)  # losses that compare pairs of one student layer and one teacher layer


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """Knowledge distillation of a run: a teacher and a weight per loss; losses of weight 0 are not computed.

    Raises:
        InputError: a field is out of range, or is set without a teacher; the message names the field.
    """

    # teacher model: a workdir or a Hugging Face folder; '' = no teacher.
    # Several folders, separated by commas, form an ensemble of teachers, whose logits are averaged.
    # A resumed run may move the teacher to another folder, but not change the teacher's parameters.
    teacher: str = field_with_marks(CHANGEABLE, COMMA_LIST, default='')
    # temperature T, which divides the logits of student and teacher (Hinton et al. 2015, arXiv 1503.02531)
    temperature: float = 1.0
    labels: float = 1.0  # weight of the task's own loss on the labels
    # weight of T^2 KL(teacher || student) over classes, tags, choices, span positions or masked words.
    # In regression, `soft` is the weight of the squared difference of the two models' outputs.
    soft: float = 1.0
    # weight of 1 - cosine of the student's and teacher's final hidden states (Sanh et al. 2019, arXiv 1910.01108)
    cosine: float = 0.0
    # weight of the mean squared difference of hidden states after paired layers (TinyBERT, Jiao et al. 2019)
    hidden: float = 0.0
    embeddings: float = 0.0  # weight of the mean squared difference of the embeddings below the first layer
    attention: float = 0.0  # weight of the mean squared difference of attention logits of paired layers
    # weight of the KL divergence of attention weights of paired layers (MiniLM, Wang et al. 2020)
    attention_relations: float = 0.0
    # weight of the KL divergence of the value relations softmax(V V^T / sqrt(K)) of paired layers; V = values
    value_relations: float = 0.0
    # which teacher layer each student layer learns from: 'uniform' | 'last' | a list such as '2,3,5,6'.
    # Layer numbers in the list count from 1.
    # With 'uniform', student layer m of M learns from layer m N / M of a teacher with N layers.
    # With 'last', only the last student layer learns, from the last teacher layer.
    layers: str = field_with_marks(COMMA_LIST, default='uniform')
    # learned projections from the student's width to the teacher's width, used only while training
    # kinds: 'own' (one projection per layer) | 'one' (one projection for all layers) | 'none' (no projection)
    projection: str = 'own'
    # compute the teacher's logits of all training rows once and store them; only for the loss `soft` in fine-tuning
    keep_logits: bool = field_with_marks(CHANGEABLE, default=True)
    cache: str = field_with_marks(CHANGEABLE, default='cache')  # folder of the stored teacher logits

    def __post_init__(self) -> None:
        check_in_interval('distill.temperature', self.temperature, 0, low_is_open=True)
        for name in ('labels', 'soft', *INSIDE):
            check_in_interval(f'distill.{name}', getattr(self, name), 0)
        check_one_of('distill.projection', self.projection, PROJECTIONS)
        if not is_layer_list(self.layers):
            check_one_of('distill.layers', self.layers, (*MAPS, "a list such as '2,3,5,6'"))
        if not self.is_enabled:
            return
        if not (self.soft or self.intermediate_loss_terms):
            names = ', '.join(f'distill.{name}' for name in ('soft', *INSIDE))
            raise InputError(f'distill.teacher is {self.teacher!r}, and no loss compares with it: {names} are all 0')
        if self.intermediate_loss_terms and len(self.teacher_folders) > 1:
            allowed = f'one model with distill.{self.intermediate_loss_terms[0]}; an ensemble has no layers in common'
            raise InputError(f'distill.teacher is {self.teacher!r}; it must be {allowed}')

    def check_no_fields_without_teacher(self) -> None:
        """Raises InputError if the run has no teacher but another field of `distill` differs from its default."""
        known = [] if self.is_enabled else dataclasses.fields(DistillConfig)
        unread = [f'distill.{one.name}={one.default!r}' for one in known if getattr(self, one.name) != one.default]
        if unread:
            raise InputError(
                "distill.teacher is empty: name the teacher's folder there, or distill nothing, with "
                f'{", ".join(unread)}'
            )

    @property
    def is_enabled(self) -> bool:
        """Whether the run has a teacher."""
        return bool(self.teacher_folders)

    @property
    def teacher_folders(self) -> tuple[str, ...]:
        """Returns the folder of the teacher, or the folder of each teacher of an ensemble."""
        return tuple(part.strip() for part in self.teacher.split(',') if part.strip())

    @property
    def intermediate_loss_terms(self) -> tuple[str, ...]:
        """Returns the names of the losses on hidden states or attention that have a positive weight."""
        return tuple(name for name in INSIDE if getattr(self, name))

    @property
    def has_layer_mapping(self) -> bool:
        """Whether a loss compares pairs of one student layer and one teacher layer."""
        return any(getattr(self, name) for name in MAPPED)

    @property
    def has_projections(self) -> bool:
        """Whether learned projections map the student's hidden states to the teacher's width."""
        return self.projection != 'none' and bool(self.hidden or self.embeddings)

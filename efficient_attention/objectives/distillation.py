"""The distillation loss: a student learns from labels and from a teacher's outputs and layer activations.

The teacher's arrays are part of the batch, with names that begin with 'teacher_'. They are computed before the training
step and get no gradient.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.head import OF_ROWS
from efficient_attention.models.layer_activations import DistillationActivations
from efficient_attention.models.pretraining import pad_predictions_to_devices
from efficient_attention.objectives.bert_pretraining import Pretraining
from efficient_attention.objectives.fine_tuning import FineTuning, tag_weights
from efficient_attention.objectives.objective import Batch, OutputObjective, Sums
from efficient_attention.objectives.teacher_student_states import (
    OPERANDS,
    TEACHER,
    compared_states,
    teacher_state_from_batch,
)

SOFT = 'soft'
# added to squared lengths, far below meaningful lengths, so that a zero vector has cosine 0 and no gradient
SMALL = 1e-12
OF_LABELS = ('fine_tuning_', 'masked_lm_', 'nsp_', 'sop_')  # name prefixes of metrics that need labels


@dataclasses.dataclass(frozen=True)
class Distillation(OutputObjective):
    """Distillation loss: a weighted sum of terms, each a mean over tokens, pairs of tokens or rows.

    `DistillConfig` has the weights of the terms.

    Args:
        inner: the task's objective, whose terms are multiplied by `distill.labels`.
        config: the weights.
        layers: numbers of the student's layers that learn from a teacher layer, counted from 1.
        widths: widths of the hidden states of student and teacher.
        beside: the trained projections, initialised by `initial_auxiliary_params`; None if there are none.
    """

    inner: FineTuning | Pretraining
    config: DistillConfig
    layers: tuple[int, ...]
    widths: tuple[int, int]
    beside: Any = None

    def loss_factor(self, term: str) -> float:
        """Returns the weight of a term in the loss, from the group `distill` of the config."""
        is_own = term == SOFT or term in self.config.intermediate_loss_terms
        return getattr(self.config, term) if is_own else self.config.labels

    def metric_names(self, of_task: frozenset[str]) -> frozenset[str]:
        """Returns the names of the evaluation metrics of a distillation run.

        Metrics by labels are omitted if `distill.labels` is 0, because they are not computed.
        """
        terms = (
            (SOFT, *self.config.intermediate_loss_terms) if self.config.soft else self.config.intermediate_loss_terms
        )
        unknown = () if self.config.labels else OF_LABELS
        kept = {name for name in of_task if not name.startswith(unknown)} if unknown else of_task
        return frozenset(kept) | {f'{term}_loss' for term in terms}

    def initial_auxiliary_params(self, rng: Array) -> Any:
        """Returns the initial projections from the student's to the teacher's width; None if the config has no
        projections.
        """
        if not self.config.has_projections:
            return None
        keys, (width, wide) = jax.random.split(rng), self.widths
        normal = jax.nn.initializers.normal(1.0 / math.sqrt(width))
        if self.config.projection == 'one':
            return {'all': {'kernel': normal(keys[0], (width, wide), jnp.float32)}}
        kernels = {}
        if self.config.hidden:
            kernels['hidden'] = normal(keys[0], (len(self.layers), width, wide), jnp.float32)
        if self.config.embeddings:
            kernels['embeddings'] = normal(keys[1], (width, wide), jnp.float32)
        return {name: {'kernel': kernel} for name, kernel in kernels.items()}

    def with_auxiliary_params(self, beside: Any) -> Self:
        """Returns the objective with the current values of the trained projections."""
        return dataclasses.replace(self, beside=beside)

    def weights(self, batch: Batch) -> dict[str, Array]:
        """Returns the total weight of each loss term, such as its number of compared rows, tokens or token pairs."""
        weights = self.inner.weights(batch) if self.config.labels else {}
        if self.config.soft:
            weights[SOFT] = self.soft_weights(batch).sum()
        for name in self.config.intermediate_loss_terms:
            is_one = is_same_text(batch) if name == 'attention' else is_token(batch)
            weights[name] = is_one.astype(jnp.float32).sum()
        return weights

    def sums(self, model: Any, batch: Batch, carry: Any, rng: Array | None, step: Array | int = 0) -> tuple[Sums, Any]:
        """Returns the sums of all loss terms over the batch, and `carry` unchanged."""
        return self.outputs_and_sums(model, batch, rng=rng, step=step)[1], carry

    def outputs_and_sums(
        self, model: Any, batch: Batch, *, rng: Array | None = None, step: Array | int = 0
    ) -> tuple[Mapping[str, Array], Sums]:
        """Returns the model's outputs per row, and the sums of all loss terms over the batch."""
        if not self.config.intermediate_loss_terms:
            outputs = model.outputs(batch, rng=rng, step=step)
            return outputs, self.sums_of(outputs, batch)
        outputs, inside = model.with_hidden_states(batch, rng=rng, step=step)
        return outputs, self.sums_of(outputs, batch) | self.hidden_state_loss_sums(inside, batch)

    def sums_of(self, outputs: Mapping[str, Array], batch: Batch) -> Sums:
        """Returns the sums of the loss terms that compare the outputs of student, teacher and labels."""
        sums = self.inner.sums_of(outputs, batch) if self.config.labels else {}
        if self.config.soft:
            sums[SOFT] = {'loss': (self.soft_losses(outputs, batch) * self.soft_weights(batch)).sum()}
        return sums

    def hidden_state_loss_sums(self, inside: DistillationActivations, batch: Batch) -> Sums:
        """Returns the sums of the loss terms that compare layer activations of student and teacher."""
        student = compared_states(inside, self.config.intermediate_loss_terms, self.layers)
        teacher = {name: teacher_state_from_batch(batch, name) for name in student}
        return {
            name: {'loss': self.hidden_state_loss_sum(name, student, teacher, is_same_text(batch))}
            for name in self.config.intermediate_loss_terms
        }

    def hidden_state_loss_sum(
        self, name: str, student: Mapping[str, Array], teacher: Mapping[str, Array], is_pair_BLM: Array
    ) -> Array:
        """Returns the sum of one loss term that compares layer activations of student and teacher.

        `student` and `teacher` are results of `compared_states`.
        """
        is_token_BL = is_pair_BLM.any(axis=-1)
        if name == 'cosine':
            return cosine_distance_sum(student[name][0], teacher[name][0], is_token_BL)
        if name not in OPERANDS:
            return squared_error_sum(self.project_to_teacher_width(name, student[name]), teacher[name], is_token_BL)
        parts = OPERANDS[name]
        mine, theirs = ((arrays[parts[0]], arrays[parts[-1]]) for arrays in (student, teacher))
        return (attention_logits_error_sum if name == 'attention' else attention_relations_kl_sum)(
            mine, theirs, is_pair_BLM
        )

    def project_to_teacher_width(self, name: str, states_NBLD: Array) -> Array:
        """Returns the student's hidden states at the teacher's width, through trained projections if there are any."""
        if self.beside is None:
            return states_NBLD
        kernel = jnp.asarray(self.beside['all' if 'all' in self.beside else name]['kernel'])
        letters = 'NDE' if kernel.ndim == 3 else 'DE'
        return jnp.einsum(f'NBLD,{letters}->NBLE', states_NBLD.astype(jnp.float32), kernel)

    @property
    def kind(self) -> str:
        """Returns the kind of the fine-tuning head; 'masked_lm' for pretraining."""
        return self.inner.head.kind if isinstance(self.inner, FineTuning) else 'masked_lm'

    def soft_weights(self, batch: Batch) -> Array:
        """Returns the weight of each example in the loss on the teacher's outputs (`soft`).

        An example is a masked word, a tagged token, or a row with or without a label.
        """
        if self.kind == 'masked_lm':
            return pad_predictions_to_devices(batch)['masked_weights']
        if self.kind == 'token':
            return tag_weights(batch)
        return (batch['index'] >= 0).astype(jnp.float32)

    def soft_losses(self, outputs: Mapping[str, Array], batch: Batch) -> Array:
        """Returns the loss of each example with respect to the teacher's outputs.

        Its shape is [B], for tags [B, L], for masked words [B, P].
        """
        name = 'masked_lm' if self.kind == 'masked_lm' else 'logits'
        student, teacher = outputs[name], batch[f'{TEACHER}{name}']
        if self.kind in OF_ROWS and student.shape[-1] == 1:
            return jnp.square(student - teacher)[:, 0]
        if self.kind == 'span':  # A span head has a softmax over positions, one for the start and one for the end.
            student, teacher = student.swapaxes(1, 2), teacher.swapaxes(1, 2)
            return soft_target_kl(student, teacher, self.config.temperature).mean(axis=-1)
        return soft_target_kl(student, teacher, self.config.temperature)


def is_same_text(batch: Batch) -> Array:
    """Returns whether two tokens of a row belong to the same text: bool [rows, tokens, tokens]. Each choice of a
    multiple-choice example counts as a row.
    """
    segments_BL = batch['segments'].reshape(-1, batch['segments'].shape[-1])
    return (segments_BL[:, :, None] == segments_BL[:, None, :]) & (segments_BL > 0)[:, :, None]


def is_token(batch: Batch) -> Array:
    """Returns whether a position has a token, not padding: bool [rows, positions]. Each choice of a multiple-choice
    example counts as a row.
    """
    return batch['segments'].reshape(-1, batch['segments'].shape[-1]) > 0


# ---- Loss terms that compare student and teacher, summed over a batch. Attention logits are scaled dot products. ----


def soft_target_kl(
    student: Float[Array, '*b C'], teacher: Float[Array, '*b C'], temperature: float
) -> Float[Array, '*b']:
    """Returns the soft-target loss T^2 KL(softmax(teacher / T) || softmax(student / T)) over the last axis.

    As T grows, its gradient with respect to the student's logits tends to (student - teacher) / C, if both have mean 0.
    Source: Hinton et al. 2015, arXiv 1503.02531, section 2.
    """
    log_predictions = jax.nn.log_softmax(student / temperature)
    return temperature**2 * optax.kl_divergence(log_predictions, jax.nn.softmax(teacher / temperature))


def cosine_distance_sum(student_BLD: Array, teacher_BLD: Array, is_token_BL: Array) -> Array:
    """Returns the sum over tokens of 1 - cosine between the student's and the teacher's vector."""
    student_BLD, teacher_BLD = student_BLD.astype(jnp.float32), teacher_BLD.astype(jnp.float32)
    lengths_BL = [jnp.square(x_BLD).sum(axis=-1) + SMALL for x_BLD in (student_BLD, teacher_BLD)]
    cosines_BL = (student_BLD * teacher_BLD).sum(axis=-1) * jax.lax.rsqrt(lengths_BL[0] * lengths_BL[1])
    return jnp.where(is_token_BL, 1.0 - cosines_BL, 0.0).sum()


def squared_error_sum(student_NBLD: Array, teacher_NBLD: Array, is_token_BL: Array) -> Array:
    """Returns the sum over tokens and layers of the mean squared difference of student and teacher vectors."""
    difference_NBLD = student_NBLD.astype(jnp.float32) - teacher_NBLD.astype(jnp.float32)
    return jnp.where(is_token_BL[None], jnp.square(difference_NBLD).mean(axis=-1), 0.0).sum()


def attention_logits_error_sum(student: tuple[Array, Array], teacher: tuple[Array, Array], is_pair_BLM: Array) -> Array:
    """Returns the squared difference of the student's and the teacher's attention logits, summed over token pairs.

    It is also summed over layers, and it is a mean over heads.

    Args:
        student: queries and keys [N, B, L, H, K] of the compared layers.
        teacher: the same, with equally many heads of any width.
        is_pair_BLM: whether both tokens belong to the same text.
    """
    difference_NBHLM = scaled_dot_products(*student) - scaled_dot_products(*teacher)
    return jnp.where(is_pair_BLM[None], jnp.square(difference_NBHLM).mean(axis=2), 0.0).sum()


def attention_relations_kl_sum(student: tuple[Array, Array], teacher: tuple[Array, Array], is_pair_BLM: Array) -> Array:
    """Returns KL(teacher || student) of attention distributions, summed over tokens and layers and averaged over heads.

    The distributions are softmaxes of the products of two vectors. For queries and keys they are attention weights. For
    values with values they are value relations (Wang et al. 2020, MiniLM, arXiv 2002.10957, equations 6 to 9).
    The arguments are the same as in `attention_logits_error_sum`.
    """
    is_pair, is_token_BL = is_pair_BLM[None, :, None], is_pair_BLM.any(axis=-1)
    low = jnp.finfo(jnp.float32).min
    student_NBHLM, teacher_NBHLM = (jnp.where(is_pair, scaled_dot_products(*pair), low) for pair in (student, teacher))
    divergences_NBHL = optax.kl_divergence(jax.nn.log_softmax(student_NBHLM), jax.nn.softmax(teacher_NBHLM))
    return jnp.where(is_token_BL[None], divergences_NBHL.mean(axis=2), 0.0).sum()


def scaled_dot_products(left_NBLHK: Array, right_NBMHK: Array) -> Array:
    """Returns the dot products of all pairs of a left and a right vector, divided by the root of their width: float32
    [layers, rows, heads, left, right]."""
    left_NBLHK, right_NBMHK = left_NBLHK.astype(jnp.float32), right_NBMHK.astype(jnp.float32)
    return jnp.einsum('NBLHK,NBMHK->NBHLM', left_NBLHK, right_NBMHK) / math.sqrt(left_NBLHK.shape[-1])

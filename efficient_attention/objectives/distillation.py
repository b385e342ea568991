"""What a student learns from its labels and from what a teacher says of the same rows.

What the teacher says comes with the batch, as arrays whose names begin with 'teacher_': it is computed before the step,
and no gradient reaches it.
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
from efficient_attention.models.pretraining import in_equal_shares
from efficient_attention.models.taps import Inside
from efficient_attention.objectives.compared import OPERANDS, TEACHER, compared, from_batch
from efficient_attention.objectives.fine_tuning import FineTuning, tag_weights
from efficient_attention.objectives.objective import Batch, OutputObjective, Sums
from efficient_attention.objectives.pretraining import Pretraining

SOFT = 'soft'
SMALL = 1e-12  # below any squared length that counts: a vector of zeros has a cosine of 0, and no gradient
OF_LABELS = ('fine_tuning_', 'masked_lm_', 'nsp_', 'sop_')  # what the names of metrics by labels begin with


@dataclasses.dataclass(frozen=True)
class Distillation(OutputObjective):
    """The terms of `DistillConfig`, each a mean over its own tokens, pairs or rows, times its weight.

    Args:
        inner: the task's objective, whose terms are multiplied by `distill.labels`.
        config: the weights.
        layers: the student's layers that learn from one of the teacher's, counted from 1.
        widths: of the vectors of the student and of the teacher.
        beside: the projections, as `initial_beside` gives them and the step trains them; None where there are none.
    """

    inner: FineTuning | Pretraining
    config: DistillConfig
    layers: tuple[int, ...]
    widths: tuple[int, int]
    beside: Any = None

    def factor(self, term: str) -> float:
        """See `Objective`."""
        is_own = term == SOFT or term in self.config.inside
        return getattr(self.config, term) if is_own else self.config.labels

    def metric_names(self, of_task: frozenset[str]) -> frozenset[str]:
        """See `Objective`; losses by labels that do not count are not computed."""
        terms = (SOFT, *self.config.inside) if self.config.soft else self.config.inside
        unknown = () if self.config.labels else OF_LABELS
        kept = {name for name in of_task if not name.startswith(unknown)} if unknown else of_task
        return frozenset(kept) | {f'{term}_loss' for term in terms}

    def initial_beside(self, rng: Array) -> Any:
        """The matrices from the student's width to the teacher's; None where vectors are compared as they are."""
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

    def with_beside(self, beside: Any) -> Self:
        """See `Objective`."""
        return dataclasses.replace(self, beside=beside)

    def weights(self, batch: Batch) -> dict[str, Array]:
        """The task's, and of each other term how many rows, tokens or pairs it is a mean of."""
        weights = self.inner.weights(batch) if self.config.labels else {}
        if self.config.soft:
            weights[SOFT] = self.soft_weights(batch).sum()
        for name in self.config.inside:
            is_one = is_pair(batch) if name == 'attention' else is_token(batch)
            weights[name] = is_one.astype(jnp.float32).sum()
        return weights

    def sums(self, model: Any, batch: Batch, carry: Any, rng: Array | None, step: Array | int = 0) -> tuple[Sums, Any]:
        """All terms; nothing is handed on."""
        return self.outputs_and_sums(model, batch, rng=rng, step=step)[1], carry

    def outputs_and_sums(
        self, model: Any, batch: Batch, *, rng: Array | None = None, step: Array | int = 0
    ) -> tuple[Mapping[str, Array], Sums]:
        """What the model says of each row, and all terms."""
        if not self.config.inside:
            outputs = model.outputs(batch, rng=rng, step=step)
            return outputs, self.sums_of(outputs, batch)
        outputs, inside = model.with_inside(batch, rng=rng, step=step)
        return outputs, self.sums_of(outputs, batch) | self.inside_sums(inside, batch)

    def sums_of(self, outputs: Mapping[str, Array], batch: Batch) -> Sums:
        """The terms that go by what the model says of each row."""
        sums = self.inner.sums_of(outputs, batch) if self.config.labels else {}
        if self.config.soft:
            sums[SOFT] = {'loss': (self.soft_losses(outputs, batch) * self.soft_weights(batch)).sum()}
        return sums

    def inside_sums(self, inside: Inside, batch: Batch) -> Sums:
        """The terms that go by what lies inside both models."""
        student = compared(inside, self.config.inside, self.layers)
        teacher = {name: from_batch(batch, name) for name in student}
        return {name: {'loss': self.inside_sum(name, student, teacher, is_pair(batch))} for name in self.config.inside}

    def inside_sum(
        self, name: str, student: Mapping[str, Array], teacher: Mapping[str, Array], is_pair_BLM: Array
    ) -> Array:
        """One of these terms from what `compared` gives of both models."""
        is_token_BL = is_pair_BLM.any(axis=-1)
        if name == 'cosine':
            return cosine_sum(student[name][0], teacher[name][0], is_token_BL)
        if name not in OPERANDS:
            return squared_sum(self.projected(name, student[name]), teacher[name], is_token_BL)
        parts = OPERANDS[name]
        mine, theirs = ((arrays[parts[0]], arrays[parts[-1]]) for arrays in (student, teacher))
        return (logits_sum if name == 'attention' else relations_sum)(mine, theirs, is_pair_BLM)

    def projected(self, name: str, states_NBLD: Array) -> Array:
        """The student's vectors in the teacher's width."""
        if self.beside is None:
            return states_NBLD
        kernel = jnp.asarray(self.beside['all' if 'all' in self.beside else name]['kernel'])
        letters = 'NDE' if kernel.ndim == 3 else 'DE'
        return jnp.einsum(f'NBLD,{letters}->NBLE', states_NBLD.astype(jnp.float32), kernel)

    @property
    def kind(self) -> str:
        """Of the head; 'masked_lm' of pretraining."""
        return self.inner.head.kind if isinstance(self.inner, FineTuning) else 'masked_lm'

    def soft_weights(self, batch: Batch) -> Array:
        """The weight of each thing that has soft targets: a masked word, a tagged token, or a row, labelled or not."""
        if self.kind == 'masked_lm':
            return in_equal_shares(batch)['masked_weights']
        if self.kind == 'token':
            return tag_weights(batch)
        return (batch['index'] >= 0).astype(jnp.float32)

    def soft_losses(self, outputs: Mapping[str, Array], batch: Batch) -> Array:
        """The loss of each thing by the teacher's targets: [B], of tags [B, L], of masked words [B, P]."""
        name = 'masked_lm' if self.kind == 'masked_lm' else 'logits'
        student, teacher = outputs[name], batch[f'{TEACHER}{name}']
        if self.kind in OF_ROWS and student.shape[-1] == 1:
            return jnp.square(student - teacher)[:, 0]
        if self.kind == 'span':  # over places; of start and of end
            student, teacher = student.swapaxes(1, 2), teacher.swapaxes(1, 2)
            return soft_targets(student, teacher, self.config.temperature).mean(axis=-1)
        return soft_targets(student, teacher, self.config.temperature)


def is_pair(batch: Batch) -> Array:
    """Bool [B, L, L]: whether two tokens are of one text; each choice is a row."""
    segments_BL = batch['segments'].reshape(-1, batch['segments'].shape[-1])
    return (segments_BL[:, :, None] == segments_BL[:, None, :]) & (segments_BL > 0)[:, :, None]


def is_token(batch: Batch) -> Array:
    """Bool [B, L]: what is no padding; each choice is a row."""
    return batch['segments'].reshape(-1, batch['segments'].shape[-1]) > 0


# ---- terms that compare both models: sums over the rows of a batch; logits are q k / sqrt(K) of one text's tokens ----


def soft_targets(
    student: Float[Array, '*b C'], teacher: Float[Array, '*b C'], temperature: float
) -> Float[Array, '*b']:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) over the last axis.

    As T grows, its gradient to the student's logits tends to (student - teacher) / C where both have mean 0.
    Source: Hinton et al. 2015, arXiv 1503.02531, section 2.
    """
    log_predictions = jax.nn.log_softmax(student / temperature)
    return temperature**2 * optax.kl_divergence(log_predictions, jax.nn.softmax(teacher / temperature))


def cosine_sum(student_BLD: Array, teacher_BLD: Array, is_token_BL: Array) -> Array:
    """The sum over tokens of 1 - the cosine between both vectors."""
    student_BLD, teacher_BLD = student_BLD.astype(jnp.float32), teacher_BLD.astype(jnp.float32)
    lengths_BL = [jnp.square(x_BLD).sum(axis=-1) + SMALL for x_BLD in (student_BLD, teacher_BLD)]
    cosines_BL = (student_BLD * teacher_BLD).sum(axis=-1) * jax.lax.rsqrt(lengths_BL[0] * lengths_BL[1])
    return jnp.where(is_token_BL, 1.0 - cosines_BL, 0.0).sum()


def squared_sum(student_NBLD: Array, teacher_NBLD: Array, is_token_BL: Array) -> Array:
    """The sum over tokens and layers of the mean squared difference of both vectors."""
    difference_NBLD = student_NBLD.astype(jnp.float32) - teacher_NBLD.astype(jnp.float32)
    return jnp.where(is_token_BL[None], jnp.square(difference_NBLD).mean(axis=-1), 0.0).sum()


def logits_sum(student: tuple[Array, Array], teacher: tuple[Array, Array], is_pair_BLM: Array) -> Array:
    """The sum over pairs and layers of the squared difference of both models' logits, a mean over heads.

    Args:
        student: queries and keys [N, B, L, H, K] of the layers that are compared.
        teacher: the same, as many heads of any width.
        is_pair_BLM: whether both tokens are of one text.
    """
    difference_NBHLM = products(*student) - products(*teacher)
    return jnp.where(is_pair_BLM[None], jnp.square(difference_NBHLM).mean(axis=2), 0.0).sum()


def relations_sum(student: tuple[Array, Array], teacher: tuple[Array, Array], is_pair_BLM: Array) -> Array:
    """The sum over tokens and layers of KL(teacher || student) of the softmax of their products, a mean over heads.

    Of queries and keys these are attention weights; of values and themselves, relations of values (Wang et al. 2020,
    MiniLM, arXiv 2002.10957, equations 6 to 9). Arguments as of `logits_sum`.
    """
    is_pair, is_token_BL = is_pair_BLM[None, :, None], is_pair_BLM.any(axis=-1)
    low = jnp.finfo(jnp.float32).min
    student_NBHLM, teacher_NBHLM = (jnp.where(is_pair, products(*pair), low) for pair in (student, teacher))
    divergences_NBHL = optax.kl_divergence(jax.nn.log_softmax(student_NBHLM), jax.nn.softmax(teacher_NBHLM))
    return jnp.where(is_token_BL[None], divergences_NBHL.mean(axis=2), 0.0).sum()


def products(left_NBLHK: Array, right_NBMHK: Array) -> Array:
    """float32 products [N, B, H, L, M] of all pairs of vectors, divided by the root of their width."""
    left_NBLHK, right_NBMHK = left_NBLHK.astype(jnp.float32), right_NBMHK.astype(jnp.float32)
    return jnp.einsum('NBLHK,NBMHK->NBHLM', left_NBLHK, right_NBMHK) / math.sqrt(left_NBLHK.shape[-1])

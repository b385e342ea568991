"""The terms that compare a student with its teacher, each a sum over the rows of a batch.

Where heads are compared, logits are q k / sqrt(K) of both models, over the pairs of tokens of one text.
"""

import math

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

SMALL = 1e-12  # below any squared length that counts: a vector of zeros has a cosine of 0, and no gradient


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

"""Tests the terms that compare two models against NumPy in float64, and the properties of soft targets."""

import jax
import numpy as np
import pytest

from efficient_attention.objectives import distillation

cosine_sum, logits_sum, relations_sum, soft_targets, squared_sum = map(
    jax.jit,
    (
        distillation.cosine_distance_sum,
        distillation.attention_logits_error_sum,
        distillation.attention_relations_kl_sum,
        distillation.soft_target_kl,
        distillation.squared_error_sum,
    ),
)

RNG = np.random.default_rng(0)
SEGMENTS = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]])
PAIRS = (SEGMENTS[:, :, None] == SEGMENTS[:, None, :]) & (SEGMENTS > 0)[:, :, None]
TOKENS = SEGMENTS > 0


def numbers(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize('temperature', [1.0, 2.0, 20.0])
def test_soft_targets_are_a_divergence_times_the_squared_temperature(temperature: float):
    student, teacher = numbers(3, 5).astype(np.float64), numbers(3, 5).astype(np.float64)
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    expected = temperature**2 * (p * (np.log(p) - np.log(q))).sum(axis=-1)
    found = soft_targets(np.float32(student), np.float32(teacher), np.float32(temperature))
    # Logarithms of probabilities are rounded to 1e-7; where both are nearly equal, T^2 times this error remains.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7 * temperature**2)


@jax.jit
def gradient_of(student: jax.Array, teacher: jax.Array, temperature: jax.Array) -> jax.Array:
    return jax.grad(lambda x: distillation.soft_target_kl(x, teacher, temperature).sum())(student)


def gradient(student: np.ndarray, teacher: np.ndarray, temperature: float) -> np.ndarray:
    return np.asarray(gradient_of(student, teacher, np.float32(temperature)))


def test_the_gradient_of_soft_targets_keeps_its_size_and_tends_to_the_difference_of_logits():
    student, teacher = numbers(64, 5), numbers(64, 5)
    student, teacher = (x - x.mean(axis=-1, keepdims=True) for x in (student, teacher))
    sizes = [np.linalg.norm(gradient(student, teacher, temperature)) for temperature in (1.0, 2.0, 5.0, 20.0)]
    assert max(sizes) < 2 * min(sizes)
    np.testing.assert_allclose(gradient(student, teacher, 1000.0), (student - teacher) / 5, atol=2e-3)


def test_the_teacher_s_own_logits_cost_nothing():
    logits = numbers(64, 5)
    logits[:, 3] = -1e9  # This logit is padding.
    np.testing.assert_allclose(soft_targets(logits, logits, np.float32(2.0)), 0.0, atol=1e-6)
    assert np.abs(gradient(logits, logits, 2.0)).max() < 1e-6


def test_the_sum_of_cosines():
    student, teacher = numbers(2, 5, 6), numbers(2, 5, 6)
    cosines = (student * teacher).sum(-1) / np.linalg.norm(student, axis=-1) / np.linalg.norm(teacher, axis=-1)
    found = cosine_sum(student, teacher, TOKENS)
    np.testing.assert_allclose(found, ((1 - cosines) * TOKENS).sum(), rtol=1e-5)


def test_a_vector_of_zeros_has_no_gradient_that_is_not_finite():
    gradient_of_cosines = jax.jit(jax.grad(distillation.cosine_distance_sum))
    assert np.isfinite(gradient_of_cosines(np.zeros((2, 5, 6), np.float32), numbers(2, 5, 6), TOKENS)).all()


def test_the_sum_of_squares_is_a_mean_over_the_width():
    student, teacher = numbers(3, 2, 5, 6), numbers(3, 2, 5, 6)
    found = squared_sum(student, teacher, TOKENS)
    np.testing.assert_allclose(found, (((student - teacher) ** 2).mean(-1) * TOKENS).sum(), rtol=1e-5)


def operands(layers: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    return numbers(layers, 2, 5, 4, width), numbers(layers, 2, 5, 4, width)


def loop_logits(pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.einsum('nblhk,nbmhk->nbhlm', *(x.astype(np.float64) for x in pair)) / np.sqrt(pair[0].shape[-1])


def test_logits_are_compared_over_the_pairs_of_each_text():
    student, teacher = operands(2, 3), operands(2, 8)
    expected = (((loop_logits(student) - loop_logits(teacher)) ** 2).mean(axis=2) * PAIRS).sum()
    np.testing.assert_allclose(logits_sum(student, teacher, PAIRS), expected, rtol=1e-5)


def test_relations_are_compared_as_weights_of_each_text():
    student, teacher = operands(2, 3), operands(2, 8)
    expected = 0.0
    for layer, row, head, token in np.ndindex(2, 2, 4, 5):
        read = PAIRS[row, token]
        if read.any():
            p, q = (softmax(loop_logits(pair)[layer, row, head, token, read]) for pair in (teacher, student))
            expected += (p * (np.log(p) - np.log(q))).sum() / 4
    np.testing.assert_allclose(relations_sum(student, teacher, PAIRS), expected, rtol=1e-5)


def test_what_padding_holds_changes_nothing():
    student, teacher, is_pair = operands(1, 3), operands(1, 3), PAIRS
    other = tuple(np.where(SEGMENTS[None, :, :, None, None] > 0, x, 7.0) for x in student)
    for compare in (logits_sum, relations_sum):
        np.testing.assert_allclose(compare(student, teacher, is_pair), compare(other, teacher, is_pair), rtol=1e-6)

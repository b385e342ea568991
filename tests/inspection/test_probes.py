"""Tests of the probe that reads only attention weights."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.inspection.dependencies import Sentence
from efficient_attention.inspection.probes import (
    attachment_score,
    head_logits,
    offset_attachment_score,
    probe_batches,
    probe_loss,
    scored_heads,
    train_probe,
)
from tests.inspection.conllu_files import KING, OLD_DOG, random_sentence

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts.


def test_roots_and_punctuation_are_not_scored():
    sentence = Sentence(('it', 'runs', '.'), (1, -1, 1), ('nsubj', 'root', 'punct'))
    assert scored_heads(sentence).tolist() == [1, -1, -1]


def test_logits_are_sums_over_heads_in_both_directions():
    rng = np.random.default_rng(0)
    one = random_sentence(rng, 5, 3, 1)
    [batch] = probe_batches([one])
    assert batch.weights_BNWW.shape == (1, 3, 8, 8)
    probe = {name: jnp.asarray(rng.normal(size=3), jnp.float32) for name in ('from_head', 'to_head')}
    found = np.asarray(head_logits(probe, batch))[0]
    for word in range(8):
        for head in range(8):
            if head == word or head > 4:
                assert found[word, head] == -np.inf
            elif word < 5:
                weights = one.weights_NWW
                expected = probe['from_head'] @ weights[:, head, word] + probe['to_head'] @ weights[:, word, head]
                assert found[word, head] == pytest.approx(float(expected), rel=1e-5)


def test_the_loss_of_a_probe_of_zeros_is_that_of_uniform_guesses():
    probe = {name: jnp.zeros(2) for name in ('from_head', 'to_head')}
    [batch] = probe_batches([random_sentence(np.random.default_rng(0), 5, 2, 0)])
    assert float(probe_loss(probe, batch)) == pytest.approx(np.log(4))


def test_the_probe_finds_the_head_that_knows_the_syntax():
    rng = np.random.default_rng(1)
    train, test = ([random_sentence(rng, 6, 4, 2) for _ in range(count)] for count in (60, 30))
    probe = train_probe(train)
    to_head = np.asarray(probe['to_head'])
    assert to_head.argmax() == 2 and to_head[2] > 2 * np.abs(np.delete(to_head, 2)).max()
    assert attachment_score(probe, test) > 0.9
    assert attachment_score({name: jnp.zeros(4) for name in probe}, test) < 0.5


def test_the_best_offset_is_chosen_on_dev():
    assert offset_attachment_score([OLD_DOG, KING], [OLD_DOG]) == (1, pytest.approx(2 / 3))

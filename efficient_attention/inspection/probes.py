"""How much of a sentence's syntax is in all heads together? Trains a probe that reads only attention weights.

Source: Clark et al. 2019, arXiv 1906.04341, section 5.1: p(word i is the head of word j) is proportional to
exp(sum over heads of w a_ij + u a_ji), where a_ij is the weight from word i to word j.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from efficient_attention.inspection.dependencies import PUNCTUATION, ROOT, ReadSentence, Sentence

WORDS_STEP = 8  # sentences are padded to multiples of this many words
CELLS = 2**14  # pairs of words per batch
UNCOUNTED = -1  # head of words that are not scored: roots, punctuation and padding


class ProbeBatch(NamedTuple):
    """Some sentences of about equal length.

    Attributes:
        weights_BNWW: from each word to each word, by head; 0 in padding.
        heads_BW: the place of each word's head; `UNCOUNTED` = not scored.
        lengths_B: words per sentence.
    """

    weights_BNWW: np.ndarray
    heads_BW: np.ndarray
    lengths_B: np.ndarray


def scored_heads(sentence: Sentence) -> np.ndarray:
    """Returns the place of each word's head, int32 [words]; `UNCOUNTED` for the root and for punctuation."""
    pairs = zip(sentence.heads, sentence.relations, strict=True)
    return np.array([UNCOUNTED if head == ROOT or name == PUNCTUATION else head for head, name in pairs], np.int32)


def probe_batches(sentences: Sequence[ReadSentence]) -> list[ProbeBatch]:
    """Returns the sentences in batches of one padded length, the shortest sentences first."""
    by_length: dict[int, list[ReadSentence]] = {}
    for one in sorted(sentences, key=lambda one: len(one.sentence.words)):
        by_length.setdefault(-(-len(one.sentence.words) // WORDS_STEP) * WORDS_STEP, []).append(one)
    return [batch for length, group in by_length.items() for batch in _batches_of_length(length, group)]


def _batches_of_length(length: int, group: Sequence[ReadSentence]) -> Iterator[ProbeBatch]:
    size = min(max(1, CELLS // length**2), len(group))
    for start in range(0, len(group), size):
        part = group[start : start + size]
        weights_BNWW = np.zeros((size, len(part[0].weights_NWW), length, length), np.float32)
        heads_BW, lengths_B = np.full((size, length), UNCOUNTED, np.int32), np.ones(size, np.int32)
        for place, one in enumerate(part):
            lengths_B[place] = words = len(one.sentence.words)
            weights_BNWW[place, :, :words, :words] = one.weights_NWW
            heads_BW[place, :words] = scored_heads(one.sentence)
        yield ProbeBatch(weights_BNWW, heads_BW, lengths_B)


def head_logits(probe: dict[str, Array], batch: ProbeBatch) -> Array:
    """Returns the logit of each word i as the head of each word j, float32 [B, j, i]; -inf for j itself and padding.

    `probe` has the vectors 'from_head' (w) and 'to_head' (u), each [heads].
    """
    weights_BNWW = jnp.asarray(batch.weights_BNWW, jnp.float32)
    logits_BWW = jnp.einsum('BNij,N->Bji', weights_BNWW, probe['from_head'])
    logits_BWW += jnp.einsum('BNji,N->Bji', weights_BNWW, probe['to_head'])
    places_W = jnp.arange(logits_BWW.shape[1])
    is_candidate_BWW = (places_W < batch.lengths_B[:, None])[:, None] & (places_W[:, None] != places_W)
    return jnp.where(is_candidate_BWW, logits_BWW, -jnp.inf)


def probe_loss(probe: dict[str, Array], batch: ProbeBatch) -> Array:
    """Returns the mean negative log-likelihood of the scored words' heads, in nats."""
    logits_BWW, is_scored_BW = head_logits(probe, batch), batch.heads_BW != UNCOUNTED
    # Rows without a candidate have only -inf, whose softmax would be NaN, also in the gradient.
    logits_BWW = jnp.where(is_scored_BW[..., None], logits_BWW, 0.0)
    losses_BW = optax.softmax_cross_entropy_with_integer_labels(logits_BWW, jnp.maximum(batch.heads_BW, 0))
    return jnp.where(is_scored_BW, losses_BW, 0.0).sum() / jnp.maximum(is_scored_BW.sum(), 1)


def train_probe(
    sentences: Sequence[ReadSentence], *, epochs: int = 30, learning_rate: float = 0.1, seed: int = 0
) -> dict[str, Array]:
    """Returns the probe that Adam trains on the sentences: 'from_head' and 'to_head', float32 [heads].

    The learning rate falls linearly to 0. The loss is convex, and the probe starts at 0; `seed` only orders batches.
    """
    batches = probe_batches(sentences)
    count = len(sentences[0].weights_NWW)
    probe = {name: jnp.zeros(count) for name in ('from_head', 'to_head')}
    optimizer = optax.adam(optax.linear_schedule(learning_rate, 0.0, epochs * len(batches)))

    @jax.jit
    def step(probe: dict[str, Array], state: Any, batch: ProbeBatch) -> tuple[dict[str, Array], Any]:
        updates, state = optimizer.update(jax.grad(probe_loss)(probe, batch), state)
        return optax.apply_updates(probe, updates), state

    state, rng = optimizer.init(probe), np.random.default_rng(seed)
    for _ in range(epochs):
        for number in rng.permutation(len(batches)):
            probe, state = step(probe, state, batches[number])
    return probe


def attachment_score(probe: dict[str, Array], sentences: Sequence[ReadSentence]) -> float:
    """Returns the share of words whose head the probe finds, from 0 to 1; roots and punctuation are not scored."""

    @jax.jit
    def counts(probe: dict[str, Array], batch: ProbeBatch) -> tuple[Array, Array]:
        is_scored_BW = batch.heads_BW != UNCOUNTED
        is_right_BW = head_logits(probe, batch).argmax(-1) == batch.heads_BW
        return (is_right_BW & is_scored_BW).sum(), is_scored_BW.sum()

    found = np.array([jax.device_get(counts(probe, batch)) for batch in probe_batches(sentences)])
    right, scored = found.sum(0)
    return float(right) / max(int(scored), 1)


def offset_attachment_score(dev: Sequence[Sentence], test: Sequence[Sentence]) -> tuple[int, float]:
    """Returns the best fixed offset of the dev sentences, and its attachment score on the test sentences, from 0 to 1.

    An offset is the place of the head minus that of the word.
    """
    offsets, tested = offset_counts(dev), offset_counts(test)
    offset = min(offsets, key=lambda one: (-offsets[one], abs(one), one), default=1)
    return offset, tested[offset] / max(tested.total(), 1)


def offset_counts(sentences: Sequence[Sentence]) -> Counter[int]:
    """Returns the number of scored words by offset."""
    found: Counter[int] = Counter()
    for sentence in sentences:
        heads = scored_heads(sentence)
        words = np.flatnonzero(heads != UNCOUNTED)
        found.update((heads[words] - words).tolist())
    return found

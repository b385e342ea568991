"""Computes the scores of the next token while text is generated: the model's scores, changed by rules such as a
repetition penalty.

The rules and their order are the rules of transformers' `generate`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.inference.sampling import sample
from efficient_attention.inference.search_settings import SearchSettings, TokenLimits


class TokenHistory(NamedTuple):
    """The tokens that the decoder has read so far, [b, N]; -1 fills the positions before a shorter prompt.

    The first `length` positions are in use; the search added the last `made` of them.
    """

    tokens_bN: Array
    length: Array
    made: Array


def token_history(before_BP: Array | None, tokens_bT: Array, made: Array) -> TokenHistory:
    """Returns the prompts followed by the first `made` generated tokens of each text.

    `tokens_bT` has b = B rows, or b = B K rows in a beam search.
    """
    if before_BP is None:
        return TokenHistory(tokens_bT, made, made)
    before_bP = jnp.repeat(before_BP, len(tokens_bT) // len(before_BP), axis=0)
    return TokenHistory(jnp.concatenate([before_bP, tokens_bT], axis=1), before_BP.shape[1] + made, made)


def next_log_probs(logits_bV: Array, read: TokenHistory, search: SearchSettings, limits: TokenLimits) -> Array:
    """Returns float32 log-probabilities of the next token of each text, `MASKED` for tokens that the rules forbid.

    The repetition penalty changes the model's log-probabilities. Masking some tokens does not renormalise the others.
    """
    return apply_token_rules(log_softmax(logits_bV.astype(jnp.float32)), read, search, limits)


def choose_next_tokens(
    logits_bV: Array, read: TokenHistory, search: SearchSettings, limits: TokenLimits
) -> tuple[Array, Array]:
    """Returns the most probable or a sampled next token for each text, and the model's log-probability of this token.

    The log-probability is `MASKED` if no token may follow.
    """
    if search.sampling is None and search.rules.repetition_penalty == 1:
        log_probs_bV = next_log_probs(logits_bV, read, search, limits)
        return log_probs_bV.argmax(axis=1).astype(jnp.int32), log_probs_bV.max(axis=1)
    logits_bV = logits_bV.astype(jnp.float32)
    scores_bV = apply_token_rules(logits_bV, read, search, limits)
    if search.sampling is None:
        token_b = scores_bV.argmax(axis=1).astype(jnp.int32)
    else:
        assert limits.draws is not None
        token_b = sample(scores_bV, search.sampling, limits.draws.seed, read.made, jnp.asarray(limits.draws.number_B))
    log_probs_bV = force_tokens(log_softmax(logits_bV), read.made, search, limits)
    score_b1, log_prob_b1 = (jnp.take_along_axis(x, token_b[:, None], axis=1) for x in (scores_bV, log_probs_bV))
    return token_b, jnp.where(is_not_masked(score_b1), log_prob_b1, MASKED)[:, 0]


def apply_token_rules(scores_bV: Array, read: TokenHistory, search: SearchSettings, limits: TokenLimits) -> Array:
    """Returns the scores of the next token after the search's rules: forbidden tokens get `MASKED`, a forced token gets
    0.
    """
    rules, made = search.rules, read.made
    ids_V = jnp.arange(scores_bV.shape[1])
    if rules.repetition_penalty != 1:
        worse_bV = jnp.where(scores_bV < 0, scores_bV * rules.repetition_penalty, scores_bV / rules.repetition_penalty)
        scores_bV = jnp.where(is_in_text(read, len(ids_V)), worse_bV, scores_bV)
    if rules.no_repeat_ngram_size:
        scores_bV = jnp.where(is_repeated_ngram_end(read, rules.no_repeat_ngram_size, len(ids_V)), MASKED, scores_bV)
    # As in transformers, a bad word that is only an end id has no effect; `suppress_tokens` can forbid the end id.
    if words := [word for word in rules.bad_words_ids if len(word) > 1 or word[0] not in search.end_token_ids]:
        scores_bV = jnp.where(is_bad_sequence_end(read, words, len(ids_V)), MASKED, scores_bV)
    may_end_V = ~is_id_among(ids_V, search.end_token_ids) | (made >= search.min_tokens)
    scores_bV = jnp.where((limits.may_follow_V & may_end_V)[None], scores_bV, MASKED)
    scores_bV = force_tokens(scores_bV, made, search, limits)
    begin = 1 if search.first >= 0 else 0
    is_out_V = is_id_among(ids_V, rules.suppress_tokens) | is_id_among(ids_V, rules.begin_suppress_tokens) & (
        made == begin
    )
    return jnp.where(is_out_V[None], MASKED, scores_bV)


def force_tokens(scores_bV: Array, made: Array, search: SearchSettings, limits: TokenLimits) -> Array:
    """Returns the scores of the next token; if a token is forced at this step, its score is 0 and all other tokens get
    `MASKED`.
    """
    ids_1V = jnp.arange(scores_bV.shape[1])[None]
    if search.first >= 0:
        scores_bV = jnp.where(made == 0, jnp.where(ids_1V == search.first, 0.0, MASKED), scores_bV)
    if search.forces_end:
        is_last_B = made + 1 >= limits.most_B
        is_last_b1 = jnp.repeat(is_last_B, len(scores_bV) // len(is_last_B))[:, None]
        scores_bV = jnp.where(is_last_b1, jnp.where(ids_1V == search.end, 0.0, MASKED), scores_bV)
    return scores_bV


def is_in_text(read: TokenHistory, size: int) -> Array:
    """Returns bool [b, V]: whether each text already contains each token of the vocabulary."""
    places_N = jnp.arange(read.tokens_bN.shape[1])
    is_token_bN = (places_N < read.length)[None] & (read.tokens_bN >= 0)
    return mark_token_ids(read.tokens_bN, is_token_bN, size)


def is_repeated_ngram_end(read: TokenHistory, length: int, size: int) -> Array:
    """Returns bool [b, V]: whether each token would complete an n-gram of `length` tokens that the text already
    contains.
    """
    windows = read.tokens_bN.shape[1] - length + 1
    if windows < 1:
        return jnp.zeros((len(read.tokens_bN), size), bool)
    last_bn = last_tokens(read, length - 1)
    ends_N = jnp.arange(windows) + length - 1
    is_same_bN = jnp.broadcast_to((ends_N < read.length)[None], (len(last_bn), windows)) & (read.length >= length - 1)
    for place in range(length - 1):
        is_same_bN &= read.tokens_bN[:, place : place + windows] == last_bn[:, place, None]
    return mark_token_ids(read.tokens_bN[:, length - 1 :], is_same_bN, size)


def is_bad_sequence_end(read: TokenHistory, words: list[tuple[int, ...]], size: int) -> Array:
    """Returns bool [b, V]: whether each token would complete one of the forbidden token sequences."""
    is_end_bV = jnp.zeros((len(read.tokens_bN), size), bool)
    for length in sorted({len(word) for word in words}):
        words_wn = jnp.asarray([word for word in words if len(word) == length], jnp.int32)
        last_bn = last_tokens(read, length - 1)
        is_begun_bw = (last_bn[:, None] == words_wn[None, :, :-1]).all(axis=2) & (read.length >= length - 1)
        is_end_bV = is_end_bV.at[:, words_wn[:, -1]].max(is_begun_bw)
    return is_end_bV


def last_tokens(read: TokenHistory, count: int) -> Array:
    """Returns the last `count` tokens of each text, int32 [b, count]; the result is meaningless for texts with fewer
    tokens.
    """
    return jnp.take(read.tokens_bN, jnp.maximum(read.length - count + jnp.arange(count), 0), axis=1, mode='clip')


def mark_token_ids(tokens_bN: Array, is_marked_bN: Array, size: int) -> Array:
    """Returns bool [b, V]: for each row, which token ids occur at a marked position."""
    rows_b1 = jnp.arange(len(tokens_bN))[:, None]
    # An unmarked position gets the invalid id `size`, which the update drops.
    places_bN = jnp.where(is_marked_bN, tokens_bN, size)
    return jnp.zeros((len(tokens_bN), size), bool).at[rows_b1, places_bN].set(True, mode='drop')


def is_id_among(ids_V: Array, some: tuple[int, ...]) -> Array:
    """Returns bool [V]: whether each token id is in the tuple `some`."""
    return jnp.isin(ids_V, jnp.asarray(some, jnp.int32)) if some else jnp.zeros(ids_V.shape, bool)


def is_not_masked(log_probs: Array) -> Array:
    """Returns whether each value is a real log-probability or score, not `MASKED`."""
    return log_probs > MASKED / 2


def log_softmax(logits_bV: Array) -> Array:
    """Returns the log-probabilities of each row's logits."""
    # Without optimization barriers, XLA fuses the output projection with the maximum and runs them in one CPU thread.
    logits_bV = jax.lax.optimization_barrier(logits_bV)
    highest_b1 = jax.lax.optimization_barrier(logits_bV.max(axis=1, keepdims=True))
    shifted_bV = logits_bV - highest_b1
    return shifted_bV - jnp.log(jnp.exp(shifted_bV).sum(axis=1, keepdims=True))

"""Beam search and greedy decoding: finds the most probable continuations of texts, in one compiled program.

Each step extends every open beam of a row by every token, and keeps the `beams` best extensions that have not ended. An
extension by the end symbol becomes a finished text if it is among the `beams` best of all extensions. The `best`
finished texts with the highest scores are kept.

A row is done if no open beam can reach a higher score than the lowest kept score. A beam's summed log-probability can
only decrease, so the sum divided by a length penalty is an upper bound of its final score. The penalty is taken at the
longest allowed length if alpha is above 0, otherwise at the next length. Stopping by this bound loses no better text.
With `stop` = 'early', the bound uses the present length, so a row is done sooner. With 'first', a row is done once as
many texts have ended as there are beams. A finished row never changes while other rows continue.

Sources: Wu et al. 2016, arXiv 1609.08144 (GNMT), section 7; candidates are chosen as in fairseq and transformers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.request import AnySegments, segments_and_lengths
from efficient_attention.errors import InputError
from efficient_attention.inference.next_token_scores import (
    choose_next_tokens,
    is_not_masked,
    next_log_probs,
    token_history,
)
from efficient_attention.inference.search_settings import SearchSettings, TokenLimits
from efficient_attention.models.cached_decoding import PIECE, CachedDecoder, DecodeState, read_prompt_but_last
from efficient_attention.models.decoder import Decoder
from efficient_attention.modules.layer_context import EncodedSource

# Smallest and largest number of scores per block in `blockwise_top_k`.
# `blockwise_top_k` uses the largest block size in this range that divides the length of a row.
BLOCK_SIZES = (32, 128)


class PromptState(NamedTuple):
    """The start of a search for each batch row: the decoder state after all prompt tokens except the last, and that
    last token, int32 [B].

    `before_BP` has all tokens read so far, for the rules of a search: int32, -1 before shorter prompts; None = none.
    """

    state: DecodeState
    newest_B: Array
    before_BP: Array | None = None


class Hypotheses(NamedTuple):
    """The n best finished texts of each batch row, best first: the tokens with the end symbol, the length and the score
    of each text.

    Tokens after the end of a text are 0. Scores are summed log-probabilities divided by the length penalty. If a row
    has fewer than n texts, the missing texts have length 0, and their sum and score are `MASKED`.
    """

    tokens_BnT: Array
    lengths_Bn: Array
    log_probs_Bn: Array
    scores_Bn: Array


class Beams(NamedTuple):
    """The state of a running beam search, with K open beams per batch row; a missing beam has the log-probability
    `MASKED`.
    """

    state: DecodeState  # state of the decoder for all B x K beams, before it reads each beam's newest token
    newest_BK: Array
    log_probs_BK: Array
    tokens_BKT: Array
    finished: Hypotheses
    made: Array


class BeamExtensions(NamedTuple):
    """Extensions of open beams by one token, best first: summed log-probability, parent beam, new token and all tokens
    of each extension.
    """

    log_probs_Bc: Array
    parents_Bc: Array
    newest_Bc: Array
    tokens_BcT: Array


def make_cached_decoder(decoder: Decoder, prompt: int, search: SearchSettings) -> CachedDecoder:
    """Returns the decoder with caches that are large enough for `prompt` prompt tokens and the tokens that the search
    may generate.

    Raises:
        InputError: the model has too few positions, or one of its attentions cannot decode token by token.
    """
    # The decoder does not read the last generated token, so this token needs no position.
    limit, needed = decoder.config.position_limit, prompt + search.max_tokens - 1
    if limit is not None and needed > limit:
        raise InputError(
            f'{prompt} tokens before and max_tokens {search.max_tokens} need {needed} positions; the model has {limit}'
        )
    return CachedDecoder(decoder, needed)


def read_prompts(
    cached: CachedDecoder, tokens_BL: Array, segments_BL: AnySegments, other: EncodedSource | None = None
) -> PromptState:
    """Returns the start of a search: the decoder state after all prompt tokens except each row's last one, and these
    last tokens.

    Args:
        cached: the decoder from `make_cached_decoder`.
        tokens_BL: at least one token per row: a text, or the start symbol of an encoder-decoder.
        segments_BL: 1 for tokens, 0 after the end of shorter prompts; an array or the prompts' `Lengths`.
        other: the sequence that cross-attention reads.
    """
    array_BL, _ = segments_and_lengths(segments_BL, tokens_BL.shape[1])
    state = cached.init_state(len(tokens_BL), other=other)
    piece = min(PIECE, tokens_BL.shape[1])
    length = tokens_BL.shape[1]
    places_BP = jnp.arange(length)[None] - (length - array_BL.sum(axis=1, keepdims=True))
    before_BP = jnp.take_along_axis(tokens_BL, jnp.maximum(places_BP, 0), axis=1)
    before_BP = jnp.where(places_BP >= 0, before_BP, -1)
    return PromptState(*read_prompt_but_last(cached, state, tokens_BL, array_BL, piece), before_BP)


def find_best_texts(
    cached: CachedDecoder, start: PromptState, search: SearchSettings, limits: TokenLimits
) -> tuple[Hypotheses, Array]:
    """Returns the best texts of each batch row and the number of decoding steps; uses greedy decoding for one beam,
    otherwise beam search.

    A row whose maximum length `most_B` is 0 gets no text, and the search does not wait for it.

    Raises:
        InputError: an id of `search` is outside the vocabulary.
    """
    search.check_ids(cached.config.vocab_size)
    return (greedy if search.beams == 1 else beam_search)(cached, start, search, limits)


def beam_search(
    cached: CachedDecoder, start: PromptState, search: SearchSettings, limits: TokenLimits
) -> tuple[Hypotheses, Array]:
    """Runs beam search with any number of beams; returns the best texts of each batch row and the number of decoding
    steps.

    With one beam the result can differ from greedy decoding: after a text ends, the second best extension continues.
    """

    def is_under_way(beams: Beams) -> Array:
        return (beams.made < search.max_tokens) & can_beat_finished(beams, search, limits).any()

    def step(beams: Beams) -> Beams:
        return extend_beams(cached, beams, start.before_BP, search, limits)

    beams = jax.lax.while_loop(is_under_way, step, first_beams(start, search, limits))
    return jax.tree.map(lambda x_Bn: x_Bn[:, : search.best], beams.finished), beams.made


def first_beams(start: PromptState, search: SearchSettings, limits: TokenLimits) -> Beams:
    """Returns the state of a beam search before its first step: one open beam per batch row and no finished text."""
    rows, count, length = len(start.newest_B), search.beams, search.max_tokens
    state = start.state.expand_to_beams(count)
    is_there_BK = (jnp.arange(count)[None] == 0) & (limits.most_B > 0)[:, None]
    log_probs_BK = jnp.where(is_there_BK, 0.0, MASKED)
    newest_BK = jnp.repeat(start.newest_B[:, None], count, axis=1)
    tokens_BKT = jnp.zeros((rows, count, length), jnp.int32)
    return Beams(state, newest_BK, log_probs_BK, tokens_BKT, no_hypotheses(rows, search), jnp.int32(0))


def no_hypotheses(rows: int, search: SearchSettings) -> Hypotheses:
    """Returns an empty set of finished texts, for the start of a beam search; every score is `MASKED`."""
    shape = rows, search.max_finished_hypotheses
    missing_Bn = jnp.full(shape, MASKED, jnp.float32)
    return Hypotheses(
        jnp.zeros((*shape, search.max_tokens), jnp.int32), jnp.zeros(shape, jnp.int32), missing_Bn, missing_Bn
    )


def can_beat_finished(beams: Beams, search: SearchSettings, limits: TokenLimits) -> Array:
    """Returns bool [B]: whether an open beam of the batch row may still reach a better score than the worst kept
    finished text.

    'early': an open beam must beat that score if it ends now. 'first': fewer texts than beams must have ended.
    """
    highest_B = beams.log_probs_BK.max(axis=1)
    if search.stop == 'first':
        return is_not_masked(highest_B) & ~is_not_masked(beams.finished.scores_Bn.min(axis=1))
    if search.stop == 'early':
        length_B = jnp.full_like(limits.most_B, beams.made)
    else:
        length_B = limits.most_B if search.alpha > 0 else jnp.full_like(limits.most_B, beams.made + 1)
    reach_B = highest_B / search.length_penalty_divisor(jnp.maximum(length_B, 1))
    return is_not_masked(highest_B) & (reach_B > beams.finished.scores_Bn.min(axis=1))


def extend_beams(
    cached: CachedDecoder, beams: Beams, before_BP: Array | None, search: SearchSettings, limits: TokenLimits
) -> Beams:
    """Returns the state of the beam search after one more token per beam.

    `before_BP` holds the prompt tokens, see `PromptState`.
    """
    logits_b1V, state = cached(beams.state, beams.newest_BK.reshape(-1, 1))
    read = token_history(before_BP, beams.tokens_BKT.reshape(-1, search.max_tokens), beams.made)
    token_log_probs_bV = next_log_probs(logits_b1V[:, 0], read, search, limits)
    found = best_candidates(beams, token_log_probs_bV, search)
    is_last_B = beams.made + 1 >= limits.most_B
    is_end_Bc = is_end(found.newest_Bc, search) | is_last_B[:, None]
    finished = merge_finished_texts(beams, found, is_end_Bc, search)
    log_probs_BK, places_BK = jax.lax.top_k(jnp.where(is_end_Bc, MASKED, found.log_probs_Bc), search.beams)
    newest_BK, parents_BK = (jnp.take_along_axis(x, places_BK, axis=1) for x in (found.newest_Bc, found.parents_Bc))
    tokens_BKT = jnp.take_along_axis(found.tokens_BcT, places_BK[..., None], axis=1)
    state = state.reorder_beams(parents_BK)
    beams = Beams(state, newest_BK, log_probs_BK, tokens_BKT, finished, beams.made + 1)
    # A finished batch row must stay finished, so its beams are masked.
    # If the beams of a finished row were not masked, `can_beat_finished` could accept them again at a later length.
    log_probs_BK = jnp.where(can_beat_finished(beams, search, limits)[:, None], log_probs_BK, MASKED)
    return beams if search.stop == 'exact' else beams._replace(log_probs_BK=log_probs_BK)


def is_end(tokens_Bc: Array, search: SearchSettings) -> Array:
    """Returns bool [B, c]: whether each token is one of the ids that end a text."""
    return (tokens_Bc[..., None] == jnp.asarray(search.end_token_ids, jnp.int32)[None, None]).any(axis=2)


def best_candidates(beams: Beams, token_log_probs_bV: Array, search: SearchSettings) -> BeamExtensions:
    """Returns the 2 K best one-token extensions of the K open beams per batch row. Each beam has one extension that
    ends its text, so at least K of the 2 K continue.

    If e > 1 ids end a text, the (1 + e) K best are returned, because up to e K of them may end.
    """
    rows, count = beams.log_probs_BK.shape
    token_log_probs_BKV = token_log_probs_bV.reshape(rows, count, -1)
    size = token_log_probs_BKV.shape[2]
    is_there_BKV = is_not_masked(token_log_probs_BKV) & is_not_masked(beams.log_probs_BK)[..., None]
    sums_BKV = jnp.where(is_there_BKV, beams.log_probs_BK[..., None] + token_log_probs_BKV, MASKED)
    log_probs_Bc, places_Bc = blockwise_top_k(
        sums_BKV.reshape(rows, -1), min(max(2, 1 + len(search.end_token_ids)) * count, count * size)
    )
    parents_Bc, newest_Bc = places_Bc // size, places_Bc % size
    tokens_BcT = jnp.take_along_axis(beams.tokens_BKT, parents_Bc[..., None], axis=1)
    tokens_BcT = tokens_BcT.at[:, :, beams.made].set(newest_Bc)
    return BeamExtensions(log_probs_Bc, parents_Bc, newest_Bc, tokens_BcT)


def blockwise_top_k(sums_Bs: Array, count: int) -> tuple[Array, Array]:
    """Returns the `count` highest scores of each row and their positions, like `top_k`, but faster for long rows.

    Only the `count` blocks with the highest maxima can contain the highest scores, so the other blocks are not
    searched.
    """
    rows, size = sums_Bs.shape
    least, most = BLOCK_SIZES
    block = next((block for block in range(most, least - 1, -1) if size % block == 0 and size // block > count), 0)
    if not block:
        return top_k(sums_Bs, count)
    blocks_Bns = sums_Bs.reshape(rows, -1, block)
    # The chosen blocks are in order of position. Therefore, of several equal scores, the first one is chosen.
    chosen_Bc = jnp.sort(top_k(blocks_Bns.max(axis=2), count)[1], axis=1)
    found_Bcs = jnp.take_along_axis(blocks_Bns, chosen_Bc[..., None], axis=1)
    best_Bc, places_Bc = top_k(found_Bcs.reshape(rows, -1), count)
    return best_Bc, jnp.take_along_axis(chosen_Bc, places_Bc // block, axis=1) * block + places_Bc % block


def top_k(numbers_Bs: Array, count: int) -> tuple[Array, Array]:
    """Returns the `count` highest numbers of each row and their positions; of several equal numbers, the first ones are
    chosen.
    """
    # Without optimization barriers, XLA sorts the whole row if the results are sliced.
    # Sorting whole rows makes a decoding step of T5-small take five times as long on a CPU.
    # Each result has its own barrier, because one barrier over both results would attach to the top-k operation itself.
    # With several CPU devices, a barrier at the top-k operation makes XLA crash when it decomposes this operation.
    best_Bc, places_Bc = map(jax.lax.optimization_barrier, jax.lax.top_k(numbers_Bs, count))
    return best_Bc, places_Bc


def merge_finished_texts(beams: Beams, found: BeamExtensions, is_end_Bc: Array, search: SearchSettings) -> Hypotheses:
    """Returns the best finished texts of each batch row: chosen among the texts that finished earlier, and the texts
    among the first K candidates that end now.
    """
    count, length = search.beams, beams.made + 1
    log_probs_BK = found.log_probs_Bc[:, :count]
    scores_BK = jnp.where(
        is_end_Bc[:, :count] & is_not_masked(log_probs_BK), log_probs_BK / search.length_penalty_divisor(length), MASKED
    )
    new = Hypotheses(
        found.tokens_BcT[:, :count], jnp.full_like(found.newest_Bc[:, :count], length), log_probs_BK, scores_BK
    )
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), beams.finished, new)
    scores_Bn, places_Bn = jax.lax.top_k(both.scores_Bn, search.max_finished_hypotheses)
    tokens_BnT = jnp.take_along_axis(both.tokens_BnT, places_Bn[..., None], axis=1)
    lengths_Bn, log_probs_Bn = (jnp.take_along_axis(x, places_Bn, axis=1) for x in both[1:3])
    is_text_Bn = is_not_masked(scores_Bn)
    return Hypotheses(
        jnp.where(is_text_Bn[..., None], tokens_BnT, 0),
        jnp.where(is_text_Bn, lengths_Bn, 0),
        jnp.where(is_text_Bn, log_probs_Bn, MASKED),
        scores_Bn,
    )


class GreedyState(NamedTuple):
    """The state of greedy decoding per batch row: newest token, generated tokens, their log-probability and length, and
    whether the text continues.
    """

    state: DecodeState
    newest_B: Array
    log_probs_B: Array
    tokens_BT: Array
    lengths_B: Array
    is_open_B: Array
    made: Array


def greedy(
    cached: CachedDecoder, start: PromptState, search: SearchSettings, limits: TokenLimits
) -> tuple[Hypotheses, Array]:
    """Returns the text that greedy decoding or sampling generates for each batch row, and the number of decoding
    steps.
    """
    rows = len(start.newest_B)
    zeros_B, is_open_B = jnp.zeros(rows, jnp.int32), limits.most_B > 0
    tokens_BT = jnp.zeros((rows, search.max_tokens), jnp.int32)
    text = GreedyState(
        start.state, start.newest_B, jnp.zeros(rows, jnp.float32), tokens_BT, zeros_B, is_open_B, jnp.int32(0)
    )

    def is_under_way(text: GreedyState) -> Array:
        return (text.made < search.max_tokens) & text.is_open_B.any()

    def step(text: GreedyState) -> GreedyState:
        return append_next_token(cached, text, start.before_BP, search, limits)

    text = jax.lax.while_loop(is_under_way, step, text)
    is_text_B = (text.lengths_B > 0) & is_not_masked(text.log_probs_B)
    scores_B = jnp.where(
        is_text_B, text.log_probs_B / search.length_penalty_divisor(jnp.maximum(text.lengths_B, 1)), MASKED
    )
    log_probs_B, lengths_B = jnp.where(is_text_B, text.log_probs_B, MASKED), jnp.where(is_text_B, text.lengths_B, 0)
    tokens_BT = jnp.where(is_text_B[:, None], text.tokens_BT, 0)
    found = Hypotheses(*(x[:, None] for x in (tokens_BT, lengths_B, log_probs_B, scores_B)))
    return found, text.made


def append_next_token(
    cached: CachedDecoder, text: GreedyState, before_BP: Array | None, search: SearchSettings, limits: TokenLimits
) -> GreedyState:
    """Returns the state of greedy decoding after one more token for each unfinished text.

    `before_BP` holds the prompt tokens, see `PromptState`.
    """
    logits_B1V, state = cached(text.state, text.newest_B[:, None])
    read = token_history(before_BP, text.tokens_BT, text.made)
    newest_B, log_probs_B = choose_next_tokens(logits_B1V[:, 0], read, search, limits)
    is_open_B, length = text.is_open_B, text.made + 1
    tokens_BT = text.tokens_BT.at[:, text.made].set(jnp.where(is_open_B, newest_B, 0))
    sums_B = jnp.where(is_open_B, text.log_probs_B + log_probs_B, text.log_probs_B)
    lengths_B = jnp.where(is_open_B, length, text.lengths_B)
    goes_on_B = (
        is_open_B & ~is_end(newest_B[:, None], search)[:, 0] & is_not_masked(log_probs_B) & (length < limits.most_B)
    )
    return GreedyState(state, newest_B, sums_B, tokens_BT, lengths_B, goes_on_B, length)

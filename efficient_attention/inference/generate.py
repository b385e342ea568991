"""Generates text after a prompt with a trained language model, by sampling or beam search."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.config.value_checks import check_in_interval
from efficient_attention.data.text.text_units import TextUnits
from efficient_attention.errors import InputError
from efficient_attention.inference.beam_search import Hypotheses, find_best_texts, make_cached_decoder
from efficient_attention.inference.beam_search import read_prompts as begin_search
from efficient_attention.inference.language_models import open_language_model
from efficient_attention.inference.sampling import Sampling, SamplingInputs, sample
from efficient_attention.inference.search_settings import SearchSettings, TokenLimits
from efficient_attention.inference.streaming_detokenizer import make_detokenizer
from efficient_attention.models.cached_decoding import (
    PIECE,
    CachedDecoder,
    DecodeState,
    read_prompt_but_last,
)
from efficient_attention.workdir.checkpoint_reader import LAST

STREAMED = 8  # number of tokens generated on the device before the host prints them


class GenerationState(NamedTuple):
    """Texts in progress: the decoder state before each row's newest token, the newest tokens, and the number of
    generated tokens per text.
    """

    state: DecodeState
    newest_B: Array
    made: Array


class Continuation(NamedTuple):
    """A prompt with its generated continuation, and the summed log-probability of the generated tokens."""

    text: str
    log_prob: float


def read_prompts(cached: CachedDecoder, tokens_BL: Array, segments_BL: Array) -> GenerationState:
    """Returns the generation state after the decoder has read each prompt except its last token.

    `segments_BL` is 1 for tokens, and 0 after the end of shorter prompts.
    """
    piece = min(PIECE, tokens_BL.shape[1])
    state, newest_B = read_prompt_but_last(cached, cached.init_state(len(tokens_BL)), tokens_BL, segments_BL, piece)
    return GenerationState(state, newest_B, jnp.int32(0))


def generate_tokens(
    cached: CachedDecoder,
    text: GenerationState,
    count: Array | int,
    sampling: Sampling,
    draw: SamplingInputs,
    *,
    most: int = STREAMED,
) -> tuple[Array, GenerationState]:
    """Samples `count` more tokens per text. Returns them, padded with zeros to `most` tokens, as int32 [B, most], and
    the new generation state.

    A token is sampled from (seed, its number in the text, row), so `count` does not change the text.
    """

    def step(index: Array, carry: tuple[Array, GenerationState]) -> tuple[Array, GenerationState]:
        made_Bn, text = carry
        logits_B1V, state = cached(text.state, text.newest_B[:, None])
        logits_BV = jnp.where(draw.may_follow_V[None], logits_B1V[:, 0], MASKED)
        token_B = sample(logits_BV, sampling, draw.seed, text.made)
        return made_Bn.at[:, index].set(token_B), GenerationState(state, token_B, text.made + 1)

    made_Bn = jnp.zeros((len(text.newest_B), most), jnp.int32)
    return jax.lax.fori_loop(0, count, step, (made_Bn, text))


class TextGenerator:
    """A trained language model that continues prompts, from a workdir or a Hugging Face folder; uses one device.

    No data files are read. `checkpoint` is 'last', 'best' by the config's `checkpoint.best_metric`, or a step's number;
    '' = the best if one is known, else the last.

    Raises:
        InputError: the folder has no language model, no such checkpoint, or no vocabulary.
    """

    def __init__(self, workdir: Path, *, checkpoint: str = LAST) -> None:
        opened = open_language_model(workdir, checkpoint, generates=True)
        self.config, self.units, self.graph, self.params = opened[:4]
        self.may_follow_V = allowed_token_mask(self.units, self.config.vocab_size)

    def __call__(
        self, prompt: str, *, max_tokens: int = 200, sampling: Sampling | None = None, seed: int = 0
    ) -> Iterator[str]:
        """Yields the generated text in parts: first the prompt, then the continuation of `max_tokens` tokens.

        Raises:
            InputError: a number is out of range; the prompt is empty or has something that the vocabulary lacks; or the
                prompt and `max_tokens` need more positions than the model has.
        """
        check_in_interval('max_tokens', max_tokens, 1)
        check_in_interval('seed', seed, 0, 2**31 - 1)
        ids = prompt_ids(prompt, self.units)
        self.check_max_length(len(ids), max_tokens)
        return self.stream(ids, max_tokens, sampling or Sampling(), seed)

    def beam_search(self, prompt: str, *, max_tokens: int = 200, beams: int = 4, best: int = 1) -> list[Continuation]:
        """Returns the most probable texts that a beam search finds, best first: each is the prompt with `max_tokens`
        more tokens.

        All texts are equally long, so summed log-probabilities are the scores. One beam is greedy decoding.

        Raises:
            InputError: in the same cases as `__call__`.
        """
        check_in_interval('max_tokens', max_tokens, 1)
        search = SearchSettings(beams=beams, best=best, alpha=0.0, max_tokens=max_tokens, end=-1)
        ids = prompt_ids(prompt, self.units)
        self.check_max_length(len(ids), max_tokens)
        tokens_1L = jnp.asarray(ids[None], jnp.int32)
        found = jax.device_get(beam_search_text(self.graph, self.params, tokens_1L, self.may_follow_V, search=search))
        made = zip(found.tokens_BnT[0], found.lengths_Bn[0], found.log_probs_Bn[0], strict=True)
        return [Continuation(self.text_of(ids, tokens), float(total)) for tokens, length, total in made if length]

    def text_of(self, *parts: np.ndarray) -> str:
        """Returns the text of several arrays of token ids, joined."""
        stream = make_detokenizer(self.units)
        return ''.join([*(stream.feed_ids(ids) for ids in parts), stream.flush_text()])

    def check_max_length(self, prompt: int, more: int) -> None:
        """Raises InputError if prompt and continuation need more positions than the model has; the last token needs no
        position.
        """
        limit = self.config.position_limit
        room = more if limit is None else limit + 1 - prompt
        if more > room:
            line = f'the prompt has {prompt} tokens and the model has {limit} positions'
            raise InputError(f'{line}: ' + (f'max_tokens can be {room} at most' if room > 0 else 'it is too long'))

    def stream(
        self, ids: np.ndarray, max_tokens: int, sampling: Sampling, seed: int, *, at_once: int = STREAMED
    ) -> Iterator[str]:
        """Yields the prompt and then its continuation in parts of `at_once` tokens, as the tokens are generated.

        `at_once` is at most `STREAMED`: the number of tokens generated per transfer to the host.
        """
        stream = make_detokenizer(self.units)
        yield stream.feed_ids(ids)
        tokens_1L = jnp.asarray(ids[None], jnp.int32)
        max_length, draw = len(ids) + max_tokens, SamplingInputs(jnp.int32(seed), self.may_follow_V)
        text = read_prompt_jitted(self.graph, self.params, tokens_1L, max_length=max_length)
        for first in range(0, max_tokens, at_once):
            count = min(at_once, max_tokens - first)
            made_1n, text = generate_tokens_jitted(
                self.graph, self.params, text, jnp.int32(count), draw, sampling=sampling, max_length=max_length
            )
            yield stream.feed_ids(np.asarray(made_1n)[0, :count])
        yield stream.flush_text()


@functools.partial(jax.jit, static_argnames=('graph', 'max_length'))
def read_prompt_jitted(graph: nnx.GraphDef, params: Any, tokens_1L: Array, *, max_length: int) -> GenerationState:
    """Returns the generation state after one prompt; the jitted form of `read_prompts`."""
    return read_prompts(CachedDecoder(nnx.merge(graph, params), max_length), tokens_1L, jnp.ones_like(tokens_1L))


@functools.partial(jax.jit, static_argnames=('graph', 'sampling', 'max_length'), donate_argnames='text')
def generate_tokens_jitted(
    graph: nnx.GraphDef,
    params: Any,
    text: GenerationState,
    count: Array,
    draw: SamplingInputs,
    *,
    sampling: Sampling,
    max_length: int,
) -> tuple[Array, GenerationState]:
    """Returns the next sampled tokens and the new generation state; the jitted form of `generate_tokens`."""
    cached = CachedDecoder(nnx.merge(graph, params), max_length)
    return generate_tokens(cached, text, count, sampling, draw)


@functools.partial(jax.jit, static_argnames=('graph', 'search'))
def beam_search_text(
    graph: nnx.GraphDef, params: Any, tokens_1L: Array, may_follow_V: Array, *, search: SearchSettings
) -> Hypotheses:
    """Returns the texts that a beam search finds as continuations of one prompt."""
    cached = make_cached_decoder(nnx.merge(graph, params), tokens_1L.shape[1], search)
    limits = TokenLimits(may_follow_V, jnp.full(1, search.max_tokens, jnp.int32))
    return find_best_texts(cached, begin_search(cached, tokens_1L, jnp.ones_like(tokens_1L)), search, limits)[0]


def prompt_ids(prompt: str, units: TextUnits) -> np.ndarray:
    """Returns the token ids of a prompt; raises InputError if the prompt is empty or has a character or word outside
    the vocabulary.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError('the prompt is not UTF-8') from None
    ids = units.encode(prompt)
    if not len(ids):
        raise InputError('the prompt is empty; a language model goes on with at least one token')
    if units.unknown >= 0 and (ids == units.unknown).any():
        raise InputError(f'the prompt has {unknown_prompt_parts(prompt, units)}, which the vocabulary of the run lacks')
    return ids


def unknown_prompt_parts(prompt: str, units: TextUnits) -> str:
    """Returns at most five characters or words of the prompt that are not in the vocabulary, as text for an error
    message.
    """
    parts = dict.fromkeys(units.split_for_messages(prompt))
    unknown = [part for part in parts if (units.encode(part) == units.unknown).any()]
    return ', '.join(map(repr, unknown[:5])) + (f' and {len(unknown) - 5} more' if len(unknown) > 5 else '')


def allowed_token_mask(units: TextUnits, size: int) -> Array:
    """Returns bool [V]: whether each token id may be generated. Allowed are ids with a text, and the document
    separator.
    """
    may_follow_V = np.arange(size) < units.size
    if units.unknown >= 0:
        may_follow_V[units.unknown] = False
    may_follow_V[list(units.unwritten)] = False
    return jnp.asarray(may_follow_V)

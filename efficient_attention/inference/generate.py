"""Text that a trained language model writes after a prompt: drawn, or searched, from its caches on the device."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.attention.weights import MASKED
from efficient_attention.config.checks import check_within
from efficient_attention.config.run import RunConfig
from efficient_attention.data.text.units import Units, load_units
from efficient_attention.errors import InputError
from efficient_attention.inference.beam_search import Hypotheses, cached_for, find_best
from efficient_attention.inference.beam_search import start as begin_search
from efficient_attention.inference.restore import restore_for_inference
from efficient_attention.inference.sampling import Draw, Sampling, sample
from efficient_attention.inference.search import Limits, Search
from efficient_attention.inference.text_stream import open_stream
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.decoding import PIECE, CachedDecoder, DecodeState, cache_specs, read_but_last
from efficient_attention.workdir.checkpoint_reader import LAST
from efficient_attention.workdir.config_file import read_config

STREAMED = 8  # tokens that the device makes before the host prints them


class Text(NamedTuple):
    """Texts under way: the state before the newest token of each row, that token, and how many were made."""

    state: DecodeState
    newest_B: Array
    made: Array


class Continuation(NamedTuple):
    """A prompt with what follows it, and the sum of the log-probabilities of the tokens that were made."""

    text: str
    log_prob: float


def start_text(cached: CachedDecoder, tokens_BL: Array, segments_BL: Array) -> Text:
    """The prompts, read but for the last token of each; `segments_BL` is 1, and 0 behind the end of shorter ones."""
    piece = min(PIECE, tokens_BL.shape[1])
    state, newest_B = read_but_last(cached, cached.init_state(len(tokens_BL)), tokens_BL, segments_BL, piece)
    return Text(state, newest_B, jnp.int32(0))


def continue_text(
    cached: CachedDecoder,
    text: Text,
    count: Array | int,
    sampling: Sampling,
    draw: Draw,
    *,
    most: int = STREAMED,
) -> tuple[Array, Text]:
    """The next `count` <= `most` tokens, int32 [B, most] with zeros behind them, and the texts after them.

    A token is drawn from (seed, its number in the text, row): how many are made at a time changes nothing.
    """

    def step(index: Array, carry: tuple[Array, Text]) -> tuple[Array, Text]:
        made_Bn, text = carry
        logits_B1V, state = cached(text.state, text.newest_B[:, None])
        logits_BV = jnp.where(draw.may_follow_V[None], logits_B1V[:, 0], MASKED)
        token_B = sample(logits_BV, sampling, draw.seed, text.made)
        return made_Bn.at[:, index].set(token_B), Text(state, token_B, text.made + 1)

    made_Bn = jnp.zeros((len(text.newest_B), most), jnp.int32)
    return jax.lax.fori_loop(0, count, step, (made_Bn, text))


class TextGenerator:
    """A language model from its workdir, ready to go on with texts; needs no data and one device.

    `checkpoint` is 'last', 'best' by the config's `checkpoint.best_metric`, or a step's number; '' = the best where one
    is known, else the last.

    Raises:
        InputError: there is no language modelling run in the workdir, no such checkpoint, or no vocabulary.
    """

    def __init__(self, workdir: Path, *, checkpoint: str = LAST) -> None:
        self.config: RunConfig = read_config(workdir)
        if self.config.task != 'language_modelling':
            raise InputError(
                f'{workdir} holds a run of the task {self.config.task!r}; generating text needs language_modelling'
            )
        if self.config.data.units == 'pixels':
            raise InputError(f'{workdir} holds a model of images; only text can be generated')
        cache_specs(self.config.model, 1)  # raises before anything is read
        self.units = read_units(self.config.data.units, workdir)
        self.graph, self.params = restore_for_inference(
            workdir, self.config, checkpoint, lambda: Decoder(self.config.model, rngs=nnx.Rngs(0))
        )
        self.may_follow_V = drawable(self.units, self.config.model.vocab_size)

    def __call__(
        self, prompt: str, *, max_tokens: int = 200, sampling: Sampling | None = None, seed: int = 0
    ) -> Iterator[str]:
        """The text in parts, as it is made: the prompt as the units keep it, then `max_tokens` tokens more.

        Raises:
            InputError: a number is out of range; or the prompt is empty, has something that the vocabulary lacks, or
                leaves too little room in a learned position table.
        """
        check_within('max_tokens', max_tokens, 1)
        check_within('seed', seed, 0, 2**31 - 1)
        ids = prompt_ids(prompt, self.units)
        self.check_room(len(ids), max_tokens)
        return self.stream(ids, max_tokens, sampling or Sampling(), seed)

    def best(self, prompt: str, *, max_tokens: int = 200, beams: int = 4, best: int = 1) -> list[Continuation]:
        """The most probable texts that a beam search finds: the prompt and `max_tokens` tokens more, best first.

        All are equally long, so the sums of log-probabilities are the scores. One beam: the most probable token each
        time.

        Raises:
            InputError: as `__call__`.
        """
        check_within('max_tokens', max_tokens, 1)
        search = Search(beams=beams, best=best, alpha=0.0, max_tokens=max_tokens, end=-1)
        ids = prompt_ids(prompt, self.units)
        self.check_room(len(ids), max_tokens)
        tokens_1L = jnp.asarray(ids[None], jnp.int32)
        found = jax.device_get(search_text(self.graph, self.params, tokens_1L, self.may_follow_V, search=search))
        made = zip(found.tokens_BnT[0], found.lengths_Bn[0], found.log_probs_Bn[0], strict=True)
        return [Continuation(self.text_of(ids, tokens), float(total)) for tokens, length, total in made if length]

    def text_of(self, *parts: np.ndarray) -> str:
        """The text of ids."""
        stream = open_stream(self.units)
        return ''.join([*(stream.feed(ids) for ids in parts), stream.finish()])

    def check_room(self, prompt: int, more: int) -> None:
        """Raises InputError where the model has too few positions for so many tokens; the last needs none."""
        limit = self.config.model.position_limit
        room = more if limit is None else limit + 1 - prompt
        if more > room:
            line = f'the prompt has {prompt} tokens and the model has {limit} positions'
            raise InputError(f'{line}: ' + (f'max_tokens can be {room} at most' if room > 0 else 'it is too long'))

    def stream(
        self, ids: np.ndarray, max_tokens: int, sampling: Sampling, seed: int, *, at_once: int = STREAMED
    ) -> Iterator[str]:
        """See `__call__`; the device makes `at_once` <= `STREAMED` tokens before the host takes them."""
        stream = open_stream(self.units)
        yield stream.feed(ids)
        tokens_1L = jnp.asarray(ids[None], jnp.int32)
        max_length, draw = len(ids) + max_tokens, Draw(jnp.int32(seed), self.may_follow_V)
        text = start(self.graph, self.params, tokens_1L, max_length=max_length)
        for first in range(0, max_tokens, at_once):
            count = min(at_once, max_tokens - first)
            made_1n, text = proceed(
                self.graph, self.params, text, jnp.int32(count), draw, sampling=sampling, max_length=max_length
            )
            yield stream.feed(np.asarray(made_1n)[0, :count])
        yield stream.finish()


@functools.partial(jax.jit, static_argnames=('graph', 'max_length'))
def start(graph: nnx.GraphDef, params: Any, tokens_1L: Array, *, max_length: int) -> Text:
    """`start_text` for one prompt, as a program."""
    return start_text(CachedDecoder(nnx.merge(graph, params), max_length), tokens_1L, jnp.ones_like(tokens_1L))


@functools.partial(jax.jit, static_argnames=('graph', 'sampling', 'max_length'), donate_argnames='text')
def proceed(
    graph: nnx.GraphDef,
    params: Any,
    text: Text,
    count: Array,
    draw: Draw,
    *,
    sampling: Sampling,
    max_length: int,
) -> tuple[Array, Text]:
    """`continue_text` as a program."""
    cached = CachedDecoder(nnx.merge(graph, params), max_length)
    return continue_text(cached, text, count, sampling, draw)


@functools.partial(jax.jit, static_argnames=('graph', 'search'))
def search_text(
    graph: nnx.GraphDef, params: Any, tokens_1L: Array, may_follow_V: Array, *, search: Search
) -> Hypotheses:
    """What a beam search finds after one prompt."""
    cached = cached_for(nnx.merge(graph, params), tokens_1L.shape[1], search)
    limits = Limits(may_follow_V, jnp.full(1, search.max_tokens, jnp.int32))
    return find_best(cached, begin_search(cached, tokens_1L, jnp.ones_like(tokens_1L)), search, limits)[0]


def read_units(kind: str, workdir: Path) -> Units:
    """The units that the run left in its workdir; raises InputError where they are missing or damaged."""
    try:
        return load_units(kind, workdir)
    except Exception as error:  # the tokenizers package raises Exception itself
        line = ' '.join(str(error).split())
        raise InputError(f'{workdir}: its vocabulary of {kind} cannot be read ({line})') from None


def prompt_ids(prompt: str, units: Units) -> np.ndarray:
    """The prompt's ids; raises InputError where it is empty or has something that the vocabulary lacks."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError('the prompt is not UTF-8') from None
    ids = units.encode(prompt)
    if not len(ids):
        raise InputError('the prompt is empty; a language model goes on with at least one token')
    if units.unknown >= 0 and (ids == units.unknown).any():
        raise InputError(f'the prompt has {unknown_parts(prompt, units)}, which the vocabulary of the run lacks')
    return ids


def unknown_parts(prompt: str, units: Units) -> str:
    """What of the prompt the vocabulary lacks, for a message: at most five characters or words."""
    parts = dict.fromkeys(units.written_parts(prompt))
    unknown = [part for part in parts if (units.encode(part) == units.unknown).any()]
    return ', '.join(map(repr, unknown[:5])) + (f' and {len(unknown) - 5} more' if len(unknown) > 5 else '')


def drawable(units: Units, size: int) -> Array:
    """bool [V], which ids may follow: those with a text, and the separator of documents."""
    may_follow_V = np.arange(size) < units.size
    if units.unknown >= 0:
        may_follow_V[units.unknown] = False
    may_follow_V[list(units.unwritten)] = False
    return jnp.asarray(may_follow_V)

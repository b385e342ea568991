"""Makes samples of a model's outputs at the evaluations of its training: filled masks, continued texts, or targets.

The inputs are a few held-out texts, the same at each evaluation. Tokens are sampled with a fixed seed, so equal
parameters give equal samples, also in a resumed run. Nothing here reads the random numbers of training.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from tokenizers import Tokenizer

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.config.run import RunConfig
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.vocabulary import readable_token
from efficient_attention.errors import InputError
from efficient_attention.inference.decoding_options import DecodingOptions
from efficient_attention.inference.generate import allowed_token_mask
from efficient_attention.inference.sampling import Sampling, sample
from efficient_attention.inference.seq2seq_generator import Seq2SeqGenerator
from efficient_attention.inference.streaming_detokenizer import make_detokenizer
from efficient_attention.inference.translator import allowed_token_mask as allowed_target_tokens
from efficient_attention.inference.translator import structural_ids
from efficient_attention.interop.generation_config import ForcedTokens
from efficient_attention.models.cached_decoding import CachedDecoder, DecodeState, cache_specs
from efficient_attention.objectives.objective import Batch, split_trainable_parts
from efficient_attention.tasks.denoising import DenoisingTask
from efficient_attention.tasks.language_modelling import LanguageModellingTask
from efficient_attention.tasks.pretraining import PretrainingTask
from efficient_attention.tasks.task import HostBatch, Task
from efficient_attention.tasks.text_to_text import TextToTextTask
from efficient_attention.workdir.samples_log import Sample

# Tokens of a prompt and of its continuation, by the units of the text.
LENGTHS = {'bytes': (80, 120), 'characters': (80, 120), 'words': (24, 40), 'tokenizer': (24, 40)}
SAMPLING = Sampling(temperature=0.8, top_k=40)
CANDIDATES = 3  # number of tokens shown for each mask
MOST_MASKS = 6  # number of masks shown of a row
ROW_TOKENS = 64  # number of tokens shown of a masked row
TARGET_TOKENS = 64  # maximum number of generated tokens of a target


class Sampler(NamedTuple):
    """Makes the samples of one evaluation."""

    kind: str  # name of the samples in the report, such as 'filled masks'
    make: Callable[[Any], list[Sample]]  # from the model's parameters on one device


def make_sampler(config: RunConfig, task: Task, graph: nnx.GraphDef) -> Sampler | None:
    """Returns the sampler of a run; None for a task that has no samples, and if `eval.samples` is 0.

    Args:
        config: the run's config.
        task: the run's task, with its data.
        graph: the `nnx.GraphDef` of the training model.

    Raises:
        InputError: the model cannot generate text token by token.
    """
    count = config.eval.samples
    if not count or not config.has_evaluation_data:
        return None
    if type(task) is PretrainingTask:
        return Sampler('filled masks', _mask_filler(task, graph, count))
    if isinstance(task, LanguageModellingTask) and task.data.units in LENGTHS and not task.model.directions_apart:
        return Sampler('generated text', _text_continuer(task, graph, count))
    if isinstance(task, TextToTextTask | DenoisingTask):
        return Sampler('targets', _target_generator(config, task, graph, count))
    return None


def local_params(params: Any) -> Any:
    """Returns the model's parameters on this process's first device.

    Replicated parameters are not copied. Sharded parameters are gathered on the device, which needs room for them.

    Raises:
        InputError: the parameters are sharded over several processes.
    """
    first = jax.local_devices()[0]

    def gather(leaf: Array) -> Array:
        if leaf.is_fully_replicated:
            return leaf.addressable_data(0)
        if not leaf.is_fully_addressable:
            raise InputError('samples need all parameters in one process, but the parameters are sharded over several')
        return jax.device_put(leaf, first)

    return jax.tree.map(gather, split_trainable_parts(params)[0])


# ---- filled masks ----


def _mask_filler(task: PretrainingTask, graph: nnx.GraphDef, count: int) -> Callable[[Any], list[Sample]]:
    rows = _first_rows(task, count)
    tokenizer, vocabulary = load_tokenizer(task.corpus.tokenizer_file, lowercase=True), task.corpus.vocabulary
    is_text_V = np.arange(task.model.vocab_size) < vocabulary.size
    is_text_V[list(vocabulary.special)] = False
    candidates = jax.jit(functools.partial(_mask_candidates, graph, is_text_V))

    def make(params: Any) -> list[Sample]:
        ids_BPn = np.asarray(candidates(params, rows))
        return [
            _filled_masks({name: array[row] for name, array in rows.items()}, ids_BPn[row], tokenizer, vocabulary)
            for row in range(len(ids_BPn))
        ]

    return make


def _mask_candidates(graph: nnx.GraphDef, is_text_V: np.ndarray, params: Any, batch: Batch) -> Array:
    """Returns the ids of the most probable tokens of each mask, best first, int32 [B, P, n]."""
    logits_BPV = nnx.merge(graph, params).outputs(batch)['masked_lm']
    return jax.lax.top_k(jnp.where(is_text_V, logits_BPV, -jnp.inf), CANDIDATES)[1]


def _filled_masks(row: HostBatch, ids_Pn: np.ndarray, tokenizer: Tokenizer, vocabulary: Any) -> Sample:
    """Returns a sample with numbered masks: the text, the candidates and the true token of each mask."""
    length = min(int((row['segments'] > 0).sum()), ROW_TOKENS)
    masks = [
        (int(place), number)
        for number, place in enumerate(row['masked_positions'])
        if row['masked_weights'][number] > 0 and place < length
    ]
    masks = sorted(masks)[:MOST_MASKS]
    parts, begin = [], 0
    end = length if len(masks) < MOST_MASKS else min(length, masks[-1][0] + 8)
    for name, (place, _) in enumerate(masks, 1):
        parts += [tokenizer.decode(row['tokens'][begin:place].tolist()), f'[{name}]']
        begin = place + 1
    parts.append(tokenizer.decode(row['tokens'][begin:end].tolist()))

    def words(ids: Sequence[int]) -> str:
        return ', '.join(readable_token(tokenizer, vocabulary, int(id)) for id in ids)

    return {
        'input': ' '.join(filter(None, parts)),
        'output': '\n'.join(f'[{name}] {words(ids_Pn[number])}' for name, (_, number) in enumerate(masks, 1)),
        'target': '\n'.join(
            f'[{name}] {words([row["masked_tokens"][number]])}' for name, (_, number) in enumerate(masks, 1)
        ),
    }


# ---- generated text ----


def _text_continuer(task: LanguageModellingTask, graph: nnx.GraphDef, count: int) -> Callable[[Any], list[Sample]]:
    cache_specs(task.model, 1)  # Unsupported decoders raise InputError.
    ids = task.text.splits[task.evaluation.split]
    prompt, more = LENGTHS[task.data.units]
    limit = min(task.model.position_limit or prompt + more, len(ids))
    prompt, more = max(limit * prompt // (prompt + more), 1) if limit < prompt + more else prompt, more
    more = min(more, limit - prompt)
    if more < 1:
        raise InputError("the held-out text or the model's position limit is too short for a prompt and its answer")
    prompts_BL = np.stack([ids[first : first + prompt] for first in _spread(len(ids) - prompt + 1, count)])
    may_follow_V = allowed_token_mask(task.text.units, task.model.vocab_size)
    continued = jax.jit(functools.partial(_continuations, graph, more))

    def text_of(ids_L: np.ndarray) -> str:
        stream = make_detokenizer(task.text.units)
        return stream.feed_ids(ids_L) + stream.flush_text()

    def make(params: Any) -> list[Sample]:
        made_Bn = np.asarray(continued(params, prompts_BL.astype(np.int32), may_follow_V))
        return [
            {'input': text_of(prompt_L), 'output': text_of(made_n)}
            for prompt_L, made_n in zip(prompts_BL, made_Bn, strict=True)
        ]

    return make


def _continuations(graph: nnx.GraphDef, more: int, params: Any, prompts_BL: Array, may_follow_V: Array) -> Array:
    """Returns `more` sampled tokens after each prompt, int32 [B, more].

    The prompt is read token by token, too, so that only one call of the decoder is compiled.
    """
    rows, length = prompts_BL.shape
    cached = CachedDecoder(nnx.merge(graph, params), length + more)

    def step(place: Array, carry: tuple[Array, DecodeState]) -> tuple[Array, DecodeState]:
        tokens_BL, state = carry
        logits_B1V, state = cached(state, jax.lax.dynamic_slice_in_dim(tokens_BL, place, 1, axis=1))
        made_B = sample(jnp.where(may_follow_V[None], logits_B1V[:, 0], MASKED), SAMPLING, 0, place)
        known_B = tokens_BL[:, place + 1]
        return tokens_BL.at[:, place + 1].set(jnp.where(place + 1 < length, known_B, made_B)), state

    tokens_BL = jnp.pad(prompts_BL, ((0, 0), (0, more)))
    return jax.lax.fori_loop(0, length + more - 1, step, (tokens_BL, cached.init_state(rows)))[0][:, length:]


# ---- targets of sources ----


def _target_generator(
    config: RunConfig, task: TextToTextTask | DenoisingTask, graph: nnx.GraphDef, count: int
) -> Callable[[Any], list[Sample]]:
    if isinstance(task, TextToTextTask):
        sources, texts, references = _held_out_pairs(task, count)
        tokenizer, symbols = task.target_tokenizer, task.encoder.target.symbols
    else:
        sources, texts, references = _held_out_noised(task, count)
        tokenizer, symbols = task.tokenizer, task.ends
    most = min(TARGET_TOKENS, config.pairs.target_length)
    decoding = DecodingOptions(beams=1, batch_size=len(sources), max_tokens=most, extra=most)
    search = decoding.search_settings(symbols.end, ForcedTokens(symbols.begin))
    allowed_V = allowed_target_tokens(tokenizer, symbols, config.model.decoder.vocab_size)
    unwritten = structural_ids(tokenizer)
    batching = decoding.source_batching((config.data.length,))

    def generator(params: Any) -> Seq2SeqGenerator:
        start = (symbols.start,)
        return Seq2SeqGenerator(graph, params, search, prompt=start, batching=batching, may_follow=allowed_V)

    def make(params: Any) -> list[Sample]:
        found = [targets[0].ids.tolist() if targets else [] for targets in generator(params)(sources)]
        made = [tokenizer.decode([id for id in ids if id not in unwritten], skip_special_tokens=False) for ids in found]
        return [
            {'input': source, 'output': text, 'target': reference}
            for source, text, reference in zip(texts, made, references, strict=True)
        ]

    return make


def _held_out_pairs(task: TextToTextTask, count: int) -> tuple[list[np.ndarray], list[str], list[str]]:
    """Returns the ids of a few held-out sources, and the texts of these sources and of their targets."""
    split = task.config.eval.split
    number, kept = next((number, some) for number, some in enumerate(task.encoded(split)) if some)
    chosen = [kept[place] for place in _spread(len(kept), count)]
    pairs = task.pairs_of_dataset(task.sets[split][number])
    found = [pairs[one.number] for one in chosen]
    return [one.source for one in chosen], [pair.source for pair in found], [pair.target for pair in found]


def _held_out_noised(task: DenoisingTask, count: int) -> tuple[list[np.ndarray], list[str], list[str]]:
    """Returns the ids of a few held-out sources with noise, and the texts of these sources and of their targets."""
    rows, unwritten = _first_rows(task, count), structural_ids(task.tokenizer)
    sources = [ids[is_token > 0] for ids, is_token in zip(rows['source'], rows['source_segments'], strict=True)]
    targets = [ids[is_token > 0] for ids, is_token in zip(rows['targets'], rows['segments'], strict=True)]
    masks = {task.corpus.vocabulary.mask}

    def text_of(ids: np.ndarray) -> str:
        written = [id for id in ids.tolist() if id not in unwritten or id in masks]
        return task.tokenizer.decode(written, skip_special_tokens=False)

    return sources, list(map(text_of, sources)), list(map(text_of, targets))


# ---- held-out rows ----


def _first_rows(task: Task, count: int) -> HostBatch:
    """Returns the first rows of the evaluation that have text, with the same rows for any number of processes."""
    batches = task.evaluation_batches(0, 1)
    batch = next(batches)
    segments = batch['source_segments'] if 'source_segments' in batch else batch['segments']
    chosen = np.flatnonzero((segments > 0).any(axis=1))[:count]
    return {name: array[chosen] for name, array in batch.items()}


def _spread(size: int, count: int) -> list[int]:
    """Returns at most `count` indices below `size`, evenly spread."""
    count = min(size, count)
    return [number * size // count for number in range(count)]

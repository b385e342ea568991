"""Tests of the generator of targets: in the sources' order, independent of other sources, with few compiled shapes."""

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.sampling import Sampling
from efficient_attention.inference.search_settings import SamplingSeeds, SearchSettings
from efficient_attention.inference.seq2seq_generator import Seq2SeqGenerator, SourceBatching, search_targets
from efficient_attention.models.alignment import cross_weights
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.unstacked_layers import lay_out_for_inference
from tests.models.drawn import drawn
from tests.tolerances import assert_close

pytestmark = pytest.mark.devices

CONFIG = ModelConfig(
    width=8, heads=2, vocab_size=12, max_length=24, token_types=0, layers=1, decoder_layers=1, norm='pre',
    attention_dropout_rate=0.0, feed_forward_width=16, positions='sinusoidal',
)  # fmt: skip
SEARCH = SearchSettings(beams=3, best=2, max_tokens=6, end=1)
SOURCES = [[3, 4, 5, 6, 7, 1], [2, 1], [4, 4, 9, 1], [8, 7, 6, 5, 4, 3, 1], [5, 1], [11, 10, 1]]
PROMPT = (0, 2)


@functools.cache
def transducer_of(
    rows: int = 4, lengths: tuple[int, ...] = (4, 8), layers: int = 1, **options: Any
) -> Seq2SeqGenerator:
    config = dataclasses.replace(CONFIG, decoder_layers=layers)
    graph, params = drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=1.0)
    batching = SourceBatching(rows, lengths, ratio=1.0, extra=1)
    return Seq2SeqGenerator(*lay_out_for_inference(graph, params), SEARCH, prompt=PROMPT, batching=batching, **options)


@pytest.mark.parametrize(
    'fields, source_limit, most',
    [
        ({'cross_attention': 'linformer(3, 20)'}, 20, 40),
        ({'cross_attention': "linear('cos', 20)"}, 20, 20),
        ({'attention': 'linformer(3, 20)'}, 20, 40),
        ({'decoder_attention': "linear('cos', 20, causal=True)"}, None, 20),
    ],
)
def test_fixed_lengths_bound_sources_and_targets_each_by_its_own(fields: dict[str, str], source_limit: Any, most: int):
    """Fixed positions limit sources and targets separately. A source of 18 tokens is padded to 24 where possible."""
    config = dataclasses.replace(CONFIG, max_length=64, **fields)
    graph, params = drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=1.0)
    search = dataclasses.replace(SEARCH, max_tokens=40, beams=1, best=1)
    transducer = Seq2SeqGenerator(
        *lay_out_for_inference(graph, params), search, prompt=[0], batching=SourceBatching(1, (24,))
    )
    assert config.source_limit == source_limit and transducer.search.max_tokens == most
    [[target]] = transducer([[*range(2, 10)] + [3] * 10])
    assert len(target.ids) and np.isfinite(target.score)
    if source_limit:
        with pytest.raises(InputError, match='source 0 has 21 tokens; the model has 20 positions'):
            transducer([[3] * 21])


def test_targets_stand_in_the_order_of_the_sources_and_depend_on_nothing_else():
    search_targets.clear_cache()
    sources = [*SOURCES, SOURCES[3]]
    targets = transducer_of()(sources)
    # Rows of 4 and of 8 tokens: the leftover source compiles no third program.
    assert search_targets._cache_size() == 2
    assert [len(found) for found in targets] == [2] * 7
    assert [list(target.ids) for target in targets[6]] == [list(target.ids) for target in targets[3]]
    for source, found in zip(sources, targets, strict=True):
        assert len({tuple(target.ids) for target in found}) == 2 and found[0].score >= found[1].score
        for target in found:
            assert len(target.ids) + target.is_ended <= min(6, len(source) + 1) and 1 not in target.ids
            assert target.alignment is None
            made = len(target.ids) + target.is_ended
            assert target.score == pytest.approx(target.log_probability / ((5 + made) / 6) ** 0.6, rel=1e-5)
    # A source by itself, in a row of another length, gets the same targets.
    others = transducer_of(rows=1, lengths=(7,))(SOURCES[:3:2])
    for found, expected in zip(others, targets[:3:2], strict=True):
        assert [list(target.ids) for target in found] == [list(target.ids) for target in expected]
        scores = [[np.float32(target.score) for target in some] for some in (found, expected)]
        assert_close(*scores, gradient=True)


def test_a_draw_follows_from_the_seed_and_the_number_of_a_source_alone():
    """A draw depends only on the seed and the source's number, so equal sources get different draws."""
    graph, params = drawn(lambda: EncoderDecoder(CONFIG, rngs=nnx.Rngs(0)), std=0.3)
    search = dataclasses.replace(SEARCH, beams=1, best=1, sampling=Sampling(top_k=8))
    transducer = Seq2SeqGenerator(
        *lay_out_for_inference(graph, params), search, prompt=PROMPT, batching=SourceBatching(2, (8,), extra=5)
    )

    def texts(sources: list[list[int]], seed: int, numbers: list[int]) -> list[list[int]]:
        found = dict(transducer.iterate_targets(sources, draws=SamplingSeeds(seed, np.asarray(numbers))))
        return [found[place][0].ids.tolist() for place in range(len(sources))]

    numbers = [4, 0, 2, 1, 3, 5]
    together = texts(SOURCES, 7, numbers)
    assert (
        together
        == texts(SOURCES, 7, numbers)
        == [texts([SOURCES[place]], 7, [numbers[place]])[0] for place in range(6)]
    )
    assert together != texts(SOURCES, 8, numbers)
    assert len(set(map(tuple, texts([SOURCES[0]] * 6, 7, numbers)))) > 2


def test_the_shortest_come_first_and_the_numbers_tell_which_they_are():
    numbers = [number for number, _ in transducer_of().iterate_targets(SOURCES)]
    assert numbers == [1, 4, 5, 2, 0, 3] and transducer_of()([]) == []


def test_batches_side_by_side_are_found_as_one_after_another(monkeypatch):
    sources = [source[:-1] + [number, 1] for number in range(3, 12) for source in SOURCES]
    targets = transducer_of()(sources)
    monkeypatch.setattr('efficient_attention.inference.seq2seq_generator.CPU_BATCHES', 1)
    alone = transducer_of.__wrapped__(rows=2)
    assert (alone.at_once, alone.rows) == (1, 2) == (1, transducer_of().rows)
    for found, expected in zip(targets, alone(sources), strict=True):
        assert [list(target.ids) for target in found] == [list(target.ids) for target in expected]
        assert [target.score for target in found] == [target.score for target in expected]


def patched(batch: Callable[..., Any]) -> Seq2SeqGenerator:
    """Returns a generator with batches of two, marked as compiled, that calls `batch` instead of its search."""
    transducer = transducer_of.__wrapped__()
    transducer.search_batch = batch
    transducer.compiled = {(2, length, False) for length in (4, 8)}
    return transducer


def test_two_batches_are_under_way_together():
    both = threading.Barrier(2)

    def meet(*_: Any) -> list[list[Any]]:
        both.wait(timeout=60)
        return [[], []]

    assert [number for number, _ in patched(meet).iterate_targets([[3, 1]] * 8)] == list(range(8))


def test_what_fails_in_a_batch_ends_the_call():
    begun = []

    def second_fails(*_: Any) -> list[list[Any]]:
        begun.append(None)
        if len(begun) == 2:
            raise RuntimeError('no memory')
        return [[], []]

    with pytest.raises(RuntimeError, match='no memory'):
        list(patched(second_fails).iterate_targets([[3, 1]] * 20))
    assert len(begun) <= 5  # At most five of ten batches have begun.


def test_who_stops_asking_waits_for_no_batch():
    begun, may_go_on = [], threading.Event()

    def first_is_quick(sources: Any, *_: Any) -> list[list[Any]]:
        begun.append(None)
        assert int(sources.tokens_BM[0, 0]) == 3 or may_go_on.wait(timeout=60)
        return [[], []]

    found = patched(first_is_quick).iterate_targets([[3, 1]] * 2 + [[4, 1]] * 18)
    assert next(found) == (0, [])
    found.close()
    assert len(begun) <= 3
    may_go_on.set()


def test_settings_of_the_caller_hold_in_the_threads():
    seen = []

    def look(*_: Any) -> list[list[Any]]:
        seen.append((jax.config.jax_default_device, jax.config.jax_default_matmul_precision))
        return [[], []]

    device, transducer = jax.local_devices()[-1], patched(look)
    with jax.default_device(device), jax.default_matmul_precision('highest'):
        list(transducer.iterate_targets([[3, 1]] * 8))
    assert seen == [(device, 'highest')] * 4


def test_what_fills_no_batch_goes_with_rows_up_to_twice_as_long():
    transducer = transducer_of(rows=6, lengths=(4, 8, 16, 32))
    assert transducer.rows == 3  # A CPU takes half as many rows, in two batches at a time.

    def batches(*lengths: int) -> list[tuple[list[int], int, int]]:
        return [tuple(one) for one in transducer.batches(list(lengths), [range(length) for length in lengths])]

    assert batches(4, 4, 8, 8, 8, 8, 16, 32) == [([0, 1, 2], 8, 3), ([3, 4, 5], 8, 3), ([6, 7], 32, 2)]
    assert batches(4, 16, 32, 32, 32) == [([0], 4, 1), ([1, 2, 3], 32, 3), ([4], 32, 3)]


@pytest.mark.parametrize('rows', [1, 2, 3, 5, 8])
def test_no_more_sources_than_rows_are_under_way(rows: int):
    transducer = transducer_of.__wrapped__(rows=rows)
    assert rows - 1 <= transducer.rows * transducer.at_once <= rows


def test_a_line_says_that_a_search_draws_no_keys(caplog: pytest.LogCaptureFixture):
    config = dataclasses.replace(CONFIG, cross_attention='hard(full, sampled=True)')
    graph, params = drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=1.0)
    Seq2SeqGenerator(*lay_out_for_inference(graph, params), SEARCH, prompt=PROMPT)
    [line] = [
        record.getMessage() for record in caplog.records if 'samples keys only in training' in record.getMessage()
    ]
    assert line.startswith("model.cross_attention 'hard(full, sampled=True)' ")


def test_alignments_are_the_weights_of_the_last_layer():
    transducer = transducer_of(layers=2)
    [[first, second]] = transducer(SOURCES[2:3], alignments=True)
    model = nnx.merge(transducer.graph, transducer.params)
    source = jnp.asarray(SOURCES[2:3])

    @jax.jit
    def weights_of(tokens: jax.Array) -> jax.Array:
        ones = jnp.ones_like(tokens)
        return cross_weights(model.decoder, tokens, ones, model.encode(source, jnp.ones_like(source)))

    for target in (first, second):
        assert target.alignment is not None and target.alignment.shape == (len(target.ids), 4)
        # Later tokens change nothing, so any ids may fill the row.
        read = [*PROMPT, *target.ids, 3, 3, 3, 3, 3][:8]
        weights = weights_of(jnp.asarray([read]))[0].mean(axis=0)
        assert_close(target.alignment, np.asarray(weights[1 : 1 + len(target.ids)]))


def test_a_mask_says_which_ids_may_be_made():
    may_follow = np.ones(12, bool)
    may_follow[[0, 1, 2, 3]] = False
    for found in transducer_of.__wrapped__(may_follow=may_follow)(SOURCES):
        assert all((target.ids > 3).all() and not target.is_ended for target in found)


@pytest.mark.parametrize(
    'source, message',
    [
        ([], 'source 1 is \\[\\]; it must be one id or more'),
        ([3, 12], 'source 1 has the id 12; the model has 12 ids'),
        ([-1], 'source 1 has the id -1'),
        ([0.5], 'source 1 is \\[0.5\\]'),
    ],
)
def test_a_bad_source_is_named(source: list, message: str):
    with pytest.raises(InputError, match=message):
        transducer_of()([[2, 1], source])


def test_learned_positions_limit_sources_and_targets():
    config = {'positions': 'learned', 'max_length': 6, 'layers': 1, 'decoder_layers': 1}
    sizes = {'width': 8, 'heads': 2, 'vocab_size': 12, 'token_types': 0}
    model = drawn(lambda: EncoderDecoder(ModelConfig(**sizes | config), rngs=nnx.Rngs(0)))
    transducer = Seq2SeqGenerator(*model, SearchSettings(max_tokens=100), prompt=PROMPT)
    assert transducer.search.max_tokens == 5 and transducer.row_length(5, 0) == 6
    with pytest.raises(InputError, match='source 0 has 7 tokens; the model has 6 positions'):
        transducer([[2] * 7])


def test_a_decoder_that_reads_the_length_of_its_row_is_refused():
    config = dataclasses.replace(CONFIG, decoder_layers=2, decoder_attention='causal;causal & random_tiles(1, 4)')
    graph, params = nnx.split(nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))
    with pytest.raises(
        InputError, match=r"^model.decoder_attention 'causal & random_tiles\(1, 4\)' depends on the length"
    ):
        Seq2SeqGenerator(graph, params, SEARCH)


def test_lengths_and_sizes_of_batches():
    batching = SourceBatching(rows=4, lengths=(4, 8), ratio=1.5, extra=2)
    assert [batching.padded_length(length) for length in (1, 4, 5, 9, 17)] == [4, 4, 8, 16, 32]
    assert [batching.max_target_tokens(length, SearchSettings(max_tokens=9, min_tokens=6)) for length in (1, 4, 9)] == [
        7,
        8,
        9,
    ]
    for fields, message in (
        ({'rows': 0}, 'rows is 0'),
        ({'lengths': (8, 4)}, r'lengths is \(8, 4\); it must be rising'),
        ({'ratio': -1.0}, 'ratio is -1.0'),
        ({'extra': -1}, 'extra is -1'),
    ):
        with pytest.raises(InputError, match=message):
            SourceBatching(**fields)

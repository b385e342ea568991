"""Tests that every mechanism has an implementation with the usual files, and an entry in the table of tests below."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.attention import registry
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.implementation import Implementation, raise_no_cache
from efficient_attention.attention.induced.definition import Induced
from efficient_attention.attention.linear.definition import Linear
from efficient_attention.attention.linformer.definition import Linformer
from efficient_attention.attention.local_p.definition import LocalP
from efficient_attention.attention.logits.definition import PatternAttention
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.lsh.hashing import draw_rotations
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.nystrom.definition import Nystrom
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import dense_mask, global_tokens
from efficient_attention.attention.registry import NAMES, get_implementation, load_implementation
from efficient_attention.attention.routing.definition import Routing
from efficient_attention.attention.sinkhorn.definition import Sinkhorn
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.synthesizer.definition import Synthesizer
from efficient_attention.testing import CENTRES_LH, H, K, L, check_cost, check_decoding, check_outputs
from tests.attention import contract, contract_rows
from tests.attention.cells import drawn_operands

ATTENTION = Path(registry.__file__).parent
SHARED = ('logits.definition', 'logits.query_chunks', 'logits.cache')


@pytest.mark.parametrize('name', NAMES)
def test_an_implementation_has_the_usual_files_or_shares_them(name: str):
    """Implementations over patterns may share the files of logits/; a short fast form is in definition.py."""
    implementation = load_implementation(name)
    made = [implementation.kind, implementation.weights, implementation.compute, implementation.multiply_adds]
    made += [implementation.init_cache, implementation.decode] if has_cache(implementation) else []
    # The function is a `partial` where the implementation builds on another one.
    found = [getattr(one, 'func', one).__module__.removeprefix('efficient_attention.attention.') for one in made]
    files = ['definition', 'definition', 'fast_attention', 'definition'] + ['cache', 'cache'] * has_cache(
        implementation
    )
    if name in ('hard', 'local_p'):
        files[2] = 'definition'
    elif name == 'softmax':
        files[2] = 'backend_choice'
    elif issubclass(implementation.kind, PatternAttention) and name != 'synthesizer':
        files[2] = 'query_chunks'
    for module, file in zip(found, files, strict=True):
        is_shared = (
            module in SHARED and issubclass(implementation.kind, PatternAttention) and module == f'logits.{file}'
        )
        assert is_shared or module == f'{name}.{file}'
    assert found[0] == f'{name}.definition' and (implementation.init_cache is raise_no_cache) is (
        implementation.decode is raise_no_cache
    )
    assert implementation.compress_keys is None or implementation.compress_keys.__module__.endswith(
        f'.{name}.fast_attention'
    )


def has_cache(implementation: Implementation) -> bool:
    return implementation.decode is not raise_no_cache


def test_an_implementation_is_found_by_the_class():
    assert all(
        get_implementation(implementation.kind()) is implementation
        for implementation in map(load_implementation, NAMES)
    )
    assert get_implementation(Softmax()) is load_implementation('softmax')


def test_every_implementation_is_registered_under_the_name_of_its_folder():
    is_implementation = re.compile('^(IMPLEMENTATION = |def make_implementation)', re.MULTILINE)
    folders = [
        path.parent.name for path in ATTENTION.glob('*/__init__.py') if is_implementation.search(path.read_text())
    ]
    assert sorted(NAMES) == sorted(folders) and all(load_implementation(name).kind.name == name for name in NAMES)


def test_a_mechanism_has_one_name_in_texts_and_its_class_is_public():
    """Softmax has no name in texts: its pattern is written instead."""
    kinds = {name: load_implementation(name).kind for name in NAMES}
    assert {name: parse_mechanism(name) for name in NAMES if name != Softmax.name} == {
        name: kind() for name, kind in kinds.items() if name != Softmax.name
    }
    assert all(getattr(ea, kind.__name__) is kind for kind in kinds.values())


def test_a_mechanism_without_an_implementation_is_named():
    with pytest.raises(NotImplementedError, match='^Mechanism has no implementation in attention/registry.py$'):
        get_implementation(Mechanism())


# ---- the table: what a mechanism computes, in float64, and all that its implementation makes of it ----

RNG = jax.random.key(7)  # that of efficient_attention.testing


def of_softmax(_: Softmax, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, __: np.ndarray) -> np.ndarray:
    return contract.softmax(contract.scaled_logits(query, key), allowed)[0]


def of_favor(mechanism: FAVOR, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, __: np.ndarray) -> np.ndarray:
    return contract.favor_weights(query, key, projection(mechanism), mechanism.kernel, allowed)


@functools.cache
def projection(mechanism: FAVOR) -> np.ndarray:
    return np.asarray(jax.jit(lambda: mechanism.feature_map(RNG, K).projection)(), np.float64)


def of_lsh(mechanism: LSH, query: np.ndarray, _: np.ndarray, __: np.ndarray, segments: np.ndarray) -> np.ndarray:
    by_head = []
    for head, rotation in enumerate(rotations(mechanism)):
        buckets = [contract.lsh_buckets(query[:, head], [rotation[:, number]]) for number in range(mechanism.rounds)]
        options = {'size': mechanism.bucket_size, 'causal': mechanism.causal}
        by_head.append(contract.lsh_weights(query[:, head], buckets, segments, **options)[0])
    return np.stack(by_head)


@functools.cache
def rotations(mechanism: LSH) -> np.ndarray:
    draw = functools.partial(draw_rotations, RNG, 2 * (L // mechanism.bucket_size), mechanism.rounds, H, K)
    (drawn,) = jax.jit(draw)()
    return np.asarray(drawn, np.float64)


def of_linear(mechanism: Linear, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, __: np.ndarray) -> np.ndarray:
    if mechanism.kind == 'elu':
        return contract.linear_weights(query, key, allowed)
    return contract.cosine_weights(query, key, mechanism.length, allowed)


def of_entmax(
    mechanism: PatternAttention, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, __: np.ndarray
) -> np.ndarray:
    allowed = allowed & dense_mask(mechanism.pattern, L, L)
    return contract.entmax(
        contract.scaled_logits(query, key), allowed, {'sparsemax': 2.0, 'entmax': 1.5}[mechanism.name]
    )


def of_hard(_: Mechanism, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, __: np.ndarray) -> np.ndarray:
    return contract.hard(contract.scaled_logits(query, key), allowed)


def of_local_p(
    mechanism: LocalP, query: np.ndarray, key: np.ndarray, _: np.ndarray, segments: np.ndarray
) -> np.ndarray:
    logits, places = contract.scaled_logits(query, key), np.arange(L)
    return contract.local_p(logits, np.asarray(CENTRES_LH, np.float64), (segments, segments), places, mechanism.radius)


def learned(mechanism: Mechanism) -> dict[str, np.ndarray]:
    return {name: np.asarray(x, np.float64) for name, x in drawn_operands(mechanism, H, K).items()}


def of_linformer(
    mechanism: Linformer, query: np.ndarray, key: np.ndarray, _: np.ndarray, segments: np.ndarray
) -> np.ndarray:
    arrays = learned(mechanism)
    mixtures = arrays['keys'], arrays.get('values', arrays['keys'])
    return contract_rows.linformer_weights(query, key, mixtures, segments != 0, segments != 0)


def of_nystrom(
    mechanism: Nystrom, query: np.ndarray, key: np.ndarray, _: np.ndarray, segments: np.ndarray
) -> np.ndarray:
    options = {'count': mechanism.landmarks, 'iterations': mechanism.iterations}
    convolution = learned(mechanism).get('convolution')
    return contract_rows.nystrom_weights(query, key, segments != 0, segments != 0, convolution=convolution, **options)


def of_induced(
    mechanism: Induced, query: np.ndarray, key: np.ndarray, _: np.ndarray, segments: np.ndarray
) -> np.ndarray:
    return contract_rows.induced_weights(query, key, learned(mechanism)['points'], segments != 0, segments != 0)


def of_sinkhorn(
    mechanism: Sinkhorn, query: np.ndarray, key: np.ndarray, _: np.ndarray, segments: np.ndarray
) -> np.ndarray:
    sort = learned(mechanism)['sort']
    return contract_rows.sinkhorn_weights(query, key, sort, segments != 0, segments != 0, options=mechanism)


def of_routing(
    mechanism: Routing, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, segments: np.ndarray
) -> np.ndarray:
    centroids, local = learned(mechanism)['centroids'][..., :K], mechanism.local_heads
    members = tuple(
        contract_rows.nearest_places(x[:, local:], centroids, segments != 0, mechanism.size) for x in (query, key)
    )
    return contract_rows.routing_weights(query, key, members, allowed, options=mechanism)


def of_synthesizer(
    mechanism: Synthesizer, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, _: np.ndarray
) -> np.ndarray:
    logits = contract.synthesized(mechanism.kind, query, key, learned(mechanism))
    return contract.softmax(logits, allowed & dense_mask(mechanism.pattern, L, L))[0]


# By text: a function from the mechanism, float64 query and key [L, H, K], allowed pairs [L, M] and segments
# to the weights [H, L, M] of one row.
TABLE: dict[str, Callable[[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    'causal': of_softmax,
    'lsh(4, 2, causal=True)': of_lsh,
    'favor(16, causal=True, chunk=4)': of_favor,
    'linear': of_linear,
    'linear(causal=True, chunk=4)': of_linear,
    "linear('cos', 512)": of_linear,
    "linear('cos', 512, causal=True, chunk=4)": of_linear,
    'sparsemax': of_entmax,
    'sparsemax(causal & window(5))': of_entmax,
    'entmax(causal)': of_entmax,
    'hard(causal)': of_hard,
    'local_p(3)': of_local_p,
    'linformer(3, 512)': of_linformer,
    'linformer(4, 512, tied=False, by_head=True)': of_linformer,
    'nystrom(4)': of_nystrom,
    'nystrom(13, 2, 3)': of_nystrom,
    'nystrom(12)': of_nystrom,
    'induced(3)': of_induced,
    'sinkhorn(4, 128)': of_sinkhorn,
    'sinkhorn(3, 171, 2, temperature=0.5)': of_sinkhorn,
    'sinkhorn(4, 128, cut=2)': of_sinkhorn,
    'sinkhorn(5, 103, causal=True)': of_sinkhorn,
    'routing(3, 5)': of_routing,
    'routing(4, 6, causal=True)': of_routing,
    'routing(2, 9, local_heads=1, window=3)': of_routing,
    'routing(2, 40, local_heads=1, window=3, causal=True)': of_routing,
    "synthesizer('dense', 512)": of_synthesizer,
    "synthesizer('random', 512, pattern=causal)": of_synthesizer,
    "synthesizer('factorized', 512, 3, pattern=causal & window(5))": of_synthesizer,
    "synthesizer('factorized', 512, 40)": of_synthesizer,
    "synthesizer('random+dot', 512, pattern=causal)": of_synthesizer,
}


def test_every_mechanism_has_a_row():
    assert {type(parse_mechanism(text)) for text in TABLE} == {load_implementation(name).kind for name in NAMES}


@pytest.mark.parametrize('text', TABLE)
def test_definition_and_fast_form_are_the_table_s(text: str):
    """Packed segments with padding give the table's outputs; both backends give equal gradients. Padding changes
    nothing.
    """
    check_outputs(parse_mechanism(text), TABLE[text])


@pytest.mark.parametrize('text', [text for text in TABLE if parse_mechanism(text).is_causal])
def test_token_by_token_equals_the_definition_or_is_refused(text: str):
    check_decoding(parse_mechanism(text))


@pytest.mark.parametrize('text', TABLE)
def test_cost_is_that_of_the_program(text: str):
    """Other options are in test_cost.py."""
    check_cost(parse_mechanism(text))


# ---- the worked example of the docs ----

DOCUMENT = ATTENTION.parents[1] / 'docs' / 'attention.md'


def test_the_worked_pattern_is_that_of_the_source():
    said, source = DOCUMENT.read_text(encoding='utf-8'), Path(global_tokens.__file__).read_text(encoding='utf-8')
    start = source.index('@dataclasses.dataclass(frozen=True)\nclass Prefix')
    assert source[start : source.index('\n\n\n', start)] in said

"""Tests that the implementations of two distributions differ only in the class of their mechanism."""

from efficient_attention.attention.logits import cache, query_chunks
from efficient_attention.attention.logits.implementation_factory import make_pattern_implementation
from efficient_attention.attention.sparsemax.definition import Sparsemax


def test_an_implementation_has_the_shared_forms_and_no_sequence_parallel_one():
    implementation = make_pattern_implementation(Sparsemax)
    assert (implementation.kind, implementation.compute, implementation.decode) == (
        Sparsemax,
        query_chunks.compute_attention,
        cache.decode,
    )
    assert implementation.compute_shard is None and implementation.feature_map is None

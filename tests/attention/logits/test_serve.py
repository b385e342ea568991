"""The form in parts: dropout draws the same bits in it as for all queries at once."""

import jax
import pytest

from efficient_attention.attention.attend import make_request
from efficient_attention.attention.logits import query_chunks
from efficient_attention.attention.logits.serve import serve
from efficient_attention.attention.parsing import parse_mechanism
from tests.attention.cells import inputs
from tests.tolerances import assert_close


def test_dropout_does_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch):
    arrays, extra = inputs(13, 'dropout segments')
    rng = extra.pop('rng')

    def run() -> jax.Array:
        return serve(make_request(*arrays, parse_mechanism('causal'), dropout_rng=rng, **extra))[0]

    expected = run()
    monkeypatch.setattr(query_chunks, 'PART_BYTES', 4 * 2 * 4 * 13 * 3)
    assert_close(run(), expected)

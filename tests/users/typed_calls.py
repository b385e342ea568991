"""A user's calls with their types, which `make lint` checks: a public name without a type would be an error here.

Each `type: ignore` is a mistake that the type checker must find; one that finds none is an error too. No test runs this
file.
"""

from typing import Any, assert_type

import jax

import efficient_attention as ea


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    assert_type(ea.attend(q, k, v, ea.Softmax(ea.Causal() & ea.Window(256))), jax.Array)
    assert_type(ea.attention_weights(q, k, ea.LSH(bucket_size=64, rounds=4)), jax.Array)
    ea.attend(q, k)  # type: ignore[call-overload]
    ea.attend(q, k, v, ea.Softmax(), segment=q)  # type: ignore[call-overload]
    ea.Window('256')  # type: ignore[arg-type]


def models(tokens: jax.Array, segments: jax.Array) -> None:
    assert_type(ea.ModelConfig(width=128, heads=2, attention='bigbird(64, 3)').layers, int)
    ea.ModelConfig(heigth=2)  # type: ignore[call-arg]
    model = ea.load('runs/quickstart', ea.Encoder)
    assert_type(model.model, ea.Encoder)
    assert_type(model.config, ea.ModelConfig)
    assert_type(model.tokenizer.encode_batch(['A text.']), tuple[jax.Array, jax.Array])
    assert_type(model.model(tokens, segments), jax.Array)
    assert_type(ea.load('runs/quickstart').model, Any)
    ea.load('runs/quickstart', ea.ModelConfig)  # type: ignore[type-var]


def runs() -> None:
    assert_type(ea.train('quickstart.py', 'runs/quickstart', {'train.steps': 9}), dict[str, float])
    assert_type(ea.evaluate('runs/quickstart', checkpoint='best', context=64), dict[str, float | str])
    ea.evaluate('runs/quickstart', contex=64)  # type: ignore[call-arg]
    ea.pipeline('fill-mask', 'runs/quickstart', top=3)
    ea.Transformer()  # type: ignore[attr-defined]

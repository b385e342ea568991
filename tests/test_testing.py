"""Tests that the public checks of a mechanism pass a right mechanism and find the faults of wrong ones."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention import testing
from efficient_attention.attention.logits.definition import normalised_weights
from efficient_attention.attention.registry import ADDED
from efficient_attention.errors import InputError

CAUSAL = ea.Causal()


@dataclasses.dataclass(frozen=True)
class Quiet(ea.PatternAttention):
    """Softmax with one more logit, 0, in its sum; `fault` names a mistake."""

    name = 'quiet'

    fault: str = 'none'

    def normalise_logits(self, logits_BHLM: Any, allowed_bhLM: Any) -> tuple[Any, None]:
        if self.fault == 'mask':
            allowed_bhLM = jnp.ones_like(allowed_bhLM)
        if self.fault == 'bias':
            logits_BHLM = jnp.sin(logits_BHLM) * 0.0 + 1.0
        scores = jnp.where(allowed_bhLM, jnp.exp(logits_BHLM), 0.0)
        return scores / (1.0 + scores.sum(-1, keepdims=True)), None


def quiet_weights(_: Any, query: np.ndarray, key: np.ndarray, allowed: np.ndarray, __: np.ndarray) -> np.ndarray:
    scores = np.exp(np.einsum('lhk,mhk->hlm', query, key) / np.sqrt(query.shape[-1])) * allowed
    return scores / (1.0 + scores.sum(-1, keepdims=True))


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADDED, 'quiet', ea.make_pattern_implementation(Quiet))


def change(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    monkeypatch.setitem(ADDED, 'quiet', dataclasses.replace(ADDED['quiet'], **functions))


def test_a_right_mechanism_passes():
    testing.check_mechanism(Quiet(CAUSAL), quiet_weights)


def test_a_mechanism_of_the_library_passes():
    testing.check_mechanism(ea.Sparsemax(CAUSAL & ea.Window(5)))


def test_outputs_that_are_not_the_weights_are_found():
    with pytest.raises(AssertionError, match='outputs of the dense definition and of `weights`'):
        testing.check_outputs(Quiet(CAUSAL), lambda *x: 2.0 * quiet_weights(*x))


def test_a_fast_form_of_something_else_is_found(monkeypatch: pytest.MonkeyPatch):
    compute = ADDED['quiet'].compute
    change(monkeypatch, compute=lambda request: (2.0 * compute(request)[0], None))
    with pytest.raises(AssertionError, match='outputs of the fast form and of the dense definition'):
        testing.check_outputs(Quiet(CAUSAL))


def test_a_class_is_refused():
    with pytest.raises(TypeError, match=r'^Quiet is a class; check an instance, such as Quiet\(\)$'):
        testing.check_mechanism(Quiet)  # type: ignore[arg-type]


def test_weights_without_a_log_sum_exp_are_refused():
    class Alone(Quiet):
        def normalise_logits(self, logits_BHLM: Any, allowed_bhLM: Any) -> Any:
            return super().normalise_logits(logits_BHLM, allowed_bhLM)[0]

    with pytest.raises(TypeError, match='^Alone.normalise_logits must return the weights and the log-sum-exp or None$'):
        normalised_weights(Alone(CAUSAL), jnp.zeros((2, 1, 1, 1)), jnp.ones((2, 1, 1, 1), bool))


def test_an_ignored_mask_is_found():
    for pattern, what in ((CAUSAL, 'a later key'), (ea.Full(), 'a key of another text')):
        with pytest.raises(AssertionError, match=f'an output depends on {what}'):
            testing.check_independence(Quiet(pattern, fault='mask'))


def test_an_ignored_bias_is_found():
    with pytest.raises(AssertionError, match='ignores an additive bias'):
        testing.check_options(Quiet(fault='bias'))


def test_a_wrong_cache_is_found(monkeypatch: pytest.MonkeyPatch):
    decode = ADDED['quiet'].decode

    def doubled(*arguments: Any) -> Any:
        out, cache = decode(*arguments)
        return 2.0 * out, cache

    change(monkeypatch, decode=doubled)
    with pytest.raises(AssertionError, match='outputs token by token'):
        testing.check_decoding(Quiet(CAUSAL))


def test_a_wrong_formula_is_found(monkeypatch: pytest.MonkeyPatch):
    change(monkeypatch, multiply_adds=lambda *_: 1)
    with pytest.raises(AssertionError, match='at 500 positions: 1 multiply-adds by formula'):
        testing.check_cost(Quiet(CAUSAL), 500)


# ---- add_mechanism ----


def test_an_added_mechanism_has_a_text():
    assert ea.parse_mechanism('quiet(causal)') == Quiet(CAUSAL)
    with pytest.raises(InputError, match='known: .*quiet'):
        ea.parse_mechanism('quit(causal)')


@pytest.mark.parametrize('name', ['softmax', 'lsh', 'causal', 'my-own', 'mechanism'])
def test_a_name_that_is_taken_is_refused(name: str):
    kind = type('Other', (Quiet,), {'name': name})
    with pytest.raises(InputError, match=f"Other.name is '{name}'; it must be an identifier that is not taken"):
        ea.add_mechanism(ea.make_pattern_implementation(kind))
    assert set(ADDED) == {'quiet'}

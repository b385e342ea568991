"""Checks of a call's arguments: each raises a ValueError of one line that names the argument and what would fit."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import Numbers


def check_mechanism(mechanism: object) -> None:
    """Refuses what is no mechanism, such as a pattern, a text or a class."""
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism is {mechanism!r}; pass an instance such as Softmax(Causal()) or parse_mechanism('causal')"
        )


def check_vectors(query: Array, key: Array, value: Array, mechanism: Mechanism) -> None:
    """[B, L, H, K], [B, M, G, K], [B, M, G, K] of one floating dtype, H a multiple of G, no axis empty."""
    for name, x in (('query', query), ('key', key), ('value', value)):
        if not hasattr(x, 'dtype') or not jnp.issubdtype(x.dtype, jnp.floating):
            kind = x.dtype if hasattr(x, 'dtype') else type(x).__name__
            raise ValueError(f'{name} is of type {kind}; it must be an array of floating-point numbers')
    if query.ndim != 4 or key.shape != value.shape or key.ndim != 4:
        raise ValueError(
            f'query, key, value must be [B, L, H, K], [B, M, G, K] twice; got {query.shape}, {key.shape}, {value.shape}'
        )
    if (query.shape[0], query.shape[3]) != (key.shape[0], key.shape[3]):
        raise ValueError(f'query {query.shape} and key {key.shape} differ in batch size or head width')
    if 0 in query.shape + key.shape:
        raise ValueError(f'query {query.shape} or key {key.shape} has an empty axis')
    if query.shape[2] % key.shape[2]:
        raise ValueError(f'{query.shape[2]} query heads are not a multiple of {key.shape[2]} key heads')
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f'query, key, value must share one dtype; got {query.dtype}, {key.dtype}, {value.dtype}')
    if mechanism.needs.shared_qk and key.shape == query.shape and not same_values(query, key):
        raise ValueError(f'{mechanism}: its keys are its queries; pass one array as query and key')


def check_segments(query: Array, key: Array, query_segments: Numbers | None, key_segments: Numbers | None) -> None:
    """Whole numbers [B, L] and [B, M], both or neither, in the range that `check_range` says."""
    if (query_segments is None) != (key_segments is None):
        raise ValueError('query_segments and key_segments go together: give both or neither')
    for name, x, vectors in (('query_segments', query_segments, query), ('key_segments', key_segments, key)):
        if x is not None:
            check_integers(name, x, (vectors.shape[:2],))
            check_range(name, x)


def check_range(name: str, segments: Any) -> None:
    """Segments in [0, 2**31), where they are known before the program runs and lie in the memory of the CPU.

    Those on another device are taken as they are: a look at them would make each call wait for that device.
    """
    if not (is_known(segments) and is_on_cpu(segments)):
        return
    known = np.asarray(segments)
    for value in (known.min(), known.max()):
        if not 0 <= value < 2**31:
            raise ValueError(f'{name} holds {value}; segments are from 0 to 2^31 - 1, and 0 is padding')


def check_positions(
    query: Array, key: Array, mechanism: Mechanism, query_positions: Numbers | None, key_positions: Numbers | None
) -> None:
    """Whole numbers [1 or B, L] and [1 or B, M], given where lengths alone do not tell what would be compared."""
    for name, x, vectors in (('query_positions', query_positions, query), ('key_positions', key_positions, key)):
        if x is not None:
            check_integers(name, x, (vectors.shape[:2], (1, vectors.shape[1])))
    is_told = query_positions is not None or key_positions is not None
    if query.shape[1] != key.shape[1] and not is_told and mechanism.needs.positions:
        raise ValueError(
            f'{query.shape[1]} queries and {key.shape[1]} keys: {mechanism} compares positions, so give query_positions'
        )


def check_integers(name: str, x: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """An array of whole numbers of one of the given shapes."""
    if not hasattr(x, 'dtype') or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(f'{name} is of type {getattr(x, "dtype", type(x).__name__)}; it must be an array of integers')
    if x.shape not in shapes:
        raise ValueError(f'{name} has shape {x.shape}; it must be {" or ".join(map(str, shapes))}')


def check_bias(query: Array, key: Array, bias: Any) -> None:
    """A function, or an array of numbers that broadcasts to [B, H, L, M]."""
    if bias is None or callable(bias):
        return
    if not hasattr(bias, 'dtype') or not jnp.issubdtype(bias.dtype, jnp.floating):
        kind = getattr(bias, 'dtype', type(bias).__name__)
        raise ValueError(f'bias is of type {kind}; it must be an array of floating-point numbers, or a function')
    shape = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    padded = (1,) * (4 - bias.ndim) + bias.shape
    if len(padded) > 4 or any(size not in (1, full) for size, full in zip(padded, shape, strict=True)):
        raise ValueError(f'bias has shape {bias.shape}; it must broadcast to [B, H, L, M] = {shape}')


def check_relative(query: Array, mechanism: Mechanism, relative: Any) -> None:
    """A `Relative` with a query like `query` and a table [P, H, K] of its dtype, for mechanisms that have logits."""
    if relative is None:
        return
    if not isinstance(relative, Relative):
        raise ValueError(f'relative is {type(relative).__name__}; pass Relative(query, table)')
    if not mechanism.form.has_logits:
        raise ValueError(f'{mechanism} has no relative term; mechanisms with a logit for each pair have')
    table = relative.table
    if relative.query.shape != query.shape or table.shape[1:] != query.shape[2:] or not table.shape[0]:
        raise ValueError(
            f'relative has a query {relative.query.shape} and a table {table.shape}; they must be [B, L, H, K] = '
            f'{query.shape} and [P, H, K]'
        )
    if not query.dtype == relative.query.dtype == table.dtype:
        raise ValueError(
            f'query, relative.query, relative.table must share one dtype; got {query.dtype}, '
            f'{relative.query.dtype}, {table.dtype}'
        )


def check_additive(query: Array, mechanism: Mechanism, additive: Any) -> None:
    """A vector [H, K] of floating-point numbers, for mechanisms that have logits."""
    if additive is None:
        return
    if not mechanism.form.has_logits:
        raise ValueError(f'{mechanism} has no logits that additive scores could be')
    if not hasattr(additive, 'dtype') or not jnp.issubdtype(additive.dtype, jnp.floating):
        kind = getattr(additive, 'dtype', type(additive).__name__)
        raise ValueError(f'additive is of type {kind}; it must be an array of floating-point numbers')
    if additive.shape != query.shape[2:]:
        raise ValueError(f'additive has shape {additive.shape}; it must be [H, K] = {query.shape[2:]}')


def check_centres(query: Array, mechanism: Mechanism, centres: Any) -> None:
    """Numbers [B, L, H] where the mechanism needs them, and only there."""
    if not mechanism.needs.centres:
        if centres is not None:
            raise ValueError(f'{mechanism} reads around no centres; only LocalP does')
        return
    shape = query.shape[:3]
    if centres is None:
        raise ValueError(f'{mechanism} needs centres [B, L, H] = {shape}, where each query reads')
    if centres.shape != shape or not jnp.issubdtype(centres.dtype, jnp.floating):
        raise ValueError(f'centres are {centres.dtype} {centres.shape}; they must be floating-point numbers {shape}')


def check_learned(query: Array, mechanism: Mechanism, learned: Any) -> None:
    """The arrays that the mechanism learns, by name, each of the shape that it declares, and no others."""
    declared = mechanism.learned_operands(*query.shape[2:])
    if learned is not None and not isinstance(learned, Mapping):
        raise ValueError(f'learned is of type {type(learned).__name__}; it must be a dict of arrays by name')
    given = learned or {}
    for name, operand in declared.items():
        if name not in given:
            raise ValueError(f'{mechanism} learns {name} {operand.shape}; give it in `learned`')
        found = given[name]
        if not hasattr(found, 'dtype') or not jnp.issubdtype(found.dtype, jnp.floating):
            kind = getattr(found, 'dtype', type(found).__name__)
            raise ValueError(f'learned {name} is of type {kind}; it must be an array of floating-point numbers')
        if found.shape != operand.shape:
            raise ValueError(f'learned {name} has shape {found.shape}; {mechanism} needs {operand.shape}')
    if unknown := sorted(set(given) - set(declared)):
        raise ValueError(f'{mechanism} learns no {", no ".join(unknown)}')


def check_keys(mechanism: Mechanism, batch: int, dropout_rate: float, rng: Any, dropout_rng: Any) -> None:
    """One typed key for a mechanism that draws; one, or one for each row, for dropout."""
    if not 0.0 <= dropout_rate < 1.0:
        raise ValueError(f'dropout_rate is {dropout_rate}; it must be at least 0 and below 1')
    for name, given in (('rng', rng), ('dropout_rng', dropout_rng)):
        if given is not None and not is_key(given):
            raise ValueError(f'{name} is no typed key; make one with jax.random.key(seed)')
    if dropout_rate > 0.0 and rng is None and dropout_rng is None:
        raise ValueError('attention dropout needs dropout_rng or rng, a key')
    draws = mechanism.draws
    if draws.always and rng is None:
        raise ValueError(f'{mechanism} draws at random and needs rng, one key')
    if draws.always and rng.ndim:
        raise ValueError(f'{mechanism} draws at random and needs rng, one key; got {rng.shape} of them')
    is_by_row = draws.in_training or draws.noise
    if is_by_row and rng is not None and rng.shape not in ((), (batch,)):
        raise ValueError(f'rng holds {rng.shape} keys; it must be one, or one for each of {batch} rows')
    row_keys = rng if dropout_rng is None else dropout_rng
    if dropout_rate > 0.0 and row_keys.shape not in ((), (batch,)):
        raise ValueError(f'dropout_rng holds {row_keys.shape} keys; it must be one, or one for each of {batch} rows')


def is_key(x: Any) -> bool:
    """Whether `x` is an array of typed keys."""
    return hasattr(x, 'dtype') and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def same_values(left: Any, right: Any) -> bool:
    """Whether two arrays are one, or are known now, before the program runs, and equal."""
    return left is right or all(is_known(x) for x in (left, right)) and np.array_equal(left, right)


def is_known(x: Any) -> bool:
    """Whether this process can read the array's values now."""
    return isinstance(x, np.ndarray) or not isinstance(x, jax.core.Tracer) and x.is_fully_addressable


def is_on_cpu(x: Any) -> bool:
    """Whether a known array's values are read without a copy from an accelerator: of NumPy, or of JAX on CPUs."""
    return isinstance(x, np.ndarray) or all(device.platform == 'cpu' for device in x.devices())

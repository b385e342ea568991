"""Checks the arguments of an attention call; each function raises a one-line ValueError
that names the argument and the allowed values.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import AnySegments, Lengths, Numbers


def check_mechanism(mechanism: object) -> None:
    """Raises a ValueError unless `mechanism` is an instance of `Mechanism`;
    a pattern, a string or a class is rejected.
    """
    if isinstance(mechanism, Pattern):
        raise ValueError('mechanism is a pattern; wrap it: Softmax(<your pattern>)')
    if hasattr(mechanism, 'dtype'):
        raise ValueError(
            'mechanism is an array; if it is a mask, write it as a pattern instead, such as Softmax(Causal())'
        )
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism is {mechanism!r}; pass an instance such as Softmax(Causal()) or parse_mechanism('causal')"
        )


def check_vectors(query: Array, key: Array, value: Array, mechanism: Mechanism) -> None:
    """Raises a ValueError unless query is [B, L, H, K], key and value are [B, M, G, K], and G divides H;
    all need one floating-point dtype.

    No axis may be empty. If the mechanism derives keys from queries, query and key must be one array.
    """
    for name, x in (('query', query), ('key', key), ('value', value)):
        if not hasattr(x, 'dtype') or not jnp.issubdtype(x.dtype, jnp.floating):
            kind = x.dtype if hasattr(x, 'dtype') else type(x).__name__
            raise ValueError(f'{name} is of type {kind}; it must be an array of floating-point numbers')
    for name, x, axes in (
        ('query', query, '[B, L, H, K]'),
        ('key', key, '[B, M, G, K]'),
        ('value', value, '[B, M, G, K]'),
    ):
        if x.ndim != 4:
            raise ValueError(f'{name} has shape {x.shape}; it must be {axes}')
    for axis, meaning in ((0, 'batch size'), (3, 'head width')):
        if query.shape[axis] != key.shape[axis]:
            raise ValueError(
                f'key has {meaning} {key.shape[axis]}, but query has {query.shape[axis]}; they must be equal; '
                f'query is {query.shape}, key {key.shape}'
            )
    if key.shape != value.shape:
        raise ValueError(f'value has shape {value.shape}; it must be the shape of key, {key.shape}')
    if 0 in query.shape + key.shape:
        raise ValueError(f'query {query.shape} or key {key.shape} has an empty axis')
    if query.shape[2] % key.shape[2]:
        raise ValueError(
            f'query has {query.shape[2]} heads, which is not a multiple of the {key.shape[2]} heads of key; '
            f'query is {query.shape}, key {key.shape}'
        )
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f'query, key, value must share one dtype; got {query.dtype}, {key.dtype}, {value.dtype}')
    if mechanism.requirements.shared_qk and key.shape == query.shape and not has_equal_values(query, key):
        raise ValueError(f'{mechanism}: its keys are its queries; pass one array as query and key')


def check_segments(
    query: Array, key: Array, query_segments: AnySegments | None, key_segments: AnySegments | None
) -> None:
    """Raises a ValueError unless both segment arguments are None, are integers [B, L] and [B, M] from 0 to 2**31 - 1,
    or are `Lengths` of rows with L and M positions.
    """
    if (query_segments is None) != (key_segments is None):
        raise ValueError('query_segments and key_segments go together: give both or neither')
    for name, x, vectors in (('query_segments', query_segments, query), ('key_segments', key_segments, key)):
        if isinstance(x, Lengths):
            check_lengths(name, x.lengths_B, *vectors.shape[:2])
        elif x is not None:
            check_integers(name, x, (vectors.shape[:2],))
            check_range(name, x)


def check_lengths(name: str, lengths_B: Numbers, rows: int, length: int) -> None:
    """Raises a ValueError unless lengths are integers [B] from 0 to the number of positions; only values known at trace
    time in the CPU's memory are checked.
    """
    check_integers(f'{name}.lengths_B', lengths_B, ((rows,),))
    if is_concrete(lengths_B) and is_on_cpu(lengths_B):
        for row, value in enumerate(np.asarray(lengths_B)):
            if not 0 <= value <= length:
                raise ValueError(f'{name}.lengths_B holds {value} in row {row}; rows have {length} positions')


def check_range(name: str, segments: Any) -> None:
    """Raises a ValueError if a segment lies outside [0, 2**31); only values known at trace time in the CPU's memory are
    checked.

    Arrays on another device are not checked, because each call would then wait for that device.
    """
    if not (is_concrete(segments) and is_on_cpu(segments)):
        return
    known = np.asarray(segments)
    for value in (known.min(), known.max()):
        if not 0 <= value < 2**31:
            raise ValueError(f'{name} holds {value}; segments are from 0 to 2^31 - 1, and 0 is padding')


def check_positions(
    query: Array, key: Array, mechanism: Mechanism, query_positions: Numbers | None, key_positions: Numbers | None
) -> None:
    """Raises a ValueError unless query and key positions are integers [1 or B, L] and [1 or B, M], or None.

    If the mechanism compares positions and L differs from M, at least one of the two must be given.
    """
    for name, x, vectors in (('query_positions', query_positions, query), ('key_positions', key_positions, key)):
        if x is not None:
            check_integers(name, x, (vectors.shape[:2], (1, vectors.shape[1])))
    is_told = query_positions is not None or key_positions is not None
    if query.shape[1] != key.shape[1] and not is_told and mechanism.requirements.positions:
        raise ValueError(
            f'{query.shape[1]} queries and {key.shape[1]} keys: {mechanism} compares positions, so give query_positions'
        )


def check_integers(name: str, x: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Raises a ValueError unless `x` is an array of integers with one of the given shapes."""
    if not hasattr(x, 'dtype') or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(f'{name} is of type {getattr(x, "dtype", type(x).__name__)}; it must be an array of integers')
    if x.shape not in shapes:
        raise ValueError(f'{name} has shape {x.shape}; it must be {" or ".join(map(str, shapes))}')


def check_bias(query: Array, key: Array, bias: Any) -> None:
    """Raises a ValueError unless the bias is None, a function, or a floating-point array
    that broadcasts to [B, H, L, M].
    """
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
    """Raises a ValueError unless `relative` is None, or a `Relative` of matching shapes
    and dtype, and the mechanism has logits.

    Its query has the shape of `query`, its table is [P, H, K].
    """
    if relative is None:
        return
    if not isinstance(relative, Relative):
        raise ValueError(f'relative is {type(relative).__name__}; pass Relative(query, table)')
    if not mechanism.capabilities.has_logits:
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
    """Raises a ValueError unless `additive` is None, or a floating-point vector [H, K], and the mechanism has
    logits.
    """
    if additive is None:
        return
    if not mechanism.capabilities.has_logits:
        raise ValueError(f'{mechanism} has no logits, so it takes no additive scores')
    if not hasattr(additive, 'dtype') or not jnp.issubdtype(additive.dtype, jnp.floating):
        kind = getattr(additive, 'dtype', type(additive).__name__)
        raise ValueError(f'additive is of type {kind}; it must be an array of floating-point numbers')
    if additive.shape != query.shape[2:]:
        raise ValueError(f'additive has shape {additive.shape}; it must be [H, K] = {query.shape[2:]}')


def check_centres(query: Array, mechanism: Mechanism, centres: Any) -> None:
    """Raises a ValueError unless `centres` is floating-point [B, L, H] for a mechanism
    that requires window centres, and None for all others.
    """
    if not mechanism.requirements.centres:
        if centres is not None:
            raise ValueError(f'{mechanism} takes no centres; only LocalP does')
        return
    shape = query.shape[:3]
    if centres is None:
        raise ValueError(f'{mechanism} needs centres [B, L, H] = {shape}, around which each query reads')
    if centres.shape != shape or not jnp.issubdtype(centres.dtype, jnp.floating):
        raise ValueError(f'centres are {centres.dtype} {centres.shape}; they must be floating-point numbers {shape}')


def check_learned(query: Array, mechanism: Mechanism, learned: Any) -> None:
    """Raises a ValueError unless `learned` has exactly the learned arrays
    that the mechanism declares, with the declared shapes.
    """
    declared = mechanism.learned_operands(*query.shape[2:])
    if learned is not None and not isinstance(learned, Mapping):
        raise ValueError(f'learned is of type {type(learned).__name__}; it must be a dict of arrays by name')
    given = learned or {}
    for name, operand in declared.items():
        if name not in given:
            raise ValueError(
                f'{mechanism} learns {name} {operand.shape}; give it in `learned`; ea.draw_operands draws it'
            )
        found = given[name]
        if not hasattr(found, 'dtype') or not jnp.issubdtype(found.dtype, jnp.floating):
            kind = getattr(found, 'dtype', type(found).__name__)
            raise ValueError(f'learned {name} is of type {kind}; it must be an array of floating-point numbers')
        if found.shape != operand.shape:
            raise ValueError(f'learned {name} has shape {found.shape}; {mechanism} needs {operand.shape}')
    if unknown := sorted(set(given) - set(declared)):
        raise ValueError(f'{mechanism} learns no {", no ".join(unknown)}')


def check_rng_keys(mechanism: Mechanism, batch: int, dropout_rate: float, rng: Any, dropout_rng: Any) -> None:
    """Raises a ValueError for an invalid dropout rate, a missing random key, or keys of the wrong type or shape.

    A mechanism that always samples requires one typed key. Dropout takes one key, or one per batch row. A
    mechanism that samples or adds noise only in training also takes `rng` in these two forms.
    """
    if not 0.0 <= dropout_rate < 1.0:
        raise ValueError(f'dropout_rate is {dropout_rate}; it must be at least 0 and below 1')
    for name, given in (('rng', rng), ('dropout_rng', dropout_rng)):
        if given is not None and not is_rng_key(given):
            raise ValueError(f'{name} is not a typed key; make one with jax.random.key(seed)')
    if dropout_rate > 0.0 and rng is None and dropout_rng is None:
        raise ValueError('attention dropout needs dropout_rng or rng, a key')
    draws = mechanism.randomness
    if draws.always and rng is None:
        raise ValueError(f'{mechanism} samples at random and needs rng, one key')
    if draws.always and rng.ndim:
        raise ValueError(f'{mechanism} samples at random and needs rng, one key; got keys of shape {rng.shape}')
    is_by_row = draws.in_training or draws.noise
    if is_by_row and rng is not None and rng.shape not in ((), (batch,)):
        raise ValueError(f'rng has keys of shape {rng.shape}; it must be one key, or one per row ({batch})')
    row_keys = rng if dropout_rng is None else dropout_rng
    if dropout_rate > 0.0 and row_keys.shape not in ((), (batch,)):
        raise ValueError(
            f'dropout_rng has keys of shape {row_keys.shape}; it must be one key, or one per row ({batch})'
        )


def is_rng_key(x: Any) -> bool:
    """Returns whether `x` is an array of typed PRNG keys, as `jax.random.key` makes them."""
    return hasattr(x, 'dtype') and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def has_equal_values(left: Any, right: Any) -> bool:
    """Returns whether two arrays are the same object, or have equal values that are known at trace time."""
    return left is right or all(is_concrete(x) for x in (left, right)) and np.array_equal(left, right)


def is_concrete(x: Any) -> bool:
    """Returns whether this process can read the array's values now; False for tracers and for arrays on other hosts."""
    return isinstance(x, np.ndarray) or not isinstance(x, jax.core.Tracer) and x.is_fully_addressable


def is_on_cpu(x: Any) -> bool:
    """Returns whether an array's values can be read without a copy from an accelerator.

    True for NumPy arrays and for JAX arrays on CPUs.
    """
    return isinstance(x, np.ndarray) or all(device.platform == 'cpu' for device in x.devices())

"""Exports a trained model as an ONNX file with a dynamic batch size, and checks the file with onnxruntime.

jax2onnx 0.13 converts softmax attention over any pattern (full, window, Longformer, BigBird, strided) and the
mechanisms hard, linformer, induced, sinkhorn and synthesizer. It cannot convert linear, favor, lsh, nystrom, routing,
entmax and sparsemax; the error names the operation.
"""

import contextlib
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive, jaxpr_as_fun

from efficient_attention.atomic_files import atomic_folder
from efficient_attention.attention.devices import using_platform
from efficient_attention.errors import InputError, missing_extra_error, one_line
from efficient_attention.inference.jax_export import ExportableModel, write_description

ONNX = 'model.onnx'
TOLERANCE = 1e-4  # largest allowed difference between onnxruntime and JAX, relative to the largest output
CHECKED_ROWS = 3  # rows of the batch on which both are compared
PLUGINS = 'jax2onnx/plugins/'
# JAX operations that call another program, and the parameter that holds this program.
CALLS = {'jit': 'jaxpr', 'pjit': 'jaxpr', 'closed_call': 'call_jaxpr', 'custom_jvp_call': 'call_jaxpr'}
CALLS |= {'custom_vjp_call': 'call_jaxpr', 'checkpoint': 'jaxpr', 'remat2': 'jaxpr'}
RUN_ONNX = """import onnxruntime

session = onnxruntime.InferenceSession('{file}')
outputs = session.run({outputs}, {{{inputs}}})
"""


def export_onnx(model: ExportableModel, folder: Path) -> None:
    """Writes a model as a folder with model.onnx, its tokenizer, export.json and README.md.

    Raises:
        InputError: jax2onnx or onnxruntime is not installed, ONNX lacks an operation of the model, onnxruntime computes
            other outputs, or the folder is not empty.
        RunError: the disk is full.
    """
    with warnings.catch_warnings(), only_warnings_logged(), atomic_folder(folder) as partial:
        warnings.simplefilter('ignore')
        to_onnx, session_of = import_onnx()
        outputs = convert(to_onnx, model, partial / ONNX)
        check_outputs(session_of, model, partial / ONNX, list(outputs))
        inputs = ', '.join(f"'{name}': {name}" for name in model.lengths)
        code = RUN_ONNX.format(file=ONNX, outputs=list(outputs), inputs=inputs)
        write_description(partial, model, {'program': ONNX}, outputs, code)


@contextlib.contextmanager
def only_warnings_logged() -> Iterator[None]:
    """Context manager that drops log lines below warnings: jax2onnx logs a line about each conversion."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        yield
    finally:
        logging.disable(before)


def import_onnx() -> tuple[Any, Any]:
    """Returns the functions `jax2onnx.to_onnx` and `onnxruntime.InferenceSession`."""
    # jax2onnx logs a traceback for each of its plugins whose optional package is missing.
    for name in ('jax2onnx', 'onnx_ir'):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        from jax2onnx import to_onnx
        from onnxruntime import InferenceSession, set_default_logger_severity
    except ModuleNotFoundError as error:
        raise missing_extra_error('--format onnx', 'export', error) from None
    set_default_logger_severity(3)  # errors only: it warns about each unused constant in a loop
    return to_onnx, InferenceSession


def convert(to_onnx: Any, model: ExportableModel, path: Path) -> dict[str, str]:
    """Writes a model's ONNX file, and returns dtype and shape of each output.

    jax2onnx replaces methods of Flax modules while it traces. So this function first traces the model for one row, and
    jax2onnx sees only operations of JAX.
    """
    specs = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in model.lengths.values()]
    with using_platform('cpu', 1):
        traced, shapes = jax.make_jaxpr(model.call, return_shape=True)(model.params, *specs)
    params, names = jax.tree.leaves(model.params), sorted(shapes)
    row = jax.make_jaxpr(lambda *inputs: run_jaxpr(traced.jaxpr, traced.consts, [*params, *inputs]))(*specs)

    def outputs(*inputs: Array) -> tuple[Array, ...]:
        return jax.vmap(lambda *parts: tuple(x[0] for x in jaxpr_as_fun(row)(*(part[None] for part in parts))))(*inputs)

    dynamic = [jax.ShapeDtypeStruct(('batch', length), jnp.int32) for length in model.lengths.values()]
    try:
        to_onnx(
            outputs,
            inputs=dynamic,
            input_names=list(model.lengths),
            output_names=names,
            return_mode='file',
            output_path=str(path),
        )
    except Exception as error:  # jax2onnx raises many kinds of errors for operations that it does not support
        failed = failed_operation(error)
        raise InputError(f'ONNX: jax2onnx cannot convert {failed} with a dynamic batch size') from error
    return {name: f'{shapes[name].dtype} [{", ".join(map(str, ("batch", *shapes[name].shape[1:])))}]' for name in names}


def failed_operation(error: Exception) -> str:
    """Returns the JAX operation at which jax2onnx failed, or the error message if the operation is unknown."""
    if found := re.search(r"primitive '(\w+)'", str(error)):
        return f'the operation {found[1]}'
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if PLUGINS in frame.filename]
    stems = [Path(name).stem for name in frames if not Path(name).stem.startswith('_') and 'system' not in name]
    return f'the operation {stems[-1]}' if stems else f'this model ({one_line(error)[:200]})'


def run_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a traced program, with operations replaced that jax2onnx does not know.

    Calls are inlined, and operations on constants are computed now, such as random features from a fixed key.
    """
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        arguments = [read(variable) for variable in equation.invars]
        name = equation.primitive.name
        if name in CALLS:
            called = equation.params[CALLS[name]]  # closed if it has constants
            found = run_jaxpr(getattr(called, 'jaxpr', called), getattr(called, 'consts', ()), arguments)
        elif any(isinstance(one, jax.core.Tracer) for one in arguments):
            params = equation.params
            if name == 'scan':  # the loop over layers that share their parameters
                params = params | {'jaxpr': inlined(params['jaxpr'])}
            found = apply_operation(equation.primitive, params, arguments)
        else:
            with jax.ensure_compile_time_eval():
                found = apply_operation(equation.primitive, equation.params, arguments)
        values.update(zip(equation.outvars, found, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def inlined(body: ClosedJaxpr) -> ClosedJaxpr:
    """Returns the body of a loop, rewritten by `run_jaxpr` for jax2onnx."""
    return jax.make_jaxpr(lambda *inputs: run_jaxpr(body.jaxpr, body.consts, inputs))(*body.in_avals)


def apply_operation(primitive: Primitive, params: Mapping[str, Any], arguments: list[Any]) -> list[Any]:
    """Returns the outputs of one operation; `stack` and `pad` become concatenations, `unstack` becomes slices."""
    if primitive.name == 'stack':
        axis = params['axis']
        return [jnp.concatenate([jnp.expand_dims(x, axis) for x in arguments], axis)]
    if primitive.name == 'unstack':
        [x], axis = arguments, params['axis']
        return [jax.lax.index_in_dim(x, place, axis, keepdims=False) for place in range(x.shape[axis])]
    if primitive.name == 'pad' and all(min(low, high) >= 0 and not gap for low, high, gap in params['padding_config']):
        x, value = arguments
        return [pad_by_concatenation(x, value, params['padding_config'])]
    found = primitive.bind(*arguments, **params)
    return found if primitive.multiple_results else [found]


def pad_by_concatenation(x: Any, value: Any, config: Sequence[tuple[int, int, int]]) -> Any:
    """Pads each axis with `low` and `high` copies of a value, like `jax.lax.pad` without interior padding."""
    for axis, (low, high, _) in enumerate(config):
        edges = [jnp.broadcast_to(value, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in (low, high)]
        x = jnp.concatenate([edge for edge in (edges[0], x, edges[1]) if edge.shape[axis]], axis)
    return x


def check_outputs(session_of: Any, model: ExportableModel, path: Path, names: list[str]) -> None:
    """Raises InputError unless onnxruntime loads the file and computes the model's outputs for a batch of random
    rows.
    """
    draws = np.random.default_rng(0)
    inputs = {}
    for name, length in model.lengths.items():
        if name.endswith('segments'):
            used = draws.integers(1, length, (CHECKED_ROWS, 1), endpoint=True)
            inputs[name] = (np.arange(length)[None] < used).astype(np.int32)
        elif name == 'is_global':  # the model has a limit of global tokens per row
            inputs[name] = np.tile(np.arange(length) == 0, (CHECKED_ROWS, 1)).astype(np.int32)
        else:
            inputs[name] = draws.integers(0, 2, (CHECKED_ROWS, length)).astype(np.int32)
    ours = jax.jit(model.outputs)(model.params, *inputs.values())
    try:
        theirs = session_of(str(path)).run(names, inputs)
    except Exception as error:  # onnxruntime defines its errors in a module without public names
        found = re.search(r'Op \((\w+)\)', str(error))
        where = f'the operation {found[1]}' if found else one_line(error)[:200]
        raise InputError(f'ONNX: onnxruntime cannot run the converted model: {where}') from None
    for name, found_array in zip(names, theirs, strict=True):
        wanted = np.asarray(ours[name], np.float32)
        largest = np.abs(found_array - wanted).max() / max(1.0, np.abs(wanted).max())
        if not largest <= TOLERANCE:
            raise InputError(f'ONNX: onnxruntime computes other {name} than JAX (relative difference {largest:.1e})')

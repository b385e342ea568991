"""Makes lowering faster: the programs of a thread share an MLIR context.

JAX creates a context for each program and registers all its dialects there. For a program of one operation this takes
three quarters of the lowering. A context keeps the constants of its programs, so it is replaced from time to time.
"""

import threading
from typing import Any

from jax._src.interpreters import mlir

PROGRAMS = 200  # number of programs of a context
make_module = mlir.ModuleContext.__init__


class Shared(threading.local):
    """The MLIR context of this thread, and the number of programs that have used it."""

    context: Any = None
    uses = 0


shared = Shared()


def shared_context() -> Any:
    """Returns the context of this thread."""
    if shared.context is None or shared.uses == PROGRAMS:
        shared.context, shared.uses = mlir.make_ir_context(), 0
    shared.uses += 1
    return shared.context


def make_shared_module(module: mlir.ModuleContext, *, context: Any = None, **options: Any) -> None:
    """Replaces the constructor of JAX's modules: a module without a context gets the context of this thread."""
    make_module(module, context=shared_context() if context is None else context, **options)


def share_contexts() -> None:
    """Replaces the constructor of JAX's modules in this process."""
    mlir.ModuleContext.__init__ = make_shared_module

"""States the work of a kernel in the program that calls it, where the planner reads it.

XLA sees neither the matrix products inside a kernel nor how often the kernel loads a tile. The names of scopes reach
the compiled program as metadata of its instructions, so a scope's name holds both figures.
"""

import contextlib
import dataclasses
import re

import jax

_SCOPE = re.compile(r'kernel_([a-z]+)_flops(\d+)_bytes(\d+)')


@dataclasses.dataclass(frozen=True)
class KernelWork:
    """The work of a kernel on one device: of one call, or of several calls together.

    Args:
        name: what the kernel computes, in lower-case letters, such as 'forward'.
        flops: FLOPs of matrix products; a multiply-add counts as two. All pairs of a tile count, also masked ones.
        loaded_bytes: bytes that the kernel loads and stores. A tile counts as often as the kernel loads it.
    """

    name: str
    flops: int
    loaded_bytes: int

    def plus(self, other: 'KernelWork', times: int) -> 'KernelWork':
        """Returns this work together with `times` times the work of another call of the same kernel."""
        return KernelWork(self.name, self.flops + times * other.flops, self.loaded_bytes + times * other.loaded_bytes)


def stating_work(work: KernelWork) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the traced kernel's instruction states its work; call exactly one kernel in it."""
    return jax.named_scope(f'kernel_{work.name}_flops{work.flops}_bytes{work.loaded_bytes}')


def stated_work(scope: str) -> KernelWork | None:
    """Returns the work that a scope of `stating_work` states in an instruction's metadata; None for other texts."""
    found = _SCOPE.search(scope)
    return KernelWork(found[1], int(found[2]), int(found[3])) if found else None

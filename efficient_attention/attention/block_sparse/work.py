"""Counts the work of each kernel of block-sparse attention from its lists of tiles, so that the planner can read it.

Segments shorten the lists only while the program runs, so packed rows count like rows of one text.
"""

from typing import NamedTuple

from jax import Array

from efficient_attention.attention.block_sparse.lists import StaticLists
from efficient_attention.attention.block_sparse.tiles import KernelOptions, Tokens
from efficient_attention.attention.kernel_work import KernelWork


class Kernel(NamedTuple):
    """What the work of a kernel follows from.

    Args:
        products: number of matrix products in a visited tile, over the head width each.
        vectors: number of vectors of head width that a computed token reads and writes.
        numbers: number of float32 numbers that a query has besides those of `Tokens`.
        by_key: whether the kernel computes tiles of keys.
    """

    products: int
    vectors: int
    numbers: int
    by_key: bool = False


KERNELS = {
    'forward': Kernel(products=2, vectors=2, numbers=1),  # reads q, writes the output; log-sum-exp
    'dq': Kernel(products=3, vectors=3, numbers=2),  # reads q and the output's gradient, writes dq; log-sum-exp, delta
    'dkv': Kernel(products=4, vectors=4, numbers=2, by_key=True),  # reads k and v, writes dk and dv
}


def count_visits(lists: StaticLists, heads: int) -> int:
    """Returns how many tiles the programs of one batch row visit, over all heads; a mean over the layers of `lists`.

    Args:
        lists: the lists of a kernel.
        heads: the number of heads for which the kernel runs programs: query heads, or key heads if it computes keys.
    """
    visits_NP = lists.programs_NPT4[..., 3].sum(axis=-1)
    return round(float(visits_NP.mean()) * heads)


def work_of(name: str, options: KernelOptions, tokens: Tokens, q_BLHK: Array, k_BMGK: Array) -> KernelWork:
    """Returns the work of one call of the kernel with this name in `KERNELS`.

    A visited token has two vectors of head width: key and value, or query and output gradient. All its numbers, such
    as its position, count four bytes.
    """
    kernel, (batch, _, _, width) = KERNELS[name], q_BLHK.shape
    sizes = options.sizes_by_key if kernel.by_key else options.sizes
    visits = batch * options.visits[kernel.by_key]
    computed, size = k_BMGK, sizes.queries
    computed_numbers, visited_numbers = len(tokens.of_keys()), len(tokens.of_queries()) + kernel.numbers
    if not kernel.by_key:
        computed, size = q_BLHK, sizes.keys
        computed_numbers, visited_numbers = len(tokens.of_queries()) + kernel.numbers, len(tokens.of_keys())
    vector = width * q_BLHK.dtype.itemsize
    loaded = visits * size * (2 * vector + 4 * visited_numbers)
    loaded += computed.size // width * (kernel.vectors * vector + 4 * computed_numbers)
    return KernelWork(name, kernel.products * 2 * visits * sizes.queries * sizes.keys * width, loaded)

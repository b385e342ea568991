"""Calls PyTorch's fused attention on the device of this process, for `scripts/measure_gpu.py`."""

from collections.abc import Callable

import torch


def make_call(shape: tuple[int, ...], *, is_causal: bool, with_gradients: bool) -> tuple[Callable, Callable]:
    """Returns a call of full or causal attention in bfloat16, and a function that waits for its result.

    Args:
        shape: rows, positions, heads, head width of the random arrays.
        is_causal: whether queries read no later keys.
        with_gradients: whether a call also computes the gradients of queries, keys and values.
    """
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    rows, length, heads, width = shape
    arrays = [
        torch.randn(rows, heads, length, width, device=device, dtype=torch.bfloat16, requires_grad=with_gradients)
        for _ in range(4)
    ]
    *operands, gradient = arrays

    def call() -> object:
        out = torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=is_causal)
        return torch.autograd.grad(out, operands, gradient.detach()) if with_gradients else out

    def wait(result: object) -> None:
        del result
        if device == 'cuda':
            torch.cuda.synchronize()

    return call, wait

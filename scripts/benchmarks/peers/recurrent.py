"""Measures the time and memory of a recurrent layer in PyTorch, forward and forward + backward.

This program runs in the environment of `make peers`; `scripts/benchmark.py` starts it with the shape as JSON. It
prints one JSON object.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable

import torch

CELLS = {'tanh': torch.nn.RNN, 'gru': torch.nn.GRU, 'lstm': torch.nn.LSTM}


def measure(shape: dict) -> dict:
    """Measures a recurrent layer: seconds per call after a warm-up, and peak resident memory above the inputs."""
    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    module = CELLS[shape['cell']](shape['width'], shape['width'], batch_first=True)
    size = (shape['rows'], shape['length'], shape['width'])
    x, cotangent = torch.randn(size, requires_grad=True), torch.randn(size)
    baseline = peak_bytes()

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def forward_backward() -> None:
        module.zero_grad()
        x.grad = None
        module(x)[0].backward(cotangent)

    result = {'name': f'torch {torch.__version__}'}
    for name, function in (('forward', forward), ('forward_backward', forward_backward)):
        result[name] = time_calls(function, shape['steps'])
    return result | {'peak_bytes': peak_bytes() - baseline}


def time_calls(call: Callable[[], None], steps: int) -> list[float]:
    """Calls a function repeatedly; returns the seconds of each call, except a first untimed call."""
    call()
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def peak_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))

"""One process, one measurement: attention of one mechanism at one length, forward and forward + backward.

`scripts/benchmark.py` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from efficient_attention.attention.attend import attend
from efficient_attention.attention.draw_operands import draw_operands
from efficient_attention.attention.parsing import parse_mechanism


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each call after a warm-up, temporary memory of the compiled programs, peak resident memory.

    With 0 `steps` nothing runs, and the temporary memory is all there is.
    """
    size = (1, shape['length'], shape['heads'], shape['head_width'])
    q, k, v, cotangent = (jax.random.normal(key, size) for key in jax.random.split(jax.random.key(0), 4))
    jax.block_until_ready((q, k, v, cotangent))
    baseline = peak_bytes()
    length = shape['length']
    mechanism = parse_mechanism(shape['mechanism'].format(length=length, root=round(math.sqrt(length))))
    learned = draw_operands(mechanism, *size[2:], jax.random.key(2))
    rng = jax.random.key(1) if mechanism.draws.always else None

    def forward(q: jax.Array, k: jax.Array, v: jax.Array, learned: Any) -> jax.Array:
        k = q if mechanism.needs.shared_qk else k
        return attend(q, k, v, mechanism, rng=rng, learned=learned, backend=shape['backend'])

    def forward_backward(q: jax.Array, k: jax.Array, v: jax.Array, learned: Any) -> Any:
        if mechanism.needs.shared_qk:
            out, pull = jax.vjp(lambda q, v: forward(q, k, v, learned), q, v)
        else:
            out, pull = jax.vjp(forward, q, k, v, learned)
        return out, pull(cotangent)

    result: dict[str, Any] = {'name': f'efficient_attention, jax {jax.__version__}'}
    for name, function in (('forward', forward), ('forward_backward', forward_backward)):
        compiled = jax.jit(function).lower(q, k, v, learned).compile()
        result[f'{name}_temporary_bytes'] = compiled.memory_analysis().temp_size_in_bytes
        if shape['steps']:
            result[name] = seconds(
                lambda compiled=compiled: jax.block_until_ready(compiled(q, k, v, learned)), shape['steps']
            )
    return result | ({'peak_bytes': peak_bytes() - baseline} if shape['steps'] else {})


def seconds(call: Callable[[], Any], steps: int) -> list[float]:
    """Seconds of each of `steps` calls after one that is not counted."""
    call()
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def peak_bytes() -> int:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


if __name__ == '__main__':
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    print(json.dumps(measure(json.loads(sys.argv[1]))))

"""Measures inference of Hugging Face's BERT encoder in PyTorch: milliseconds per call and memory.

This program runs in the environment of `make peers`; `scripts/benchmark.py` starts it with the shape as JSON. It
prints one JSON object. The peer gets its fastest settings: PyTorch's attention kernel and inference mode.
"""

import io
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

LEAST_SECONDS = 1.0  # calls are timed until their total time reaches this many seconds


def measure(shape: dict) -> dict:
    """Measures an encoder: median milliseconds per call after two untimed calls, bytes of its parameters, and memory of
    the calls.
    """
    torch.manual_seed(0)
    model, rows, length = shape['model'], shape['rows'], shape['length']
    config = transformers.BertConfig(
        vocab_size=model['vocab_size'],
        num_hidden_layers=model['layers'],
        hidden_size=model['width'],
        num_attention_heads=model['heads'],
        intermediate_size=model['feed_forward_width'],
    )
    encoder = transformers.BertModel(config, add_pooling_layer=False).eval()
    if shape.get('quantization') == 'int8':
        encoder = torch.ao.quantization.quantize_dynamic(encoder, {torch.nn.Linear}, dtype=torch.qint8)
    stored = io.BytesIO()
    torch.save(encoder.state_dict(), stored)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(5, model['vocab_size'], (rows, length)))
    mask = torch.ones_like(tokens)
    times: list[float] = []
    Path('/proc/self/clear_refs').write_text('5')  # this resets the peak of resident memory
    before = resident_bytes('VmRSS')
    with torch.inference_mode():
        for _ in range(2):
            encoder(input_ids=tokens, attention_mask=mask)
        while len(times) < 5 or sum(times) < LEAST_SECONDS:
            start = time.perf_counter()
            encoder(input_ids=tokens, attention_mask=mask).last_hidden_state[0, 0, 0].item()
            times.append(time.perf_counter() - start)
    name = f'transformers {transformers.__version__}, torch {torch.__version__}'
    return {
        'name': name,
        'milliseconds': 1e3 * float(np.median(times)),
        'parameter_bytes': stored.getbuffer().nbytes,
        'peak_bytes': max(resident_bytes('VmHWM') - before, 0),
    }


def resident_bytes(name: str) -> int:
    """Returns the resident memory of this process in bytes: 'VmRSS' for now, 'VmHWM' for the peak since the reset."""
    lines = Path('/proc/self/status').read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f'{name}:'))


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))

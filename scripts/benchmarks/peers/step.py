"""Measures training steps of Hugging Face's `BertForMaskedLM` with AdamW in PyTorch on the CPU.

This program runs in the environment of `make peers`; `scripts/benchmark.py` starts it with the shape as JSON. It
prints one JSON object. The peer gets its fastest settings: PyTorch's attention kernel, its default GELU, fused AdamW,
no attention mask, no clipping.
"""

import json
import resource
import sys
import time

import numpy as np
import torch
import transformers


def masked_batches(shape: dict, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns masked-LM batches (tokens, labels) of random ids; the labels are -100 except at masked positions."""
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(count):
        tokens = rng.integers(5, shape['vocab_size'], (shape['rows'], shape['length']))
        labels = np.full_like(tokens, -100)
        for row in range(shape['rows']):
            chosen = rng.choice(shape['length'], shape['masked'], replace=False)
            labels[row, chosen] = tokens[row, chosen]
        batches.append((torch.from_numpy(tokens), torch.from_numpy(labels)))
    return batches


def make_model(shape: dict) -> torch.nn.Module:
    """Returns Hugging Face's BERT with a masked-LM head, in training mode with dropout."""
    config = transformers.BertConfig(
        vocab_size=shape['vocab_size'],
        num_hidden_layers=shape['layers'],
        hidden_size=shape['width'],
        num_attention_heads=shape['heads'],
        intermediate_size=4 * shape['width'],
        hidden_dropout_prob=shape['dropout_rate'],
        attention_probs_dropout_prob=shape['dropout_rate'],
        max_position_embeddings=512,
    )
    return transformers.BertForMaskedLM(config).train()


def measure(shape: dict) -> dict:
    """Measures training: seconds of each step after the warm-up, and peak resident bytes of this process."""
    torch.manual_seed(0)
    baseline = peak_bytes()
    model = make_model(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    batches = masked_batches(shape, 8)
    seconds = []
    for step in range(shape['warmup_steps'] + shape['steps']):
        tokens, labels = batches[step % len(batches)]
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        seconds.append(time.perf_counter() - start)
    assert np.isfinite(loss)
    return {
        'name': f'transformers {transformers.__version__}, torch {torch.__version__}',
        'threads': torch.get_num_threads(),
        'parameters': sum(parameter.numel() for parameter in model.parameters()),
        'seconds': seconds[shape['warmup_steps'] :],
        'baseline_bytes': baseline,
        'peak_bytes': peak_bytes(),
    }


def peak_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes. Linux reports it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))

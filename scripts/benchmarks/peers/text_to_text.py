"""Measures training or generation of a Hugging Face encoder-decoder in PyTorch on the CPU.

This program runs in the environment of `make peers`; `scripts/benchmark.py` starts it with the shape as JSON. It
prints one JSON object. The peer gets its fastest settings: its default attention kernel, fused AdamW, no masks without
padding, inference mode, sources of similar length together.
"""

import gzip
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers

FIRST_WORD = 5  # ids below this id are special symbols


def measure(shape: dict) -> dict:
    """Takes the measurement that `shape['program']` names, such as 'train'; returns the measured values."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    baseline = peak_bytes()
    figures = PROGRAMS[shape['program']](shape)
    name = f'transformers {transformers.__version__}, torch {torch.__version__}'
    return figures | {'name': name, 'baseline_bytes': baseline, 'peak_bytes': peak_bytes()}


def measure_training(shape: dict) -> dict:
    """Measures training steps of Hugging Face's T5 on random token ids."""
    model, own = shape['model'], {}
    own['num_layers'], own['num_decoder_layers'] = model['layers'], model['decoder_layers']
    own |= {'d_model': model['width'], 'd_kv': model['head_width'], 'd_ff': model['feed_forward_width']}
    config = transformers.T5Config(
        vocab_size=model['vocab_size'], num_heads=model['heads'], dropout_rate=0.1, decoder_start_token_id=0, **own
    )
    module = transformers.T5ForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    batches = random_pairs(shape)

    def call(number: int) -> None:
        source, target = batches[number % len(batches)]
        loss = module(input_ids=source, labels=target).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert np.isfinite(loss.item())

    figures = time_calls(call, shape['calls'])
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return figures | {'units': shape['rows'] * (shape['source'] + shape['target']), 'parameters': parameters}


def random_pairs(shape: dict, count: int = 4) -> list[tuple[torch.Tensor, ...]]:
    """Returns batches of random source and target ids; this project and PyTorch get the same ids."""
    rng, words = np.random.default_rng(0), shape['model']['vocab_size']
    sizes = [(shape['rows'], shape[side]) for side in ('source', 'target')]
    pairs = [tuple(rng.integers(FIRST_WORD, words, size, np.int32) for size in sizes) for _ in range(count)]
    return [tuple(torch.from_numpy(side).long() for side in pair) for pair in pairs]


def measure_generation(shape: dict) -> dict:
    """Measures how fast a model from a folder generates texts of a fixed length from random sources."""
    module = transformers.AutoModelForSeq2SeqLM.from_pretrained(shape['folder'], dtype=torch.float32).eval()
    search = {'num_beams': shape['beams'], 'do_sample': False, 'max_new_tokens': shape['target']}
    # The model has no end symbol, so that every generated text has the full length.
    module.generation_config = transformers.GenerationConfig(decoder_start_token_id=0, pad_token_id=0, **search)
    sources = [source for source, _ in random_pairs(shape)]
    made: dict[int, list] = {}

    def call(number: int) -> None:
        with torch.inference_mode():
            found = module.generate(input_ids=sources[number % len(sources)])
        made[number % len(sources)] = found[:, 1:].tolist()

    figures = time_calls(call, shape['calls'])
    return figures | {'units': shape['rows'] * shape['target'], 'made': made[0]}


def measure_translation(shape: dict) -> dict:
    """Measures how fast a model from a folder translates all texts of a file, in batches of similar source length."""
    path = Path(shape['input'])
    with (gzip.open if path.suffix == '.gz' else open)(path, 'rt', encoding='utf-8') as file:
        texts = file.read().splitlines()
    module = transformers.AutoModelForSeq2SeqLM.from_pretrained(shape['folder'], dtype=torch.float32).eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(shape['folder'])
    search = {'num_beams': shape['beams'], 'do_sample': False, 'length_penalty': shape['alpha']}
    search['early_stopping'] = {'exact': 'never', 'early': False}[shape['stop']]
    made: list[str] = []

    def call(_: int) -> None:
        ids = [[*own, module.config.eos_token_id] for own in tokenizer(texts, add_special_tokens=False)['input_ids']]
        numbers = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        found = {}
        for first in range(0, len(numbers), shape['rows']):
            some = numbers[first : first + shape['rows']]
            batch = tokenizer.pad({'input_ids': [ids[number] for number in some]}, return_tensors='pt')
            most = batch['input_ids'].shape[1] + shape['extra']
            with torch.inference_mode():
                out = module.generate(**batch, **search, max_new_tokens=most)
            found |= zip(some, tokenizer.batch_decode(out, skip_special_tokens=True), strict=True)
        made[:] = [found[number] for number in range(len(found))]

    return time_calls(call, shape['calls']) | {'units': len(texts), 'made': made}


def time_calls(call: Callable[[int], None], calls: int) -> dict:
    """Calls a function repeatedly; returns the seconds and CPU seconds of each call after the first."""
    start = time.perf_counter()
    call(0)
    first, seconds, cpu_seconds = time.perf_counter() - start, [], []
    for number in range(1, calls + 1):
        start, cpu_start = time.perf_counter(), time.process_time()
        call(number)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return {'first_seconds': first, 'seconds': seconds, 'cpu_seconds': cpu_seconds}


def peak_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes. Linux reports it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


PROGRAMS = {'train': measure_training, 'generate': measure_generation, 'translate': measure_translation}


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))

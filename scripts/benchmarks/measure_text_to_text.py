"""One process, one measurement: an encoder-decoder of this project is trained, or writes texts.

`scripts/benchmark.py` starts it and gives the shape as one JSON object; it prints one JSON object.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.data.sources.text_files import read_lines
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.inference.search import Search
from efficient_attention.inference.transducer import Batching, Transducer
from efficient_attention.inference.translator import Decoding, open_translator
from efficient_attention.interop.config_fields import TEXT_TO_TEXT
from efficient_attention.interop.folder_out import save_pretrained
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.objectives.text_to_text import TextToText
from efficient_attention.training.optimizer import make_optimizer
from efficient_attention.training.state import initial_state
from efficient_attention.training.step import make_train_step

START = 0  # id of the start symbol
NO_END = -1
FIRST_WORD = 5  # ids below are symbols


def measure(shape: dict[str, Any]) -> dict[str, Any]:
    """The figures of one program; `shape['program']` is a name in `PROGRAMS`."""
    jax.devices()
    baseline = peak_bytes()
    figures = PROGRAMS[shape['program']](shape)
    name = f'efficient_attention, jax {jax.__version__}'
    return figures | {'name': name, 'baseline_bytes': baseline, 'peak_bytes': peak_bytes()}


def train(shape: dict[str, Any]) -> dict[str, Any]:
    """Training steps on random ids through this project's own step, layers without a scan."""
    config = ModelConfig(**shape['model'], scan_unroll=shape['model']['layers'])
    graph, params = nnx.split(EncoderDecoder(config, rngs=nnx.Rngs(0)))
    optimizer_config = OptimizerConfig(schedule='constant', warmup_steps=0, bias_correction=True, clip_norm=0.0)
    optimizer = make_optimizer(optimizer_config, total_steps=1000, stacked=None)
    state = initial_state(nnx.to_pure_dict(params), optimizer, seed=0)
    del params
    step = jax.jit(make_train_step(graph, TextToText(), optimizer), donate_argnums=0)
    batches = training_batches(shape)

    def call(number: int) -> None:
        nonlocal state
        state, metrics = step(state, batches[number % len(batches)])
        assert np.isfinite(float(metrics['loss']))
        jax.block_until_ready(state)

    figures = timed(call, shape['calls'])
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return figures | {'units': shape['rows'] * (shape['source'] + shape['target']), 'parameters': parameters}


def training_batches(shape: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """Batches of random ids, whole rows, the targets shifted by the start symbol."""
    batches = []
    for source_BM, target_BL in random_pairs(shape):
        tokens_BL = np.pad(target_BL[:, :-1], ((0, 0), (1, 0)), constant_values=START)
        segments = {'source_segments': np.ones_like(source_BM), 'segments': np.ones_like(tokens_BL)}
        weights_BL = np.ones(target_BL.shape, np.float32)
        arrays = {'source': source_BM, 'tokens': tokens_BL, 'targets': target_BL, 'weights': weights_BL}
        batches.append(arrays | segments)
    return batches


def random_pairs(shape: dict[str, Any], count: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids of words of sources and targets, int32, the same on both sides of the benchmark."""
    rng, words = np.random.default_rng(0), shape['model']['vocab_size']
    sizes = [(shape['rows'], shape[side]) for side in ('source', 'target')]
    return [tuple(rng.integers(FIRST_WORD, words, size, np.int32) for size in sizes) for _ in range(count)]


def generate(shape: dict[str, Any]) -> dict[str, Any]:
    """Texts of a given length from random sources, by the model of a Hugging Face folder."""
    pretrained = open_pretrained(Path(shape['folder']))
    module = pretrained_module(lambda rngs: EncoderDecoder(pretrained.model, rngs=rngs), pretrained)
    graph, state = nnx.split(module)
    search = Search(beams=shape['beams'], penalty='length', alpha=1.0, max_tokens=shape['target'], end=NO_END)
    batching = Batching(rows=shape['rows'], lengths=(shape['source'],), ratio=0.0, extra=shape['target'])
    transducer = Transducer(graph, nnx.to_pure_dict(state), search, prompt=[START], batching=batching)
    sources = [list(source_BM) for source_BM, _ in random_pairs(shape)]
    made: dict[int, list[list[int]]] = {}

    def call(number: int) -> None:
        found = transducer(sources[number % len(sources)])
        made[number % len(sources)] = [best[0].ids.tolist() for best in found]

    figures = timed(call, shape['calls'])
    return figures | {'units': shape['rows'] * shape['target'], 'made': made[0]}


def translate(shape: dict[str, Any]) -> dict[str, Any]:
    """All texts of a file by the model of a Hugging Face folder."""
    texts = [line for _, line in read_lines(Path(shape['input']))]
    fields = {'beams': shape['beams'], 'penalty': 'length', 'alpha': shape['alpha'], 'batch_size': shape['rows']}
    decoding = Decoding(**fields, ratio=1.0, extra=shape['extra'], stop=shape['stop'])
    translator = open_translator(Path(shape['folder']), decoding=decoding, prefix='')
    made: list[str] = []

    def call(_: int) -> None:
        made[:] = [best[0].text for best in translator(texts)]

    return timed(call, shape['calls']) | {'units': len(texts), 'made': made}


def timed(call: Callable[[int], None], calls: int) -> dict[str, Any]:
    """Seconds and CPU seconds of each call after the first, and the seconds of the first, which compiles."""
    start = time.perf_counter()
    call(0)
    first, seconds, cpu_seconds = time.perf_counter() - start, [], []
    for number in range(1, calls + 1):
        start, cpu_start = time.perf_counter(), time.process_time()
        call(number)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return {'first_seconds': first, 'seconds': seconds, 'cpu_seconds': cpu_seconds}


def write_model(shape: dict[str, Any]) -> dict[str, Any]:
    """Writes a Hugging Face folder: of the model in `run`, or of random parameters where a `model` is given."""
    if 'run' in shape:
        pretrained = open_pretrained(Path(shape['run']))
    else:
        config = ModelConfig(**shape['model'])
        state = nnx.split(EncoderDecoder(config, rngs=nnx.Rngs(0)))[1]
        params = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
        pretrained = Pretrained(config, HeadConfig(), (), TEXT_TO_TEXT, '', None, False, lambda: params)
    save_pretrained(Path(shape['folder']), pretrained)
    return {}


def peak_bytes() -> int:
    """The largest resident memory of this process so far; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


PROGRAMS = {'train': train, 'generate': generate, 'translate': translate, 'write': write_model}


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))

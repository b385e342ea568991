"""Measures training and generation of encoder-decoders, here and in PyTorch (`scripts/benchmark.py text_to_text`).

`train`: a step of T5-small with dropout and AdamW, on 16 pairs of 64 and 32 tokens. `greedy`: a text of 64 tokens from
one source of 64 tokens. `beam`: with 4 beams from 16 sources. Both parts use a T5-small of random parameters, which
both sides load from one Hugging Face folder. It has no end symbol, so every text has all its tokens. `translate`: beam
search on a file with the model of `--model`, exported to such a folder; the score is log-probability / length^alpha.

The peer is transformers, with its `generate` for generation. The search stops by transformers' default rule, or, with
`--stop exact`, by the rule that loses nothing; the rule is the same on both sides. Each measurement is a separate
process. The first call, in which ours compiles, is not counted. Ratios above 1 mean that ours is faster, by wall time
and by CPU time; CPU time is more reliable on a busy machine. The memory ratio is our peak over the peer's peak. `equal`
is the share of texts that are equal on both sides.
"""

import importlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_choices, define_model, define_path
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.data.sources.text_files import read_lines
from efficient_attention.errors import InputError
from efficient_attention.models.encoder_decoder_sizes import t5_fields
from scripts.benchmarks.process_measurements import peak_bytes

T5_SMALL = t5_fields('small')
# With embeddings of standard deviation 1, an untrained decoder would only repeat its input word.
WRITER = T5_SMALL | {'init_std': 0.1}
PARTS: dict[str, dict[str, Any]] = {
    'train': {'program': 'train', 'model': T5_SMALL, 'rows': 16, 'source': 64, 'target': 32},
    'greedy': {'program': 'generate', 'model': WRITER, 'rows': 1, 'source': 64, 'target': 64, 'beams': 1},
    'beam': {'program': 'generate', 'model': WRITER, 'rows': 16, 'source': 64, 'target': 64, 'beams': 4},
    'translate': {'program': 'translate'},
}
UNITS = {'train': 'tokens', 'greedy': 'tokens', 'beam': 'tokens', 'translate': 'texts'}
SIDES = ('ours', 'peer')
STOPS = ('exact', 'early')  # rules that end a beam search: values of `SearchSettings.stop`
PEER = str(Path(__file__).with_name('peers') / 'text_to_text.py')
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_choices('parts', tuple(PARTS), 'Parts to measure', options)
    define_model(options)  # only the part `translate` uses this flag
    define_path('input', 'Texts to translate, one per line, plain or .gz.', None, options)
    flags.DEFINE_integer('beams', 5, 'Beams of the part translate.', flag_values=options)
    flags.DEFINE_float('alpha', 1.0, 'Exponent of the length penalty, in the part translate.', flag_values=options)
    flags.DEFINE_enum('stop', 'early', STOPS, 'When a search ends, on both sides.', flag_values=options)
    flags.DEFINE_integer('rows', 32, 'Texts per batch, in the part translate.', flag_values=options)
    flags.DEFINE_integer('extra', 50, 'Most tokens that a target has more than its source.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side and part.', flag_values=options)
    flags.DEFINE_integer('calls', 5, 'Timed calls per process; one in the part translate.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a numeric flag is below 1, or if the part `translate` has no model or no texts."""
    for name in ('beams', 'rows', 'rounds', 'calls'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')
    if 'translate' not in options.parts:
        return
    for name in ('model', 'input'):
        path = options[name].value
        if path is None or not path.exists():
            said = f'--{name} {path}: there is no such path' if path else f'--parts translate needs --{name}'
            raise InputError(f'{said}; the other parts are train,greedy,beam')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each part of the benchmark. This project and PyTorch
    take turns.

    Args:
        options: the command-line flags.
        run: starts a child process that takes one measurement, and returns the measured values.
    """
    commands = {'ours': CHILD, 'peer': [str(options.peers_python), PEER]}
    report: dict[str, Any] = {'parts': {}}
    print_header()
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            shape = benchmark_shape(part, options, Path(folder) / part)
            if 'folder' in shape:
                run(CHILD, shape | {'program': 'write'})
            row = compare(shape, options.rounds, commands, run)
            report['parts'][part] = {name: shape[name] for name in shape if name != 'folder'} | row
            print(table_line(part, row, UNITS[part]))
            yield report


def benchmark_shape(part: str, options: flags.FlagValues, folder: Path) -> dict[str, Any]:
    """Returns the settings of one part, as input of the child processes.

    `folder` is the folder into which the model of a generating part will be written.
    """
    shape = PARTS[part] | {'calls': options.calls}
    if part == 'translate':
        given = {name: options[name].value for name in ('beams', 'alpha', 'stop', 'rows', 'extra')}
        shape |= given | {'run': str(options.model), 'input': str(options.input), 'calls': 1}
    return shape if part == 'train' else shape | {'folder': str(folder)}


def compare(shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run) -> dict[str, Any]:
    """Measures one part here and in PyTorch; returns speeds, memory, ratios, and the share of equal generated texts."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    for number in range(rounds):
        for side in commands if number % 2 == 0 else reversed(commands):
            runs[side].append(run(commands[side], shape))
    ratios: dict[str, list[float]] = {}
    for name in ('seconds', 'cpu_seconds'):
        times = {side: [statistics.median(one[name]) for one in found] for side, found in runs.items()}
        ratios[name] = [peer / ours for ours, peer in zip(times['ours'], times['peer'], strict=True)]
    made = [runs[side][0].pop('made', []) for side in commands]
    sides = {side: summary(found) for side, found in runs.items()}
    return sides | {
        'ratio': statistics.median(ratios['seconds']),
        'ratio_range': [min(ratios['seconds']), max(ratios['seconds'])],
        'cpu_ratio': statistics.median(ratios['cpu_seconds']),
        'memory': sides['ours']['peak_bytes'] / sides['peer']['peak_bytes'],
        'equal': statistics.mean(is_equal(one, other) for one, other in zip(*made, strict=True)) if made[0] else None,
    }


def is_equal(one: Any, other: Any) -> bool:
    """Returns whether two results are equal; log-probabilities may differ by 0.001."""
    return math.isclose(one, other, rel_tol=0, abs_tol=1e-3) if isinstance(one, float) else one == other


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines the measurements of several processes: tokens/s or texts/s of the median call in each process, and the
    medians of all other values.
    """
    rates = [one['units'] / statistics.median(one['seconds']) for one in runs]
    figures = {
        name: statistics.median(one[name] for one in runs) for name in ('first_seconds', 'baseline_bytes', 'peak_bytes')
    }
    figures |= {name: runs[0][name] for name in ('cache_bytes',) if name in runs[0]}
    return {'name': runs[0]['name'], 'units_per_second': statistics.median(rates), 'rates': rates} | figures


def print_header() -> None:
    """Prints the column titles of the table."""
    titles = f'{"ours, a second":>26} {"peer, a second":>26} {"ratio":>19} {"of CPU time":>12} {"of memory":>10}'
    print(f'{"part":>9} {titles}  equal')


def table_line(part: str, row: dict[str, Any], unit: str) -> str:
    """Returns the line of the printed table with the speeds and ratios of one part."""
    cells = []
    for side in SIDES:
        own = row[side]
        cells.append(f'{own["units_per_second"]:,.1f} ({min(own["rates"]):,.1f} to {max(own["rates"]):,.1f})')
    low, high = row['ratio_range']
    ratio = f'{row["ratio"]:.2f} ({low:.2f} to {high:.2f})'
    equal = '' if row['equal'] is None else f'{row["equal"]:.3f}'
    ratios = f'{ratio:>19} {row["cpu_ratio"]:>12.2f} {row["memory"]:>10.2f}'
    return f'{part:>9} {cells[0]:>26} {cells[1]:>26} {ratios}  {equal} {unit}'


# ---- The functions below take one measurement, in a separate process. ----


START = 0  # id of the start symbol
NO_END = -1
FIRST_WORD = 5  # ids below this id are special symbols


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Takes the measurement that `shape['program']` names, such as 'train'; returns the measured values."""
    import jax

    for name in ('inference.translator', 'interop.huggingface_export', 'objectives.text_to_text', 'training.step'):
        # Modules are imported before the baseline of memory is measured, so that the baseline includes them.
        importlib.import_module(f'efficient_attention.{name}')
    jax.devices()
    baseline = peak_bytes()
    figures = PROGRAMS[shape['program']](shape)
    name = f'efficient_attention, jax {jax.__version__}'
    return figures | {'name': name, 'baseline_bytes': baseline, 'peak_bytes': peak_bytes()}


def measure_training(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures this project's training step of a T5 with unrolled layers, on random token ids."""
    import jax
    from flax import nnx

    from efficient_attention.config.model import ModelConfig
    from efficient_attention.models.encoder_decoder import EncoderDecoder
    from efficient_attention.objectives.text_to_text import TextToText
    from efficient_attention.training.optimizer import make_optimizer
    from efficient_attention.training.state import initial_state
    from efficient_attention.training.step import make_train_step

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

    figures = time_calls(call, shape['calls'])
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return figures | {'units': shape['rows'] * (shape['source'] + shape['target']), 'parameters': parameters}


def training_batches(shape: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """Returns training batches of random token ids; decoder inputs are the targets, shifted by a start symbol."""
    batches = []
    for source_BM, target_BL in random_pairs(shape):
        tokens_BL = np.pad(target_BL[:, :-1], ((0, 0), (1, 0)), constant_values=START)
        segments = {'source_segments': np.ones_like(source_BM), 'segments': np.ones_like(tokens_BL)}
        weights_BL = np.ones(target_BL.shape, np.float32)
        arrays = {'source': source_BM, 'tokens': tokens_BL, 'targets': target_BL, 'weights': weights_BL}
        batches.append(arrays | segments)
    return batches


def random_pairs(shape: dict[str, Any], count: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns batches of random source and target ids, int32; this project and PyTorch get the same ids."""
    rng, words = np.random.default_rng(0), shape['model']['vocab_size']
    sizes = [(shape['rows'], shape[side]) for side in ('source', 'target')]
    return [tuple(rng.integers(FIRST_WORD, words, size, np.int32) for size in sizes) for _ in range(count)]


def measure_generation(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures how fast a model from a Hugging Face folder generates texts of a fixed length from random sources."""
    from flax import nnx

    from efficient_attention.inference.pretrained_models import pretrained_module
    from efficient_attention.inference.search_settings import SearchSettings
    from efficient_attention.inference.seq2seq_generator import Seq2SeqGenerator, SourceBatching
    from efficient_attention.interop.pretrained import open_pretrained
    from efficient_attention.models.encoder_decoder import EncoderDecoder

    pretrained = open_pretrained(Path(shape['folder']))
    module = pretrained_module(lambda rngs: EncoderDecoder(pretrained.model, rngs=rngs), pretrained)
    graph, state = nnx.split(module)
    search = SearchSettings(beams=shape['beams'], penalty='length', alpha=1.0, max_tokens=shape['target'], end=NO_END)
    batching = SourceBatching(rows=shape['rows'], lengths=(shape['source'],), ratio=0.0, extra=shape['target'])
    transducer = Seq2SeqGenerator(graph, nnx.to_pure_dict(state), search, prompt=[START], batching=batching)
    sources = [list(source_BM) for source_BM, _ in random_pairs(shape)]
    made: dict[int, list[list[int]]] = {}

    def call(number: int) -> None:
        found = transducer(sources[number % len(sources)])
        made[number % len(sources)] = [best[0].ids.tolist() for best in found]

    figures = time_calls(call, shape['calls'])
    return figures | {'units': shape['rows'] * shape['target'], 'made': made[0]}


def measure_translation(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures how fast a model from a Hugging Face folder translates all texts of a file."""
    from efficient_attention.inference.translator import DecodingOptions, open_translator

    texts = [line for _, line in read_lines(Path(shape['input']))]
    fields = {'beams': shape['beams'], 'penalty': 'length', 'alpha': shape['alpha'], 'batch_size': shape['rows']}
    decoding = DecodingOptions(**fields, ratio=1.0, extra=shape['extra'], stop=shape['stop'])
    translator = open_translator(Path(shape['folder']), decoding=decoding, prefix='')
    made: list[str] = []

    def call(_: int) -> None:
        made[:] = [best[0].text for best in translator(texts)]

    return time_calls(call, shape['calls']) | {'units': len(texts), 'made': made}


def time_calls(call: Callable[[int], None], calls: int) -> dict[str, Any]:
    """Calls a function repeatedly; returns seconds and CPU seconds, separately for the first call and for each later
    call.

    The first call includes compilation.
    """
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
    """Writes the model to measure into a Hugging Face folder: a trained model, or a random model.

    `shape` has `run`, the folder of the trained model, or `model`, the config of the random model.
    """
    import jax
    from flax import nnx

    from efficient_attention.config.head import HeadConfig
    from efficient_attention.config.model import ModelConfig
    from efficient_attention.interop.config_json_keys import TEXT_TO_TEXT
    from efficient_attention.interop.huggingface_export import save_pretrained
    from efficient_attention.interop.pretrained import Pretrained, open_pretrained
    from efficient_attention.models.encoder_decoder import EncoderDecoder

    if 'run' in shape:
        pretrained = open_pretrained(Path(shape['run']))
    else:
        config = ModelConfig(**shape['model'])
        state = nnx.split(EncoderDecoder(config, rngs=nnx.Rngs(0)))[1]
        params = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
        pretrained = Pretrained(config, HeadConfig(), (), TEXT_TO_TEXT, '', None, False, lambda: params)
    save_pretrained(Path(shape['folder']), pretrained)
    return {}


PROGRAMS = {
    'train': measure_training,
    'generate': measure_generation,
    'translate': measure_translation,
    'write': write_model,
}


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))

"""`scripts/benchmark.py text_to_text`: an encoder-decoder trained and used, ours and PyTorch's.

`train`: a step of T5-small, dropout at its places, AdamW, 16 pairs of 64 and 32 tokens. `greedy`: texts of 64 tokens
from one source of 64, `beam`: with 4 beams from 16 sources; by a T5-small of random parameters that both sides read
from one Hugging Face folder, without an end symbol, so that every text has all its tokens. `translate`: a file by the
model of `--model`, which is exported to such a folder, by beam search with the score log-probability / length^alpha.

The peer is transformers, `generate` where it writes. A file is searched by its default rule of when a text is done, or
with `--stop exact` by the one that loses nothing, on both sides. Every measurement is a process of its own, and the
first call, in which ours compiles, is not among those whose median counts. Ratios above 1 mean that ours is faster, by
the time that passed and by the CPU time, which on a busy machine says more. That of memory is ours over the peer's,
both at their largest. `equal` is the share of texts that are the same on both sides.
"""

import importlib
import json
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
from efficient_attention.models.text_to_text_sizes import t5_fields
from scripts.benchmarks.process import peak_bytes

T5_SMALL = t5_fields('small')
# With words of deviation 1 a decoder of random layers repeats the word that it reads.
WRITER = T5_SMALL | {'init_std': 0.1}
PARTS: dict[str, dict[str, Any]] = {
    'train': {'program': 'train', 'model': T5_SMALL, 'rows': 16, 'source': 64, 'target': 32},
    'greedy': {'program': 'generate', 'model': WRITER, 'rows': 1, 'source': 64, 'target': 64, 'beams': 1},
    'beam': {'program': 'generate', 'model': WRITER, 'rows': 16, 'source': 64, 'target': 64, 'beams': 4},
    'translate': {'program': 'translate'},
}
UNITS = {'train': 'tokens', 'greedy': 'tokens', 'beam': 'tokens', 'translate': 'texts'}
SIDES = ('ours', 'peer')
STOPS = ('exact', 'early')  # of `Search`
PEER = str(Path(__file__).with_name('peers') / 'text_to_text.py')
Run = Callable[[list[str], dict[str, Any]], dict[str, Any]]
CHILD = [sys.executable, __file__]  # measures a shape, in a process of its own


def define_flags(options: flags.FlagValues) -> None:
    """The flags of the command."""
    define_choices('parts', tuple(PARTS), 'What is measured', options)
    define_model(options)  # for the part translate
    define_path('input', 'Texts to translate, one a line, plain or .gz.', None, options)
    flags.DEFINE_integer('beams', 5, 'Of the part translate.', flag_values=options)
    flags.DEFINE_float('alpha', 1.0, 'Of the length penalty of the part translate.', flag_values=options)
    flags.DEFINE_enum('stop', 'early', STOPS, 'When a search ends, on both sides.', flag_values=options)
    flags.DEFINE_integer('rows', 32, 'Texts of a batch of the part translate.', flag_values=options)
    flags.DEFINE_integer('extra', 50, 'Most tokens of a target beyond those of its source.', flag_values=options)
    flags.DEFINE_integer('rounds', 3, 'Processes of each side and part.', flag_values=options)
    flags.DEFINE_integer('calls', 5, 'Timed calls a process; of the part translate one.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError where a number cannot be, or the part translate lacks its model or its texts."""
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
    """Both sides, taking turns, for each part; after each, the figures so far.

    Args:
        options: of the command line.
        run: what a program prints for a shape.
    """
    commands = {'ours': CHILD, 'peer': [str(options.peers_python), PEER]}
    report: dict[str, Any] = {'parts': {}}
    titles = f'{"ours, a second":>26} {"peer, a second":>26} {"ratio":>19} {"of CPU time":>12} {"of memory":>10}'
    print(f'{"part":>9} {titles}  equal')
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            shape = shape_of(part, options, Path(folder) / part)
            if 'folder' in shape:
                run(CHILD, shape | {'program': 'write'})
            row = compare(shape, options.rounds, commands, run)
            report['parts'][part] = {name: shape[name] for name in shape if name != 'folder'} | row
            print(line_of(part, row))
            yield report


def shape_of(part: str, options: flags.FlagValues, folder: Path) -> dict[str, Any]:
    """What the programs get; `folder` is where the model of a part that writes is to be."""
    shape = PARTS[part] | {'calls': options.calls}
    if part == 'translate':
        given = {name: options[name].value for name in ('beams', 'alpha', 'stop', 'rows', 'extra')}
        shape |= given | {'run': str(options.model), 'input': str(options.input), 'calls': 1}
    return shape if part == 'train' else shape | {'folder': str(folder)}


def compare(shape: dict[str, Any], rounds: int, commands: dict[str, list[str]], run: Run) -> dict[str, Any]:
    """The figures of each side, their ratios, those of times by round, and the share of equal texts."""
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
        'equal': statistics.mean(one == other for one, other in zip(*made, strict=True)) if made[0] else None,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Units/s of the median call of each process, the median of them, and medians of the other figures."""
    rates = [one['units'] / statistics.median(one['seconds']) for one in runs]
    figures = {
        name: statistics.median(one[name] for one in runs) for name in ('first_seconds', 'baseline_bytes', 'peak_bytes')
    }
    return {'name': runs[0]['name'], 'units_per_second': statistics.median(rates), 'rates': rates} | figures


def line_of(part: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = []
    for side in SIDES:
        own = row[side]
        cells.append(f'{own["units_per_second"]:,.1f} ({min(own["rates"]):,.1f} to {max(own["rates"]):,.1f})')
    low, high = row['ratio_range']
    ratio = f'{row["ratio"]:.2f} ({low:.2f} to {high:.2f})'
    equal = '' if row['equal'] is None else f'{row["equal"]:.3f}'
    ratios = f'{ratio:>19} {row["cpu_ratio"]:>12.2f} {row["memory"]:>10.2f}'
    return f'{part:>9} {cells[0]:>26} {cells[1]:>26} {ratios}  {equal} {UNITS[part]}'


# ---- one measurement, in a process of its own ----


START = 0  # id of the start symbol
NO_END = -1
FIRST_WORD = 5  # ids below are symbols


def measure_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """The figures of one program; `shape['program']` is a name in `PROGRAMS`."""
    import jax

    for name in ('inference.translator', 'interop.folder_out', 'objectives.text_to_text', 'training.step'):
        importlib.import_module(f'efficient_attention.{name}')  # the baseline holds the program, too
    jax.devices()
    baseline = peak_bytes()
    figures = PROGRAMS[shape['program']](shape)
    name = f'efficient_attention, jax {jax.__version__}'
    return figures | {'name': name, 'baseline_bytes': baseline, 'peak_bytes': peak_bytes()}


def train(shape: dict[str, Any]) -> dict[str, Any]:
    """Training steps on random ids through this project's own step, layers without a scan."""
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
    from flax import nnx

    from efficient_attention.inference.pretrained_models import pretrained_module
    from efficient_attention.inference.search import Search
    from efficient_attention.inference.transducer import Batching, Transducer
    from efficient_attention.interop.pretrained import open_pretrained
    from efficient_attention.models.encoder_decoder import EncoderDecoder

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
    from efficient_attention.inference.translator import Decoding, open_translator

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
    import jax
    from flax import nnx

    from efficient_attention.config.head import HeadConfig
    from efficient_attention.config.model import ModelConfig
    from efficient_attention.interop.config_fields import TEXT_TO_TEXT
    from efficient_attention.interop.folder_out import save_pretrained
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


PROGRAMS = {'train': train, 'generate': generate, 'translate': translate, 'write': write_model}


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[1]))))

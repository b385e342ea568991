"""Measures scoring and generation with GPT-2 small, here and in PyTorch (`scripts/benchmark.py gpt2`).

`choices`: log-probabilities of four options of 16 tokens after one context of 256, against lm-evaluation-harness with
transformers. `shared`: the same against our own full pass for each option, so that the gain from reading the context
once can be told from the gain over the harness. `generate`: 64 greedy tokens after one prompt of 64, against
transformers' `generate`. All sides load the same random weights from one Hugging Face folder, and read the same random
tokens. Each measurement is a separate process, and the first call, in which ours compiles, is not counted. Ratios above
1 mean that the first side is faster; the memory ratio is its peak over the other's. `equal` is the share of
log-probabilities within 0.001 of the other side's, or of equal texts. `cache_bytes` is the size of the keys and values
that are kept, for all options or the one text.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from efficient_attention.commands.flags import define_choices
from efficient_attention.errors import InputError
from efficient_attention.models.decoder_sizes import gpt2_fields
from scripts.benchmarks.process_measurements import peak_bytes
from scripts.benchmarks.text_to_text import Run, compare, print_header, table_line, time_calls

if TYPE_CHECKING:  # at run time, only the child process imports these
    from efficient_attention.config.model import ModelConfig
    from efficient_attention.inference.language_models import LanguageModel

# With this standard deviation of weights, a random model does not repeat one token.
MODEL = gpt2_fields('small') | {'init_std': 0.1}
CHOICES = {'program': 'choices', 'context': 256, 'options': 4, 'option': 16, 'unit': 'option tokens'}
PARTS: dict[str, dict[str, Any]] = {
    'choices': CHOICES,
    'shared': CHOICES,
    'generate': {'program': 'generate', 'context': 64, 'made': 64, 'unit': 'tokens'},
}
PEER = str(Path(__file__).with_name('peers') / 'gpt2.py')
CHILD = [sys.executable, __file__]  # command of the child process that takes one measurement
FULL_PASSES = '--full_passes'  # argument of a child process that reads the context with each option
INPUTS = 4  # different random inputs, used in turn by the calls


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_choices('parts', tuple(PARTS), 'Parts to measure', options)
    flags.DEFINE_integer('rounds', 3, 'Processes per side and part.', flag_values=options)
    flags.DEFINE_integer('calls', 5, 'Timed calls per process.', flag_values=options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a numeric flag is below 1."""
    for name in ('rounds', 'calls'):
        if options[name].value < 1:
            raise InputError(f'--{name} is {options[name].value}; it must be at least 1')


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Yields the report of all measurements so far, once after each part; the two sides take turns."""
    peers = dict.fromkeys(PARTS, [str(options.peers_python), PEER]) | {'shared': [*CHILD, FULL_PASSES]}
    report: dict[str, Any] = {'model': MODEL, 'parts': {}}
    print_header()
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(Path(temporary) / 'model')
        run(CHILD, {'program': 'write', 'model': MODEL, 'folder': folder})
        for part in options.parts:
            shape = PARTS[part] | {'calls': options.calls}
            commands = {'ours': CHILD, 'peer': peers[part]}
            row = compare(shape | {'folder': folder}, options.rounds, commands, run)
            report['parts'][part] = shape | row
            print(table_line(part, row, shape['unit']))
            if row['equal'] < 1:
                print(f'note: {part}: the results of the two sides differ')
            yield report


# ---- The functions below take one measurement, in a separate process. ----


def measure_shape(shape: dict[str, Any], *, shares_contexts: bool = True) -> dict[str, Any]:
    """Takes the measurement that `shape['program']` names; returns the measured values."""
    import jax

    from efficient_attention.inference import generate  # noqa: F401, imported before memory is measured
    from efficient_attention.scoring import decoder_scorer  # noqa: F401

    jax.devices()
    baseline = peak_bytes()
    figures = PROGRAMS[shape['program']](shape if shares_contexts else shape | {'shares_contexts': False})
    name = f'efficient_attention, jax {jax.__version__}'
    return figures | {'name': name, 'baseline_bytes': baseline, 'peak_bytes': peak_bytes()}


def write_model(shape: dict[str, Any]) -> dict[str, Any]:
    """Writes a random GPT-2 into a Hugging Face folder without a tokenizer."""
    import jax
    from flax import nnx

    from efficient_attention.config.head import HeadConfig
    from efficient_attention.config.model import ModelConfig
    from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING
    from efficient_attention.interop.huggingface_export import save_pretrained
    from efficient_attention.interop.pretrained import Pretrained
    from efficient_attention.models.decoder import Decoder

    config = ModelConfig(**shape['model'])
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(Decoder(config, rngs=nnx.Rngs(0)))))
    pretrained = Pretrained(config, HeadConfig(), (), LANGUAGE_MODELLING, '', None, False, lambda: {'decoder': params})
    save_pretrained(Path(shape['folder']), pretrained)
    return {}


def open_folder(folder: str) -> 'LanguageModel':
    """Returns the GPT-2 of a folder without a tokenizer; `ByteUnits` only fills a field."""
    from flax import nnx

    from efficient_attention.data.text.text_units import ByteUnits
    from efficient_attention.inference.language_models import LanguageModel
    from efficient_attention.inference.pretrained_models import pretrained_decoder
    from efficient_attention.interop.pretrained import open_pretrained

    pretrained = open_pretrained(Path(folder))
    graph, state = nnx.split(pretrained_decoder(pretrained))
    return LanguageModel(pretrained.model, ByteUnits(), graph, nnx.to_pure_dict(state))


def measure_choices(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures how fast the options after one context are scored."""
    from efficient_attention.scoring.decoder_scorer import DecoderScorer
    from efficient_attention.scoring.pairs import PairTokens

    opened, shares = open_folder(shape['folder']), shape.get('shares_contexts', True)
    scorer = DecoderScorer(opened, batch_size=shape['options'], shares_contexts=shares)
    questions = random_questions(shape)
    made: dict[int, list[float]] = {}

    def call(number: int) -> None:
        context, *options = questions[number % INPUTS]
        scores = scorer.score_tokens([PairTokens(tuple(context), tuple(option)) for option in options])
        made[number % INPUTS] = [log_prob for log_prob, _ in scores]

    figures = time_calls(call, shape['calls'])
    kept = cache_bytes(opened.config, shape['options'], shape['context'] + shape['option']) if shares else 0
    scores = [score for number in sorted(made) for score in made[number]]
    return figures | {'units': shape['options'] * shape['option'], 'made': scores, 'cache_bytes': kept}


def measure_generation(shape: dict[str, Any]) -> dict[str, Any]:
    """Measures how fast one text is continued greedily, in parts of `STREAMED` tokens as `scripts/generate.py` does."""
    import jax.numpy as jnp

    from efficient_attention.inference.generate import STREAMED, generate_tokens_jitted, read_prompt_jitted
    from efficient_attention.inference.sampling import Sampling, SamplingInputs

    opened, prompts = open_folder(shape['folder']), random_prompts(shape)
    max_length = shape['context'] + shape['made']
    draw = SamplingInputs(jnp.int32(0), jnp.ones(opened.config.vocab_size, bool))
    greedy = Sampling(temperature=0.0)
    made: dict[int, list[int]] = {}

    def call(number: int) -> None:
        tokens_1L = jnp.asarray([prompts[number % INPUTS]], jnp.int32)
        text = read_prompt_jitted(opened.graph, opened.params, tokens_1L, max_length=max_length)
        ids: list[int] = []
        for first in range(0, shape['made'], STREAMED):
            count = min(STREAMED, shape['made'] - first)
            made_1n, text = generate_tokens_jitted(
                opened.graph, opened.params, text, jnp.int32(count), draw, sampling=greedy, max_length=max_length
            )
            ids += np.asarray(made_1n)[0, :count].tolist()
        made[number % INPUTS] = ids

    figures, kept = time_calls(call, shape['calls']), cache_bytes(opened.config, 1, max_length)
    texts = [made[number] for number in sorted(made)]
    return figures | {'units': shape['made'], 'made': texts, 'cache_bytes': kept}


def cache_bytes(config: 'ModelConfig', rows: int, length: int) -> int:
    """Returns the bytes of the cached keys and values of `rows` texts of `length` tokens."""
    import jax

    from efficient_attention.attention.cache import init_cache
    from efficient_attention.models.cached_decoding import cache_specs

    caches = jax.eval_shape(
        lambda: [init_cache(spec, rows, config.compute_dtype) for spec in cache_specs(config, length)]
    )
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(caches))


def random_questions(shape: dict[str, Any]) -> list[list[list[int]]]:
    """Returns inputs of random ids: a context and its options; this project and PyTorch get the same ids."""
    rng = np.random.default_rng(0)
    lengths = (shape['context'], *[shape['option']] * shape['options'])
    return [[rng.integers(0, MODEL['vocab_size'], length).tolist() for length in lengths] for _ in range(INPUTS)]


def random_prompts(shape: dict[str, Any]) -> list[list[int]]:
    """Returns prompts of random ids; this project and PyTorch get the same ids."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, MODEL['vocab_size'], shape['context']).tolist() for _ in range(INPUTS)]


PROGRAMS = {'choices': measure_choices, 'generate': measure_generation, 'write': write_model}


if __name__ == '__main__':
    print(json.dumps(measure_shape(json.loads(sys.argv[-1]), shares_contexts=FULL_PASSES not in sys.argv)))

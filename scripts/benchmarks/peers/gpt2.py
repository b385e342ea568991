"""Measures scoring with lm-evaluation-harness and generation with transformers, of a GPT-2 in PyTorch on the CPU.

This program runs in the environment of `make peers`; `scripts/benchmark.py` starts it with the settings (`shape`) as
JSON. It prints one JSON object. The harness scores the four options of a question as one batch.
"""

import importlib.metadata
import json
import sys

import numpy as np
import tokenizers
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from text_to_text import peak_bytes, time_calls

INPUTS = 4  # different random inputs, used in turn by the calls


def measure(shape: dict) -> dict:
    """Takes the measurement that `shape['program']` names; returns the measured values."""
    transformers.logging.set_verbosity_error()
    baseline = peak_bytes()
    module = transformers.AutoModelForCausalLM.from_pretrained(shape['folder'], dtype=torch.float32).eval()
    figures = PROGRAMS[shape['program']](shape, module)
    name = f'transformers {transformers.__version__}, torch {torch.__version__}'
    name += f', lm-eval {importlib.metadata.version("lm-eval")}'
    return figures | {'name': name, 'baseline_bytes': baseline, 'peak_bytes': peak_bytes()}


def measure_choices(shape: dict, module: torch.nn.Module) -> dict:
    """Measures how fast the harness scores the options after one context."""
    # The tokenizer is not used: the harness gets token ids.
    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=empty, eos_token='</s>', pad_token='</s>')
    scorer = HFLM(module, tokenizer=tokenizer, batch_size=shape['options'], max_length=1024, device='cpu')
    rng = np.random.default_rng(0)
    lengths = (shape['context'], *[shape['option']] * shape['options'])
    words = module.config.vocab_size
    questions = [[rng.integers(0, words, length).tolist() for length in lengths] for _ in range(INPUTS)]
    made: dict[int, list] = {}

    def call(number: int) -> None:
        context, *options = questions[number % INPUTS]
        requests = [(('', str(place)), context, option) for place, option in enumerate(options)]
        found = scorer._loglikelihood_tokens(requests, disable_tqdm=True)
        made[number % INPUTS] = [log_prob for log_prob, _ in found]

    return time_calls(call, shape['calls']) | {
        'units': shape['options'] * shape['option'],
        'made': sum((made[one] for one in sorted(made)), []),
    }


def measure_generation(shape: dict, module: torch.nn.Module) -> dict:
    """Measures how fast transformers' `generate` continues one text greedily."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, module.config.vocab_size, shape['context']) for _ in range(INPUTS)]
    # Without an end symbol, every generated text has the full length.
    module.generation_config = transformers.GenerationConfig(
        pad_token_id=0, do_sample=False, max_new_tokens=shape['made']
    )
    made: dict[int, list] = {}

    def call(number: int) -> None:
        ids = torch.from_numpy(prompts[number % INPUTS])[None]
        with torch.inference_mode():
            found = module.generate(input_ids=ids, attention_mask=torch.ones_like(ids))
        made[number % INPUTS] = found[0, shape['context'] :].tolist()

    return time_calls(call, shape['calls']) | {'units': shape['made'], 'made': [made[one] for one in sorted(made)]}


PROGRAMS = {'choices': measure_choices, 'generate': measure_generation}


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))

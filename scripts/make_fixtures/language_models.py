"""Writes small random GPT-2 folders and their outputs, which the tests in tests/interop compare with.

Run it by hand in an environment with transformers: .venv-peers/bin/python scripts/make_fixtures/language_models.py.
Each folder gets the output of `save_pretrained` for a random model, and `inputs_and_outputs.safetensors`: the logits
and attention weights of a padded batch, computed in double precision, and 50 tokens of greedy `generate` after each of
two prompts.
"""

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

FIXTURES = Path(__file__).resolve().parents[2] / 'tests' / 'interop' / 'language_models'
LENGTHS, PROMPT, NEW_TOKENS = (13, 7), 5, 50
DRAWS = 1000  # maximum number of random models to try
FEWEST_TOKENS, MARGIN = 12, 1e-2  # different greedy tokens per text; distance of the best logit from the second best
GPT2 = {'vocab_size': 61, 'n_embd': 18, 'n_head': 3, 'n_layer': 3, 'n_positions': 57, 'resid_pdrop': 0.0}
GPT2 |= {'embd_pdrop': 0.0, 'attn_pdrop': 0.0, 'bos_token_id': 60, 'eos_token_id': 60}
OTHER = GPT2 | {'n_inner': 29, 'n_layer': 2, 'n_head': 2, 'activation_function': 'relu', 'scale_attn_weights': False}
OTHER |= {'layer_norm_epsilon': 1e-3}

# This maps the name of a folder to its config, and whether its tensors have the prefix `transformer.`.
MODELS: dict[str, tuple[dict[str, Any], bool]] = {'gpt2_1': (GPT2, True), 'gpt2_2': (OTHER, False)}


def main() -> None:
    """Writes all folders."""
    torch.set_num_threads(1)
    for seed, (name, (fields, has_prefix)) in enumerate(MODELS.items()):
        write_fixture(FIXTURES / name, fields, has_prefix, seed=seed)


def write_fixture(folder: Path, fields: dict[str, Any], has_prefix: bool, *, seed: int) -> None:
    """Writes one folder with a random model, its inputs and its outputs."""
    config = transformers.GPT2Config(**fields)
    for draw in range(DRAWS):
        torch.manual_seed(DRAWS * seed + draw)
        model = randomise_parameters(transformers.GPT2LMHeadModel._from_config(config, attn_implementation='eager'))
        prompts = torch.randint(0, config.vocab_size - 1, (2, PROMPT))
        greedy, margin = greedy_tokens(model, prompts)
        if margin > MARGIN and min(len(set(row)) for row in greedy[:, PROMPT:].tolist()) >= FEWEST_TOKENS:
            break
    else:
        raise SystemExit(f'{folder.name}: none of {DRAWS} models writes varied texts')
    shutil.rmtree(folder, ignore_errors=True)
    (model if has_prefix else model.transformer).save_pretrained(folder)
    tokens = torch.randint(0, config.vocab_size, (len(LENGTHS), max(LENGTHS)))
    mask = torch.tensor([[int(place < length) for place in range(max(LENGTHS))] for length in LENGTHS])
    with torch.no_grad():
        found = copy.deepcopy(model).double()(input_ids=tokens, attention_mask=mask, output_attentions=True)
    arrays = {
        'input/input_ids': tokens.int(),
        'input/attention_mask': mask.int(),
        'output/logits': found.logits.float(),
    }
    arrays |= {'prompt': prompts.int(), 'output/greedy': greedy.int()}
    arrays |= {f'output/attentions/{layer}': weights.float() for layer, weights in enumerate(found.attentions)}
    save_file({name: value.contiguous() for name, value in arrays.items()}, folder / 'inputs_and_outputs.safetensors')
    print(f'{folder.name}: draw {draw}, margin {margin:.4f}', greedy.tolist())


def randomise_parameters(model: Any) -> Any:
    """Sets every parameter of a model to random values, so that every parameter has an effect; returns the model."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.3)
        parameter.data = (1.0 + noise) if parameter.ndim == 1 and name.endswith('weight') else noise
    return model.eval()


def greedy_tokens(model: Any, prompts: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Returns prompts with their greedy continuations, and the smallest distance between the best two logits."""
    options = {'max_new_tokens': NEW_TOKENS, 'min_new_tokens': NEW_TOKENS, 'do_sample': False}
    options |= {'pad_token_id': model.config.eos_token_id, 'attention_mask': torch.ones_like(prompts)}
    with torch.no_grad():
        found = model.generate(prompts, **options, output_logits=True, return_dict_in_generate=True)
    logits = torch.stack(found.logits)
    logits[..., model.config.eos_token_id] = -torch.inf  # `min_new_tokens` forbids the end
    best = logits.topk(2).values
    return found.sequences, float((best[..., 0] - best[..., 1]).min())


if __name__ == '__main__':
    main()

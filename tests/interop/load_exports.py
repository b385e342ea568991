"""Loads exported folders in transformers and prints the differences of outputs; needs transformers installed.

python tests/interop/load_exports.py FOLDER ... ; each holds an exported checkpoint and, as `inputs_and_outputs` and
`ending`, what transformers computed before. The last line is a JSON object: folder -> largest difference.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

END = 60  # end-of-text id of the language models


def difference(folder: Path) -> float:
    """Returns the largest difference of any output on non-padding positions; raises an error if tensors do not fit."""
    ending = (folder / 'ending').read_text()
    arrays = load_file(folder / 'inputs_and_outputs.safetensors')
    name = json.loads((folder / 'config.json').read_text())['architectures'][0]
    more = {}
    if (folder / 'as_floats').exists():  # Loads integer codes as floats.
        more = {'quantization_config': transformers.CompressedTensorsConfig(dequantize=True)}
    model, found = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, **more)
    # Some BigBird classes have a pooler that they do not use.
    missing = [own for own in found['missing_keys'] if 'pooler' not in own]
    if missing or found['mismatched_keys']:
        raise ValueError(f'{folder}: {found}')
    if 'output/greedy' in arrays:
        return language_model_difference(model.eval(), arrays)
    if 'input/decoder_input_ids' in arrays:
        return text_to_text_difference(model.eval(), arrays)
    inputs = {own.removeprefix('input/'): value.long() for own, value in arrays.items() if own.startswith('input/')}
    if ending == 'ForMultipleChoice':
        inputs = {own: value[None] for own, value in inputs.items()}
    model.eval()
    with torch.no_grad():
        outputs = {'hidden': 'last_hidden_state'} if ending == 'Model' else {}
        given = dict(model(**inputs, return_dict=True))
    worst = 0.0
    for own, theirs in arrays.items():
        if not own.startswith('output/hidden' if ending == 'Model' else f'output/{ending}/'):
            continue
        ours = given[outputs.get('hidden', own.rpartition('/')[2])]
        ours = ours[0] if ending == 'ForMultipleChoice' else ours
        ours = ours[:, : theirs.shape[1]] if theirs.ndim > 1 else ours
        mask = arrays['input/attention_mask'] == 1
        if theirs.ndim > 1 and theirs.shape[1] in (6, mask.shape[1]):
            mask = mask[:, : theirs.shape[1]]
            ours, theirs = ours[mask], theirs[mask]
        worst = max(worst, float((ours.float() - theirs).abs().max()))
    return worst


def language_model_difference(model: torch.nn.Module, arrays: dict[str, torch.Tensor]) -> float:
    """Returns a decoder's largest difference in logits; infinity if greedy ids differ."""
    mask, prompts, expected = arrays['input/attention_mask'], arrays['prompt'].long(), arrays['output/greedy']
    most = expected.shape[1] - prompts.shape[1]
    end = {'eos_token_id': END, 'pad_token_id': END, 'min_new_tokens': most}
    with torch.no_grad():
        logits = model(input_ids=arrays['input/input_ids'].long(), attention_mask=mask.long()).logits
        found = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=most, **end
        )
    if not torch.equal(found.int(), expected):
        return float('inf')
    return float((logits - arrays['output/logits'])[mask == 1].abs().max())


def text_to_text_difference(model: torch.nn.Module, arrays: dict[str, torch.Tensor]) -> float:
    """Returns an encoder-decoder's largest difference in hidden states and logits; infinity if generated ids differ."""
    inputs = {own.removeprefix('input/'): value.long() for own, value in arrays.items() if own.startswith('input/')}
    source = {own: arrays[f'source/{own}'].long() for own in ('input_ids', 'attention_mask')}
    with torch.no_grad():
        found = model(**inputs, return_dict=True)
        length = arrays['output/beam'].shape[1] - 1
        beam = model.generate(**source, max_new_tokens=length, num_beams=4, length_penalty=1.0, early_stopping='never')
    if not torch.equal(beam.int(), arrays['output/beam'][:, : beam.shape[1]]):
        return float('inf')
    masks = {'encoder_last_hidden_state': 'attention_mask', 'logits': 'decoder_attention_mask'}
    names = {'encoder_last_hidden_state': 'output/encoder', 'logits': 'output/logits'}
    differences = [
        (getattr(found, own) - arrays[names[own]])[inputs[mask] == 1].abs().max() for own, mask in masks.items()
    ]
    return float(max(differences))


if __name__ == '__main__':
    print(json.dumps({name: difference(Path(name)) for name in sys.argv[1:]}))

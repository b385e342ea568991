"""Makes the small Hugging Face encoder-decoders that tests/interop compares with.

Run by hand where transformers is installed: .venv-peers/bin/python scripts/peers/make_text_to_text_fixtures.py. Each
folder holds what `save_pretrained` writes for a random model, and beside it `inputs_and_outputs.safetensors`: a padded
batch, the encoder's vectors, logits, cross-attention weights of each layer, and the tokens of `generate`, greedy and
with four beams.
"""

import argparse  # absl, which the other scripts read flags with, is not installed in .venv-peers
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

FIXTURES = Path(__file__).resolve().parents[2] / 'tests' / 'interop' / 'text_to_text'
SOURCE_LENGTH, TARGET_LENGTH, NEW_TOKENS = 13, 9, 12
# No decoder has more layers than its encoder: the cache of `generate` has as many as the encoder in transformers 5.23.
T5 = {'vocab_size': 61, 'd_model': 16, 'd_kv': 6, 'd_ff': 28, 'num_heads': 3, 'num_layers': 3, 'dropout_rate': 0.0}
T5 |= {'num_decoder_layers': 2, 'relative_attention_num_buckets': 8, 'relative_attention_max_distance': 10}
T5 |= {'decoder_start_token_id': 0}
GATED = T5 | {'feed_forward_proj': 'gated-gelu', 'num_layers': 2, 'd_kv': 8, 'tie_word_embeddings': False}
BART = {'vocab_size': 61, 'd_model': 16, 'encoder_layers': 3, 'decoder_layers': 2, 'encoder_attention_heads': 2}
BART |= {'decoder_attention_heads': 2, 'encoder_ffn_dim': 28, 'decoder_ffn_dim': 28, 'max_position_embeddings': 24}
BART |= {'dropout': 0.0, 'forced_eos_token_id': None}
SCALED = BART | {'scale_embedding': True, 'activation_function': 'relu', 'd_model': 12, 'encoder_layers': 2}
MARIAN = SCALED | {'pad_token_id': 60, 'eos_token_id': 1, 'decoder_start_token_id': 60, 'bos_token_id': None}
SINUSOIDAL = ('marian', 'pegasus')

# Folder -> class, config.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    't5_1': ('T5ForConditionalGeneration', T5),
    't5_2': ('T5ForConditionalGeneration', GATED),
    'bart_1': ('BartForConditionalGeneration', BART),
    'bart_2': ('BartForConditionalGeneration', SCALED),
    'marian_1': ('MarianMTModel', MARIAN),
    'pegasus_1': ('PegasusForConditionalGeneration', SCALED | {'activation_function': 'gelu_new'}),
}


def main() -> None:
    """Writes all folders, or those named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', default=list(MODELS))
    for name in parser.parse_args().names:
        size = make(FIXTURES / name, *MODELS[name], seed=list(MODELS).index(name))
        print(f'{name}: {size / 1024:.0f} KiB')


def make(folder: Path, kind: str, fields: dict[str, Any], *, seed: int) -> int:
    """Writes one folder; returns its size in bytes."""
    torch.manual_seed(seed)
    name = 'Marian' if kind == 'MarianMTModel' else kind.removesuffix('ForConditionalGeneration')
    config = getattr(transformers, f'{name}Config')(**fields)
    # The other kernels of attention hand out no weights.
    model = randomised(getattr(transformers, kind)._from_config(config, attn_implementation='eager'))
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    inputs = make_inputs(config)
    arrays = {f'input/{name}': value for name, value in inputs.items()} | outputs_of(model, inputs)
    kept = {name: value.float() if value.is_floating_point() else value.int() for name, value in arrays.items()}
    save_file({name: value.contiguous() for name, value in kept.items()}, folder / 'inputs_and_outputs.safetensors')
    return sum(path.stat().st_size for path in folder.iterdir())


def randomised(model: Any) -> Any:
    """The model with every parameter random, so that none is without effect.

    Positions weigh more than words in a decoder, so that a tied output does not repeat the word that it read, and some
    texts end before the limit. Outputs that T5 does not scale get a head that differs from the table, as transformers
    ties one that equals it; Marian's and Pegasus' get a bias.
    """
    kind, table = model.config.model_type, model.get_input_embeddings().weight
    for name, parameter in model.named_parameters():
        is_small = parameter.ndim == 1 or (parameter is table and kind in SINUSOIDAL)
        noise = torch.randn_like(parameter) * (0.1 if kind != 't5' and is_small else 0.4)
        noise *= 10.0 if 'decoder.embed_positions' in name else 1.0
        parameter.data = (1.0 + noise) if parameter.ndim == 1 and name.endswith('weight') else noise
    table.data[model.config.eos_token_id] *= 1.5 if kind != 'marian' else 1.0
    if not getattr(model.config, 'scale_decoder_outputs', True):
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.4)
    if kind in SINUSOIDAL:
        model.final_logits_bias = torch.nn.Buffer(torch.randn_like(model.final_logits_bias) * 0.1)
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.data = stack.embed_positions.create_weight()
    return model.eval()


def make_inputs(config: Any) -> dict[str, torch.Tensor]:
    """Two rows of sources and targets, the second with padding."""
    source, target = (torch.randint(4, config.vocab_size - 1, (2, length)) for length in (SOURCE_LENGTH, TARGET_LENGTH))
    mask, target_mask = torch.ones_like(source), torch.ones_like(target)
    mask[1, SOURCE_LENGTH * 2 // 3 :] = 0
    target_mask[1, TARGET_LENGTH * 2 // 3 :] = 0
    target[:, 0] = config.decoder_start_token_id
    source[mask == 0] = config.pad_token_id
    target[target_mask == 0] = config.pad_token_id
    inputs = {'input_ids': source, 'attention_mask': mask}
    return inputs | {'decoder_input_ids': target, 'decoder_attention_mask': target_mask}


def outputs_of(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Vectors, logits and weights of the batch, and what `generate` makes of its sources."""
    source = {name: inputs[name] for name in ('input_ids', 'attention_mask')}
    length = {'max_new_tokens': NEW_TOKENS, 'do_sample': False}
    with torch.no_grad():
        found = model(**inputs, output_attentions=True, return_dict=True)
        greedy = model.generate(**source, **length, num_beams=1)
        beams = model.generate(**source, **length, num_beams=4, length_penalty=1.0, early_stopping='never')
    weights = {f'output/cross/{layer}': own for layer, own in enumerate(found.cross_attentions)}
    generated = {'output/greedy': greedy, 'output/beam': beams}
    return {'output/encoder': found.encoder_last_hidden_state, 'output/logits': found.logits} | weights | generated


if __name__ == '__main__':
    main()

"""Writes small random Hugging Face encoder-decoders and their outputs, which the tests in tests/interop compare with.

Run it by hand in an environment with transformers: .venv-peers/bin/python scripts/make_fixtures/encoder_decoders.py.
Each folder gets the output of `save_pretrained` for a random model, and `inputs_and_outputs.safetensors`. For a padded
batch this file has the encoder's vectors, the logits and the cross-attention weights of each layer, computed in double
precision. For other sources it has the tokens of `generate`, greedy and with four beams.

A plain random model repeats one token, whatever the source. So these models are built to copy words of the source
(`amplify_cross_attention`). Models are sampled until the tokens distinguish a correct search from a wrong one
(`is_sensitive_to_settings`).
"""

import argparse  # this script does not use absl, because absl is not installed in .venv-peers
import copy
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

FIXTURES = Path(__file__).resolve().parents[2] / 'tests' / 'interop' / 'text_to_text'
SOURCE_LENGTH, TARGET_LENGTH, NEW_TOKENS = 13, 9, 12
GENERATED, DRAWS = 4, 1000  # number of sources for `generate`; maximum number of random models to try
# No decoder has more layers than its encoder, because in transformers 5.23 the cache has the encoder's layer count.
T5 = {'vocab_size': 61, 'd_model': 16, 'd_kv': 6, 'd_ff': 28, 'num_heads': 3, 'num_layers': 3, 'dropout_rate': 0.0}
T5 |= {'num_decoder_layers': 2, 'relative_attention_num_buckets': 8, 'relative_attention_max_distance': 10}
T5 |= {'decoder_start_token_id': 0}
GATED = T5 | {'feed_forward_proj': 'gated-gelu', 'num_layers': 2, 'd_kv': 8, 'tie_word_embeddings': False}
BART = {'vocab_size': 61, 'd_model': 16, 'encoder_layers': 3, 'decoder_layers': 2, 'encoder_attention_heads': 2}
BART |= {'decoder_attention_heads': 2, 'encoder_ffn_dim': 28, 'decoder_ffn_dim': 28, 'max_position_embeddings': 24}
BART |= {'dropout': 0.0}
T5_SENTINELS = 2  # the highest two ids of T5 are sentinels
PROJECTIONS = 'v_proj', 'out_proj'
FREE = 58  # token ids from 4 to FREE - 1 are words
FORCED = {'forced_bos_token_id': 0, 'forced_eos_token_id': 2}  # Released BART models force the same tokens.
SCALED = BART | {'scale_embedding': True, 'activation_function': 'relu', 'd_model': 12, 'encoder_layers': 2}
MARIAN = SCALED | {'pad_token_id': 60, 'eos_token_id': 1, 'decoder_start_token_id': 60, 'bos_token_id': None}
MARIAN |= {'activation_function': 'swish'}  # Released Marian models also use swish.
SINUSOIDAL = ('marian', 'pegasus')

# This maps the name of a folder to the Hugging Face class and the config of its model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    't5_1': ('T5ForConditionalGeneration', T5),
    't5_2': ('T5ForConditionalGeneration', GATED),
    'bart_1': ('BartForConditionalGeneration', BART),
    'bart_2': ('BartForConditionalGeneration', SCALED),
    'marian_1': ('MarianMTModel', MARIAN),
    'pegasus_1': ('PegasusForConditionalGeneration', SCALED | {'activation_function': 'gelu_new'}),
}


def main() -> None:
    """Writes the models of all folders, or of the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', default=list(MODELS))
    torch.set_num_threads(1)
    for name in parser.parse_args().names:
        size = write_fixture(FIXTURES / name, *MODELS[name], seed=list(MODELS).index(name))
        print(f'{name}: {size / 1024:.0f} KiB')


def write_fixture(folder: Path, kind: str, fields: dict[str, Any], *, seed: int) -> int:
    """Writes one folder with a random model, its inputs and its outputs; returns the size of the folder in bytes."""
    name = 'Marian' if kind == 'MarianMTModel' else kind.removesuffix('ForConditionalGeneration')
    config = getattr(transformers, f'{name}Config')(**fields)
    for draw in range(DRAWS):
        torch.manual_seed(DRAWS * seed + draw)
        # The eager implementation is used, because other attention kernels do not return attention weights.
        model = randomise_parameters(getattr(transformers, kind)._from_config(config, attn_implementation='eager'))
        for key, value in FORCED.items():  # `generate` reads forced tokens from generation_config.json, not config.json
            setattr(model.generation_config, key, value if folder.name == 'bart_1' else None)
        inputs, sources = make_inputs(config), make_sources(config)
        if float32_logit_error(model, inputs) > 4e-5:
            continue
        generated = generate_tokens(model, sources)
        if is_sensitive_to_settings(generated, config):
            break
    else:
        raise SystemExit(f'{folder.name}: none of {DRAWS} models writes texts that tell searches apart')
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    arrays = {f'input/{name}': value for name, value in inputs.items()}
    arrays |= model_outputs(copy.deepcopy(model).double(), inputs)  # expected outputs are computed in float64
    arrays |= {f'source/{name}': value for name, value in sources.items()}
    arrays |= {f'output/{name}': value for name, value in generated.items() if name in ('greedy', 'beam')}
    kept = {name: value.float() if value.is_floating_point() else value.int() for name, value in arrays.items()}
    save_file({name: value.contiguous() for name, value in kept.items()}, folder / 'inputs_and_outputs.safetensors')
    print(f'{folder.name}: draw {draw}', {name: value.tolist() for name, value in generated.items()})
    return sum(path.stat().st_size for path in folder.iterdir())


def randomise_parameters(model: Any) -> Any:
    """Sets every parameter of a model to random values, so that every parameter has an effect; returns the model.

    If T5's outputs are not scaled, they get a head that differs from the token table, because transformers ties an
    equal head. Marian and Pegasus get an output bias.
    """
    kind, table = model.config.model_type, model.get_input_embeddings().weight
    for name, parameter in model.named_parameters():
        scale = 0.4 if kind == 't5' else 0.1 if parameter.ndim == 1 else 0.15 if parameter is table else 0.3
        # Models other than T5 divide attention scores by sqrt(head width), so they get larger queries and keys.
        scale *= 2.5 if kind != 't5' and name.endswith(('q_proj.weight', 'k_proj.weight')) else 1.0
        noise = torch.randn_like(parameter) * scale
        parameter.data = (1.0 + noise) if parameter.ndim == 1 and name.endswith('weight') else noise
    if not getattr(model.config, 'scale_decoder_outputs', True):
        model.lm_head.weight = torch.nn.Parameter(table.data + torch.randn_like(table) * 0.2)
    if kind in SINUSOIDAL:
        model.final_logits_bias = torch.nn.Buffer(torch.randn_like(model.final_logits_bias) * 0.1)
        model.final_logits_bias[:, model.config.eos_token_id] += 1.0
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.data = stack.embed_positions.create_weight()
    table.data[model.config.eos_token_id] *= 1.5
    amplify_cross_attention(model)
    return model.eval()


def amplify_cross_attention(model: Any) -> None:
    """Changes a random model so that its decoder roughly copies the source instead of repeating one token.

    Each decoder layer adds the content of the source and removes earlier output tokens, approximately: cross-attention
    returns approximately the vectors that it attends to, and self-attention their negatives.
    """
    decoder = model.get_decoder()
    # Except in T5, the token table has small values, so that the input token has little influence on the output.
    # A larger final norm makes the output probabilities less uniform again.
    if model.config.model_type != 't5':
        getattr(decoder, 'layer_norm', decoder.layers[-1].final_layer_norm).weight.data *= 4.0
    for name, module in decoder.named_modules():
        values, out = (getattr(module, own, None) for own in (('v', 'o') if hasattr(module, 'o') else PROJECTIONS))
        if values is not None:
            gain = 4.0 if 'encoder_attn' in name or 'EncDec' in name else -2.0
            weight = values.weight.data
            inverse = weight.T @ torch.linalg.inv(weight @ weight.T + 0.3 * torch.eye(len(weight)))
            out.weight.data = gain * inverse + 0.05 * torch.randn_like(out.weight)


def make_sources(config: Any) -> dict[str, torch.Tensor]:
    """Returns random sources for `generate` with the special tokens of a tokenizer: end, padding, and BART's start."""
    tokens = torch.randint(4, FREE, (GENERATED, SOURCE_LENGTH))
    mask = torch.zeros_like(tokens)
    for row, length in enumerate((SOURCE_LENGTH, 9, 11, 6)):
        mask[row, :length] = 1
        tokens[row, length - 1] = config.eos_token_id
    if config.model_type == 'bart':
        tokens[:, 0] = config.bos_token_id
    tokens[mask == 0] = config.pad_token_id
    return {'input_ids': tokens, 'attention_mask': mask}


def generate_tokens(model: Any, sources: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tokens of three searches by transformers' `generate`: greedy, with four beams, and without length
    penalty.
    """
    beams = {'num_beams': 4, 'early_stopping': 'never'}
    searches = {'greedy': {'num_beams': 1}, 'beam': beams | {'length_penalty': 1.0}}
    searches['no_penalty'] = beams | {'length_penalty': 0.0}
    length = {'max_new_tokens': NEW_TOKENS, 'do_sample': False}
    with torch.no_grad():
        return {name: model.generate(**sources, **length, **options) for name, options in searches.items()}


def is_sensitive_to_settings(generated: dict[str, torch.Tensor], config: Any) -> bool:
    """Returns whether these texts would reveal a search that ignores its source, beams, end token or length penalty.

    Every text has several tokens. None of them is special, except the end token and a forced first token. Some T5 text
    has a sentinel.
    """
    texts = {
        name: [strip_special_tokens(row, config.eos_token_id) for row in rows.tolist()]
        for name, rows in generated.items()
    }
    kept = texts['greedy'] + texts['beam']
    special = {config.pad_token_id, 0, 2, 3}
    inner = [token for text in kept for token in text[config.model_type == 'bart' :]]
    lengths = {len(text) for text in texts['beam']}
    return (
        all(len(set(map(tuple, texts[name]))) == GENERATED for name in ('greedy', 'beam'))
        and all(len(set(text)) > 1 for text in kept)
        and sum(map(list.__ne__, texts['greedy'], texts['beam'])) > 1
        and texts['beam'] != texts['no_penalty']
        and min(lengths) < NEW_TOKENS - 1
        and max(lengths) >= NEW_TOKENS - 1
        and not special & set(inner)
        and (config.model_type != 't5' or max(map(max, texts['beam'])) >= config.vocab_size - T5_SENTINELS)
    )


def float32_logit_error(model: Any, inputs: dict[str, torch.Tensor]) -> float:
    """Returns the largest rounding error of a model's float32 logits: |float32 - float64| / (1 + |float64|)."""
    with torch.no_grad():
        rough, exact = model(**inputs).logits, copy.deepcopy(model).double()(**inputs).logits
    return float(((rough - exact) / (1.0 + exact.abs()))[inputs['decoder_attention_mask'] == 1].abs().max())


def strip_special_tokens(row: list[int], end: int) -> list[int]:
    """Returns the tokens of a generated text, without the start token, the end token and later tokens."""
    made = row[1:]
    return made[: made.index(end)] if end in made else made


def make_inputs(config: Any) -> dict[str, torch.Tensor]:
    """Returns a batch of two random sources and targets; the second source and the second target have padding."""
    source, target = (torch.randint(4, config.vocab_size - 1, (2, length)) for length in (SOURCE_LENGTH, TARGET_LENGTH))
    mask, target_mask = torch.ones_like(source), torch.ones_like(target)
    mask[1, SOURCE_LENGTH * 2 // 3 :] = 0
    target_mask[1, TARGET_LENGTH * 2 // 3 :] = 0
    target[:, 0] = config.decoder_start_token_id
    source[mask == 0] = config.pad_token_id
    target[target_mask == 0] = config.pad_token_id
    inputs = {'input_ids': source, 'attention_mask': mask}
    return inputs | {'decoder_input_ids': target, 'decoder_attention_mask': target_mask}


def model_outputs(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns a model's outputs for a batch: encoder hidden states, logits, and cross-attention weights."""
    with torch.no_grad():
        found = model(**inputs, output_attentions=True, return_dict=True)
    weights = {f'output/cross/{layer}': own for layer, own in enumerate(found.cross_attentions)}
    return {'output/encoder': found.encoder_last_hidden_state, 'output/logits': found.logits} | weights


if __name__ == '__main__':
    main()

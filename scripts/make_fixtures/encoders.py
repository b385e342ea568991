"""Writes small random Hugging Face encoders and their outputs, which the tests in tests/interop compare with.

Run it by hand in an environment with transformers: .venv-peers/bin/python scripts/make_fixtures/encoders.py. Each
family has two random models or more. For each model the folder gets the output of `save_pretrained` for the bare model
and `inputs_and_outputs.safetensors`. It also gets `heads.safetensors` (the tensors that each class with a head adds, as
<class>/<name>) and `classes.json` (the config.json of each class).
"""

import argparse  # this script does not use absl, because absl is not installed in .venv-peers
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.models.big_bird import modeling_big_bird

FIXTURES = Path(__file__).resolve().parents[2] / 'tests' / 'interop' / 'fixtures'
TASKS = ('ForSequenceClassification', 'ForTokenClassification', 'ForMultipleChoice', 'ForQuestionAnswering')
SMALL = {'vocab_size': 61, 'hidden_size': 16, 'num_hidden_layers': 2, 'num_attention_heads': 2}
SMALL |= {'intermediate_size': 28, 'max_position_embeddings': 24}
WIDER = {'vocab_size': 53, 'hidden_size': 24, 'num_hidden_layers': 3, 'num_attention_heads': 4}
WIDER |= {'intermediate_size': 20, 'max_position_embeddings': 19}
NO_DROPOUT = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}
DISTIL_NAMES = {'hidden_size': 'dim', 'num_hidden_layers': 'n_layers', 'num_attention_heads': 'n_heads'}
DISTIL_NAMES |= {'intermediate_size': 'hidden_dim'}
LABELS = {'id2label': {0: 'no', 1: 'maybe', 2: 'yes'}, 'label2id': {'no': 0, 'maybe': 1, 'yes': 2}}
PLACES = 6  # number of positions per row whose vocabulary logits are stored
SEP = 3  # id of the separator token, which ends the question in BigBird's input for question answering


def rename_distilbert_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {DISTIL_NAMES.get(name, name): value for name, value in fields.items()}


# MODELS maps a folder's name to the prefix of class names, the config, the row length, and the classes with heads.
SHIFTED = {'pad_token_id': 1, 'layer_norm_eps': 1e-5}
LONG = SMALL | {'max_position_embeddings': 48, 'sep_token_id': SEP}
MODELS: dict[str, tuple[str, dict[str, Any], int, tuple[str, ...]]] = {
    'bert_1': ('Bert', SMALL, 13, ('ForPreTraining', 'ForMaskedLM', 'ForNextSentencePrediction', *TASKS)),
    'bert_2': ('Bert', WIDER | {'hidden_act': 'gelu_new'}, 7, ('ForMaskedLM', TASKS[0])),
    'roberta_1': ('Roberta', SMALL | SHIFTED | {'type_vocab_size': 1}, 13, ('ForMaskedLM', *TASKS)),
    'roberta_2': ('Roberta', WIDER | SHIFTED | {'hidden_act': 'relu'}, 9, (TASKS[0],)),
    'albert_1': (
        'Albert',
        SMALL | {'num_hidden_layers': 3, 'num_hidden_groups': 2, 'inner_group_num': 2, 'embedding_size': 8}
        | {'intermediate_size': 12},
        13,
        ('ForPreTraining', 'ForMaskedLM', *TASKS),
    ),
    'albert_2': ('Albert', WIDER | {'embedding_size': 6, 'hidden_act': 'gelu'}, 7, ('ForMaskedLM', TASKS[0])),
    'distilbert_1': ('DistilBert', rename_distilbert_fields(SMALL), 13, ('ForMaskedLM', *TASKS)),
    'distilbert_2': (
        'DistilBert',
        rename_distilbert_fields(WIDER) | {'activation': 'relu'},
        7,
        ('ForMaskedLM', TASKS[0]),
    ),
    'electra_1': ('Electra', SMALL | {'embedding_size': 8}, 13, ('ForPreTraining', 'ForMaskedLM', *TASKS)),
    'electra_2': ('Electra', WIDER | {'embedding_size': 24}, 7, ('ForPreTraining', TASKS[2])),
    'longformer_1': (
        'Longformer',
        SMALL | SHIFTED | {'attention_window': [4, 6], 'max_position_embeddings': 44, 'intermediate_size': 12},
        31,
        ('ForMaskedLM', *TASKS),
    ),
    'longformer_2': ('Longformer', WIDER | SHIFTED | {'attention_window': 4, 'type_vocab_size': 1}, 15, (TASKS[1],)),
    'big_bird_1': (
        'BigBird',
        LONG | {'block_size': 4, 'num_random_blocks': 1},
        37,
        ('ForPreTraining', 'ForMaskedLM', *TASKS),
    ),
    'big_bird_2': (
        'BigBird',
        WIDER | {'block_size': 2, 'num_random_blocks': 2, 'sep_token_id': SEP, 'num_hidden_layers': 2}
        | {'max_position_embeddings': 32, 'rescale_embeddings': True},
        26,
        (),
    ),
    'big_bird_3': ('BigBird', SMALL | {'attention_type': 'original_full', 'sep_token_id': SEP}, 13, (TASKS[0],)),
}  # fmt: skip


# The weights of these models' layers are stored too.
WITH_WEIGHTS = ('albert_1', 'bert_1', 'distilbert_1', 'electra_1', 'longformer_1', 'roberta_1')


def main() -> None:
    """Writes a model into each fixture folder, or only into the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', default=list(MODELS))
    for name in parser.parse_args().names:
        size = write_fixture(FIXTURES / name, *MODELS[name], seed=list(MODELS).index(name))
        print(f'{name}: {size / 1024:.0f} KiB')


def write_fixture(
    folder: Path, stem: str, fields: dict[str, Any], length: int, classes: tuple[str, ...], *, seed: int
) -> int:
    """Writes one folder with a random model, its inputs and its outputs; returns the size of the folder in bytes."""
    torch.manual_seed(seed)
    is_half = folder.name.endswith('_2')
    dropout = {'dropout': 0.0, 'attention_dropout': 0.0} if stem == 'DistilBert' else NO_DROPOUT
    config = getattr(transformers, f'{stem}Config')(**fields, **dropout, **LABELS)
    base = randomise_parameters(getattr(transformers, f'{stem}Model')(config), is_half)
    shutil.rmtree(folder, ignore_errors=True)
    (base.half() if is_half else base).save_pretrained(folder)
    base.float()
    has_global = stem == 'Longformer' and isinstance(fields['attention_window'], list)
    inputs = make_inputs(config, length, has_global=has_global)
    plan: list[np.ndarray] = []
    arrays = {f'input/{name}': value for name, value in inputs.items()}
    arrays['output/hidden'] = model_outputs(base, inputs, plan)['last_hidden_state']
    arrays |= {f'plan/{layer}': torch.from_numpy(own) for layer, own in enumerate(plan)}
    if folder.name in WITH_WEIGHTS:
        arrays |= weights_of_layers(base, inputs)
    heads: dict[str, torch.Tensor] = {}
    configs: dict[str, Any] = {}
    for ending in classes:
        configs[ending], tensors, outputs = head_fixture(stem, ending, config, base, inputs, is_half)
        heads |= {f'{ending}/{name}': tensor for name, tensor in tensors.items()}
        arrays |= {f'output/{ending}/{name}': value for name, value in outputs.items()}
    kept = {name: value.float() if value.is_floating_point() else value.int() for name, value in arrays.items()}
    save_file({name: value.contiguous() for name, value in kept.items()}, folder / 'inputs_and_outputs.safetensors')
    save_file(heads, folder / 'heads.safetensors')
    (folder / 'classes.json').write_text(json.dumps(configs) + '\n')
    return sum(path.stat().st_size for path in folder.iterdir())


def randomise_parameters(model: Any, is_half: bool) -> Any:
    """Sets every parameter of a model to random values, rounded to float16 if `is_half`; returns the model.

    With random values, every parameter has an effect on the outputs.
    """
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter) * 0.3
        is_scale = parameter.ndim == 1 and name.endswith('weight')
        parameter.data = (1.0 + noise) if is_scale else noise
        if is_half:
            parameter.data = parameter.data.half().float()
    return model


def make_inputs(config: Any, length: int, *, has_global: bool) -> dict[str, torch.Tensor]:
    """Returns a batch of two random rows, the second with padding.

    The batch has token types and global tokens if the model uses them.
    """
    tokens = torch.randint(5, config.vocab_size, (2, length))
    tokens[:, 5] = SEP
    mask = torch.ones_like(tokens)
    mask[1, length * 2 // 3 :] = 0
    tokens[mask == 0] = config.pad_token_id
    inputs = {'input_ids': tokens, 'attention_mask': mask}
    if getattr(config, 'type_vocab_size', 1) > 1:
        inputs['token_type_ids'] = (torch.arange(length) > 5).long().expand_as(tokens) * mask
    if has_global:
        inputs['global_attention_mask'] = torch.zeros_like(tokens)
        inputs['global_attention_mask'][0, [0, 2, 17]] = 1
        inputs['global_attention_mask'][1, 0] = 1
    return inputs


def model_outputs(
    model: Any, inputs: dict[str, torch.Tensor], plan: list[np.ndarray] | None = None
) -> dict[str, torch.Tensor]:
    """Returns the outputs of a model for a batch; appends BigBird's random blocks to `plan`.

    BigBird runs in training mode without dropout, because the library uses its random blocks only in training mode.
    """
    is_sparse = getattr(model.config, 'attention_type', '') == 'block_sparse'
    model.train(is_sparse)
    draw = modeling_big_bird.BigBirdBlockSparseAttention._bigbird_block_rand_mask_with_head

    def recorded(*arguments: Any, **options: Any) -> list[np.ndarray]:
        drawn = draw(*arguments, **options)
        if plan is not None:
            plan.append(np.stack(drawn))
        return drawn

    modeling_big_bird.BigBirdBlockSparseAttention._bigbird_block_rand_mask_with_head = recorded
    try:
        with torch.no_grad():
            return dict(model(**inputs, return_dict=True))
    finally:
        modeling_big_bird.BigBirdBlockSparseAttention._bigbird_block_rand_mask_with_head = draw


def weights_of_layers(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the attention weights of all layers, and Longformer's weights of global queries."""
    if model.config.model_type != 'longformer':  # its only implementation returns weights
        model.set_attn_implementation('eager')
    with torch.no_grad():
        found = model(**inputs, return_dict=True, output_attentions=True)
    return {
        f'output/{name}/{layer}': weights
        for name in ('attentions', 'global_attentions')
        for layer, weights in enumerate(found.get(name) or ())
    }


def head_fixture(
    stem: str, ending: str, config: Any, base: Any, inputs: dict[str, torch.Tensor], is_half: bool
) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns the config.json of a class with a head, the tensors that the head adds to the encoder, and its outputs.

    For multiple choice, the rows of the batch are the choices.
    """
    count = 2 if ending in ('ForQuestionAnswering', 'ForPreTraining') else 3
    own = type(config).from_dict(config.to_dict() | (LABELS if count == 3 else {'id2label': None, 'label2id': None}))
    model = randomise_parameters(getattr(transformers, f'{stem}{ending}')(own), is_half)
    model.base_model.load_state_dict(base.state_dict(), strict=False)
    model.tie_weights()
    with tempfile.TemporaryDirectory() as name:
        (model.half() if is_half else model).save_pretrained(name)
        model.float()
        values = json.loads((Path(name) / 'config.json').read_text())
        with safe_open(Path(name) / 'model.safetensors', 'pt') as file:
            inside = f'{model.base_model_prefix}.'
            added = {own: file.get_tensor(own) for own in file.keys() if not own.startswith(inside)}  # noqa: SIM118
    if ending == 'ForMultipleChoice':
        inputs = {name: value[None] for name, value in inputs.items()}
    outputs = {name: value for name, value in model_outputs(model, inputs).items() if name.endswith('logits')}
    vocabulary = config.vocab_size
    outputs = {name: own[:, :PLACES] if own.shape[-1] == vocabulary else own for name, own in outputs.items()}
    if ending == 'ForMultipleChoice':
        outputs = {name: value[0] for name, value in outputs.items()}
    return values, added, outputs


if __name__ == '__main__':
    main()

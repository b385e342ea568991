"""Makes GPT-2 folders with tokenizers from the fixtures, and configs of runs that start from them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file
from tokenizers import pre_tokenizers

from configs.lm.common import language_modelling_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.interop.config_import import read_config_json
from efficient_attention.models.decoder_sizes import gpt2_fields
from tests.training.tiny_run import write_corpus

LANGUAGE_MODELS = Path(__file__).parent / 'language_models'
END = 60  # the id of <|endoftext|>
SMALL = ModelConfig(**gpt2_fields('small') | {'vocab_size': 61, 'width': 18, 'heads': 3, 'layers': 3, 'max_length': 57})


def copied(name: str, folder: Path, change: Callable[[dict], dict] = dict, **config: Any) -> Path:
    """Writes and returns a copy of a fixture with changed tensors and keys of config.json."""
    folder.mkdir(parents=True)
    save_file(change(load_file(LANGUAGE_MODELS / name / 'model.safetensors')), folder / 'model.safetensors')
    (folder / 'config.json').write_text(json.dumps(read_config_json(LANGUAGE_MODELS / name) | config))
    return folder


def with_tokenizer(folder: Path) -> Path:
    """Adds a vocab.json with merges.txt of 61 tokens to a folder; returns the folder."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) & {*map(chr, range(97, 123)), *'.,!?;:', 'Ġ', 'Ċ'})
    merges = ['Ġ t', 'h e', 'Ġt he', 'd o', 'do g', 'Ġ dog', 'r u', 'n s']
    words = [*alphabet, *(merge.replace(' ', '') for merge in merges)]
    words += [f'w{number}' for number in range(END - len(words))]
    vocabulary = {word: number for number, word in enumerate([*words, '<|endoftext|>'])}
    (folder / 'vocab.json').write_text(json.dumps(vocabulary))
    (folder / 'merges.txt').write_text('#version: 0.2\n' + '\n'.join(merges) + '\n')
    return folder


RUN = {f'model.{name}': getattr(SMALL, name) for name in gpt2_fields('small') if name != 'vocab_size'}
RUN |= {'data.length': 16, 'data.lowercase': False, 'train.batch_size': 8, 'data.held_out': 0.0}


def run_config(folder: Path, **fields: Any) -> RunConfig:
    config = language_modelling_config()
    config.data.source, config.data.cache = write_corpus(folder), str(folder / 'cache')
    config.update_from_flattened_dict({**RUN, 'data.vocab_size': 61, **fields})
    return from_dict(config.to_dict(), RunConfig)


def start_fields(tmp_path: Path) -> dict[str, str]:
    """Returns the config fields of a run that starts from a copied fixture, with its tokenizer."""
    folder = with_tokenizer(copied('gpt2_1', tmp_path / 'gpt2'))
    return {'data.tokenizer': str(folder / 'vocab.json'), 'train.start_from': str(folder)}

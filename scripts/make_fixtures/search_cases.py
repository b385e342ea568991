"""Records what transformers' `generate` writes under settings such as `bad_words_ids`, for tests to compare with.

Run it by hand in an environment with transformers: .venv-peers/bin/python scripts/make_fixtures/search_cases.py. The
models come from encoder_decoders.py. For each search, `tests/interop/searches.json` has the model, the sources, the
settings by transformers' names, and the tokens between the start token and the first end token. Settings use tokens
that the model writes without settings. Settings are sampled again until each setting of a search changes the tokens.
"""

import argparse  # this script does not use absl, because absl is not installed in .venv-peers
import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers

TESTS = Path(__file__).resolve().parents[2] / 'tests' / 'interop'
FOLDERS = TESTS / 'text_to_text'
KINDS = {'t5': 'T5ForConditionalGeneration', 'bart': 'BartForConditionalGeneration', 'marian': 'MarianMTModel'}
KINDS |= {'pegasus': 'PegasusForConditionalGeneration'}
LENGTHS = (13, 7, 10, 4)  # lengths of the sources in tokens
MOST = 16  # maximum tokens of a generated text, including the start token
DRAWS = 200  # maximum number of random settings that are tried per search
Settings = dict[str, Any]


def main() -> None:
    """Makes searches for each model, and writes them with their tokens into a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--output', type=Path, default=TESTS / 'searches.json')
    parser.add_argument('--each', type=int, default=2, help='searches per model, each for 1 and for 4 beams')
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    draw, searches = random.Random(options.seed), list[dict[str, Any]]()
    for folder in sorted(FOLDERS.iterdir()):
        kind = KINDS[folder.name.rpartition('_')[0]]
        model = getattr(transformers, kind).from_pretrained(folder).eval()
        for beams in (1, 4):
            searches += [make_search_case(model, folder.name, beams, draw) for _ in range(options.each)]
            print(folder.name, beams, [sorted(one['settings']) for one in searches[-options.each :]], flush=True)
    lines = ',\n'.join(json.dumps(one) for one in searches)
    options.output.write_text(f'[\n{lines}\n]\n', encoding='utf-8')


def make_search_case(model: Any, name: str, beams: int, draw: random.Random) -> dict[str, Any]:
    """Returns the settings of a beam search, drawn at random, and its result; each setting changes the tokens.

    After DRAWS tries without success, returns the last search.
    """
    for _ in range(DRAWS):
        sources = random_sources(model.config, draw)
        base = {'num_beams': beams, 'max_length': MOST, 'length_penalty': 1.0, 'early_stopping': False}
        settings = base | random_search_settings(generated_tokens(model, sources, base), model, beams, draw)
        tokens = generated_tokens(model, sources, settings)
        changed = [key for key, value in settings.items() if key not in base or base[key] != value]
        without = [base | {key: value for key, value in settings.items() if key != own} for own in changed]
        if all(tokens != generated_tokens(model, sources, one) for one in without):
            break
    return {'model': name, 'sources': sources, 'settings': settings, 'tokens': tokens}


def random_sources(config: Any, draw: random.Random) -> list[list[int]]:
    """Returns random sources with special tokens, and with only five different words, so that texts repeat words."""
    words = draw.sample(range(4, 58), 5)
    begin = [config.bos_token_id] if config.model_type == 'bart' else []
    rows = [begin + draw.choices(words, k=length - len(begin) - 1) for length in LENGTHS]
    return [[*row, config.eos_token_id] for row in rows]


def random_search_settings(plain: list[list[int]], model: Any, beams: int, draw: random.Random) -> Settings:
    """Returns two to four random settings of `generate`; their token ids come from texts generated without settings."""
    text = draw.choice([row for row in plain if len(row) > 3] or [[5, 6, 7, 8]])
    place = draw.randrange(len(text) - 2)
    words = [[text[place]], text[place : place + 2], text[place : place + 3]]
    forced = {model.generation_config.forced_bos_token_id, model.generation_config.eos_token_id}
    known = {
        'repetition_penalty': draw.choice([0.8, 1.3, 2.0]),
        'no_repeat_ngram_size': draw.choice([1, 2, 2, 3]),
        'bad_words_ids': draw.sample(words, draw.randint(1, 3)),
        'suppress_tokens': sorted({token for token in draw.sample(text, 2) if token not in forced}),
        'begin_suppress_tokens': sorted({row[0] for row in plain if row} | {row[1] for row in plain if len(row) > 1}),
        'min_length': draw.choice([5, 9, 12]),
        'min_new_tokens': draw.choice([5, 8]),
        'eos_token_id': [model.generation_config.eos_token_id, *draw.sample(text, draw.randint(1, 2))],
    }
    if beams > 1:
        known |= {'early_stopping': draw.choice([True, True, 'never']), 'length_penalty': draw.choice([0.0, 2.0, -1.0])}
    names = draw.sample(sorted(known), draw.randint(2, 4))
    return {name: known[name] for name in names}


def generated_tokens(model: Any, sources: list[list[int]], settings: Settings) -> list[list[int]]:
    """Returns the tokens that `generate` writes for each source, between the start token and the first end token."""
    length, pad = max(map(len, sources)), model.config.pad_token_id
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in sources])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in sources])
    with torch.no_grad():
        made = model.generate(input_ids=ids, attention_mask=mask, **settings)[:, 1:].tolist()
    ends = settings.get('eos_token_id', [model.generation_config.eos_token_id])
    return [row[: next((place for place, id in enumerate(row) if id in ends), len(row))] for row in made]


if __name__ == '__main__':
    main()

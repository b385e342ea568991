"""Generates texts with an exported encoder-decoder and its tokenizer; needs Python with transformers installed.

python tests/interop/generate_texts.py FOLDER MOST TEXT ... ; by four beams and at most MOST tokens. The last line is a
JSON object: the ids that the tokenizer gives each text, and the texts that `generate` makes of them, without special
tokens in their midst, which are never written here.
"""

import json
import sys

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


def main(folder: str, most: str, *texts: str) -> None:
    """Prints the ids of the sources, and the generated texts."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    search = {'num_beams': 4, 'length_penalty': 1.0, 'early_stopping': 'never', 'do_sample': False}
    kept = {model.generation_config.eos_token_id, model.generation_config.forced_bos_token_id}
    search['suppress_tokens'] = [id for id in tokenizer.all_special_ids if id not in kept]
    made = model.generate(
        **tokenizer(list(texts), return_tensors='pt', padding=True), max_new_tokens=int(most), **search
    )
    ids = [tokenizer(text)['input_ids'] for text in texts]
    print(json.dumps({'ids': ids, 'texts': tokenizer.batch_decode(made, skip_special_tokens=True)}))


if __name__ == '__main__':
    main(*sys.argv[1:])

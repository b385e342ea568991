"""The table of inputs that a user may give by mistake or get from a stranger, each with its command and the error line
that follows; tests/test_bad_inputs.py runs them all.

In a command or a line, `{base}` is the folder that all inputs share and none may change. `{here}` is the input's own
folder, into which `files` are written first. `{base}` has `corpus.txt` and its `cache`, `run` (a pretraining run with a
checkpoint of step 0), `table` (the files of a classification) and `model` (a Hugging Face folder of a classifier).
"""

import dataclasses
import gzip
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.bad_files import (
    DEEP,
    GROWING,
    SPLIT,
    WORDS,
    Content,
    copied,
    fields,
    index_of_shards,
    not_finite,
    parquet_file,
    promised,
    questions,
    tensor,
    tensors,
    tokenizer,
    written,
)

LARGE = 10**12


@dataclasses.dataclass(frozen=True)
class BadInput:
    """A command that is refused, with its files and the error line.

    Attributes:
        command: script and arguments, separated by one space; the script is a file of the repository.
        line: the start of the line on the standard error stream, after 'error: '.
        files: file name -> content, written into `{here}`.
        code: the exit code.
        environment: environment variables for the command.
    """

    command: str
    line: str
    files: Mapping[str, Content] = dataclasses.field(default_factory=dict)
    code: int = 2
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def train(fields: str, line: str, **files: Content) -> BadInput:
    """Returns the refused input of a pretraining run of the tiny model in a new workdir; `fields` names config fields,
    with spaces between them.
    """
    data = 'data.source=text:{base}/corpus.txt#paragraphs data.cache={here}/cache'
    words = ' '.join(f'--config.{field}' for field in f'{data} {fields}'.split())
    command = f'train.py --config=tests/training/tiny_run.py --workdir={{here}}/new {words}'
    return BadInput(command, line, {name.replace('__', '.'): content for name, content in files.items()})


def tune(fields: str, line: str, **files: Content) -> BadInput:
    """Returns the refused input of a fine-tuning run of the tiny model on the shared table; `fields` changes its
    config.
    """
    data = (
        'examples.train={base}/table/train.tsv examples.dev={base}/table/dev.tsv data.tokenizer={base}/table/vocab.txt'
    )
    words = ' '.join(f'--config.{field}' for field in f'{data} {fields}'.split())
    command = f'train.py --config=tests/training/tiny_fine_tuning.py --workdir={{here}}/new {words}'
    return BadInput(command, line, {name.replace('__', '.'): content for name, content in files.items()})


def corpus(content: Content, line: str, name: str = 'c.txt', source: str = 'text:{here}/c.txt#paragraphs') -> BadInput:
    """Returns the refused input of a pretraining run on a corpus with this content."""
    return train(f'data.source={source}', line, **{name.replace('.', '__'): content})


def rows(content: Content, line: str, name: str = 'rows.csv', option: str = '') -> BadInput:
    """Returns the refused input of predictions for a table with this content."""
    command = f'scripts/predict.py --model={{base}}/model --output={{here}}/out --files={{here}}/{name} {option}'
    return BadInput(command.strip(), line, {name: content})


def squad(content: Content, line: str, name: str = 'rows.json') -> BadInput:
    """Returns the refused input of a fine-tuning run on a SQuAD file with this content."""
    kind = 'examples.problem=question_answering examples.format=squad'
    fields = f'{kind} examples.overlong=windows examples.question_length=4 examples.dev='
    return tune(f'{fields} examples.train={{here}}/{name}', line, **{name.replace('.', '__'): content})


def tags(content: Content, line: str, name: str = 'rows.txt') -> BadInput:
    """Returns the refused input of a fine-tuning run on a file of tagged words with this content."""
    fields = 'examples.problem=token_classification examples.format=conll examples.overlong=error examples.dev='
    return tune(f'{fields} examples.train={{here}}/{name}', line, **{name.replace('.', '__'): content})


def model(line: str, *changes: Callable[[Path], Any]) -> BadInput:
    """Returns the refused input of a conversion of a changed Hugging Face folder."""
    command = 'scripts/convert.py --model={here}/model --output={here}/out'
    return BadInput(command, line, {'model': copied('model', *changes)})


def run(line: str, *changes: Callable[[Path], Any], command: str = 'eval.py --workdir={here}/run') -> BadInput:
    """Returns the refused input of an evaluation, or of another command, on a changed workdir."""
    return BadInput(command, line, {'run': copied('run', *changes)})


INDEX = 'model.safetensors.index.json'

METRICS = 'efficient_attention/__main__.py report --workdir={here}/run'


BAD_INPUTS = {
    # ---- fields of a config ----
    'field unknown': train('model.widht=3', 'unknown config field model.widht; did you mean model.width?'),
    'field of another type': train('model.width=wide', "flag --config.model.width=wide: 'wide' is not a whole number"),
    'field beyond any device': train(
        'train.steps=99999999999999999999', 'train.steps is 99999999999999999999; a whole'
    ),
    'field nan': train('data.mask_rate=nan', 'data.mask_rate is nan; it must be from 0 to 1'),
    'group in place of a field': train('model=3', 'flag --config.model=3: '),
    'layers': train('model.layers=1000000000', 'model.layers is 1000000000; it must be at most 65536'),
    'processes': train('data.processes=100000', 'data.processes is 100000; it must be from 0 to 4096'),
    'sentences without borders': tune(
        'head.sentence_layers=1 head.pooling=attention', 'head.sentence_layers is 1, and the rows have no sentence'
    ),
    'no teacher': tune(
        'distill.temperature=2.0', "distill.teacher is empty: name the teacher's folder there, or distill nothing"
    ),
    'no share left': tune(
        'prune.method=magnitude prune.keep=0.0', 'prune.keep is 0.0; it must be above 0 and at most 1'
    ),
    'blocks that do not divide': tune(
        'prune.method=magnitude prune.attention=block prune.block=5',
        'prune.block is 5, which does not divide encoder/stack/layers/attention/key/kernel of 16 x 16',
    ),
    'teacher that is not there': tune('distill.teacher={here}/no', 'distill.teacher: {here}/no'),
    'teacher without the head': tune(
        'distill.teacher={base}/run', "distill.teacher {base}/run has a head for 'fill_mask'"
    ),
    'teacher with another vocabulary': tune(
        'distill.teacher={base}/run distill.soft=0 distill.embeddings=1 checkpoint.best_metric=loss',
        'distill.teacher {base}/run: 65 of its 70 ids stand for other pieces',
    ),
    'layers beyond those that there are': tune(
        'train.start_from={base}/model train.start_layers=1,9',
        "train.start_layers is '1,9'; it must be numbers from 1 to 1 with commas (train.start_from is {base}/model)",
    ),
    'pattern unknown': train('model.attention=windw(3)', "attention 'windw(3)': unknown name 'windw'"),
    'pattern too deep': train(f'model.attention={"(" * 10_000}', "attention '((((((((((((((((((((((((((("),
    'pattern that calls': train('model.attention=__import__("os")', 'attention \'__import__("os")\': unknown name'),
    'regular expression': train("optimizer.no_decay=('(',)", "optimizer.no_decay has '(', which is no regular expr"),
    'cache without a name': train('data.cache=', "data.cache is ''; it must be a folder"),
    'all held out': train('data.held_out=1', 'the train split of the corpus is empty; add documents or lower'),
    # ---- sizes that exceed the memory of any machine ----
    'row of 10^8': train(
        'data.length=100000000 model.positions=none train.batch_size=8000000', 'the run needs at least'
    ),
    'batch of 10^9': train('train.batch_size=1000000000', 'the run needs at least'),
    'evaluation of 10^9': train('eval.batch_size=2000000000', 'the run needs at least'),
    'vocabulary of 10^12': train(
        f'data.vocab_size={LARGE}', f'data.vocab_size is {LARGE}; a whole number must be from -'
    ),
    'vocabulary of 10^9': train(
        'data.vocab_size=1000000000', 'data.vocab_size is 1000000000; it must be from 1 to 4194304'
    ),
    '10^15 parameters': train('model.width=1000000 model.layers=100', 'the run needs at least'),
    # ---- devices and hosts ----
    'mesh that does not divide': train('mesh.data=3', 'mesh.data 3 x mesh.fsdp 1 x mesh.tensor 1 = 3 devices, but th'),
    'mesh without devices': train('mesh.fsdp=0', 'mesh.fsdp is 0; it must be at least 1'),
    'heads over the mesh': train('mesh.tensor=8 mesh.data=1', 'model.heads 2 does not divide over mesh.tensor 8'),
    'host alone': BadInput('eval.py --workdir={base}/run --process_id=5', '--process_id needs --distributed'),
    # ---- corpora ----
    'corpus empty': corpus(b'', "data.source 'text:{here}/c.txt#paragraphs': no text in it"),
    'corpus of a mark alone': corpus('\ufeff', "data.source 'text:{here}/c.txt#paragraphs': no text in it"),
    'corpus UTF-16': corpus('Good.'.encode('utf-16'), '{here}/c.txt: byte 0xff at offset 0 is not UTF-8'),
    'corpus of half characters': corpus(b'a\xed\xa0\x80', '{here}/c.txt: byte 0xed at offset 1 is not UTF-8'),
    'corpus a pipe': corpus(lambda path, _: os.mkfifo(path), "data.source 'text:{here}/c.txt#paragraphs': no file mat"),
    'corpus a link to itself': corpus(lambda path, _: path.symlink_to(path), "data.source 'text:{here}/c.txt#parag"),
    'corpus cut gzip': corpus(
        gzip.compress(os.urandom(9999))[:5000], '{here}/c.txt.gz: cannot be read', 'c.txt.gz', 'text:{here}/c.txt.gz'
    ),
    'corpus deep JSON': corpus(
        DEEP, '{here}/c.jsonl: line 1: not JSON (nested too deeply)', 'c.jsonl', 'jsonl:{here}/c.jsonl#text'
    ),
    'corpus of numbers': corpus(
        '{"text": 3}',
        "{here}/c.jsonl: line 1: field 'text' is a whole number, not a text",
        'c.jsonl',
        'jsonl:{here}/c.jsonl#text',
    ),
    'shard damaged': corpus(
        bytes(70_000),
        '{here}/c.array_record: not a valid ArrayRecord',
        'c.array_record',
        'arrayrecord:{here}/c.array_record',
    ),
    'data set by a path': train('data.source=tfds:../../x#text', 'tfds:../../x: not the name of a data set, such as'),
    'data set not prepared': train('data.source=tfds:no_such_set', 'tfds:no_such_set: not prepared in '),
    'parquet without the column': corpus(
        parquet_file(body=['a']),
        "{here}/c.parquet: no column 'text'; known: 'body'",
        'c.parquet',
        'parquet:{here}/c.parquet#text',
    ),
    'parquet damaged': corpus(
        b'PAR1 and no more', '{here}/c.parquet: not a valid Parquet file', 'c.parquet', 'parquet:{here}/c.parquet#text'
    ),
    # ---- tokenizers ----
    'tokenizer a device': train('data.tokenizer=/dev/zero', 'tokenizer /dev/zero: not a file'),
    'tokenizer missing': train('data.tokenizer={here}/none.json', 'tokenizer {here}/none.json: cannot be read (No su'),
    'vocabulary twice': train(
        'data.tokenizer={here}/vocab.txt', 'tokenizer {here}/vocab.txt: line 8 repeats', vocab__txt=f'{WORDS}dog\n'
    ),
    'vocabulary empty': train('data.tokenizer={here}/vocab.txt', 'tokenizer {here}/vocab.txt: no [UNK]', vocab__txt=''),
    'SentencePiece junk': train(
        'data.tokenizer={here}/x.model', 'tokenizer {here}/x.model: not a SentencePiece model', x__model=b'\xff' * 99
    ),
    'tokenizer deep': train(
        'data.tokenizer={here}/t.json', 'tokenizer {here}/t.json: not a tokenizer.json (nested', t__json=DEEP
    ),
    'tokenizer a list': train(
        'data.tokenizer={here}/t.json', 'tokenizer {here}/t.json: not a tokenizer.json', t__json='[]'
    ),
    'tokenizer slow pattern': train(
        'data.tokenizer={here}/t.json',
        "tokenizer {here}/t.json: its pre_tokenizer has the regular expression '(a+)+$'",
        t__json=tokenizer(pre_tokenizer=SPLIT),
    ),
    'tokenizer that grows': train(
        'data.tokenizer={here}/t.json',
        'tokenizer {here}/t.json: its normalizer makes more than 1000 characters from one',
        t__json=tokenizer(normalizer=GROWING),
    ),
    'tokenizer without its unknown piece': train(
        'data.tokenizer={here}/t.json',
        'tokenizer {here}/t.json: not a tokenizer.json (WordPiece error: Missing [UNK] token',
        t__json=tokenizer().replace('"unk_token": "[UNK]"', '"unk_token": "[NONE]"'),
    ),
    # ---- files of examples, and predictions ----
    'table empty': rows('', '{here}/rows.csv: it is empty; its first line must name the columns'),
    'table column twice': rows('text,text\na,b\n', "{here}/rows.csv: line 1: the header names column 'text' twice"),
    'table open quote': rows('text\n"abc\n', '{here}/rows.csv: line 2: not CSV (a double quote opens'),
    'table of another kind': rows(b'PK\x03\x04', '{here}/rows.xlsx: not a known kind of table', 'rows.xlsx'),
    'table half a character': rows(
        '{"text": "\\udc00"}', "{here}/rows.jsonl: line 1: field 'text' holds half of a", 'rows.jsonl'
    ),
    'table unknown label': rows(
        'text,label\nthe,odd\n', "{here}/rows.csv: line 2: field 'label' is 'odd'; known labels"
    ),
    'label nan': rows(
        '{"text": "the", "label": NaN}', "{here}/rows.jsonl: line 1: field 'label' is NaN, not a", 'rows.jsonl'
    ),
    'option unknown': rows('text\nthe\n', "--set 'nope=1': write FIELD=VALUE with one of", option='--set=nope=1'),
    'questions deep': squad(DEEP, '{here}/rows.json: not JSON (nested too deeply)'),
    'questions without data': squad('{}', "{here}/rows.json: no field 'data'"),
    'question without text': squad(
        questions(question=' '), "{here}/rows.json: question 'a': field 'question' is empty"
    ),
    'answer a number': squad(
        questions(answers=3), "{here}/rows.json: question 'a': field 'answers' is a whole number, not a list"
    ),
    'tags ragged': tags('The DT\ndog\n', '{here}/rows.txt: line 2: 1 columns where the lines before have 2'),
    'tags in CoNLL-U': tags('1\tThe\n', '{here}/rows.conllu: line 1: 2 columns; CoNLL-U has 10', 'rows.conllu'),
    'predictions there already': BadInput(
        'scripts/predict.py --model={base}/model --output={base}/table --files={base}/table/dev.tsv',
        '{base}/table: there is something already; name another folder (--output)',
    ),
    # ---- Hugging Face folders ----
    'model config deep': model('{here}/model/config.json: not JSON (nested too deeply)', written('config.json', DEEP)),
    'model config a pipe': model(
        '{here}/model/config.json: not JSON (not a file)',
        lambda folder: ((folder / 'config.json').unlink(), os.mkfifo(folder / 'config.json')),
    ),
    'model unknown': model("{here}/model/config.json: model_type is 'gpt9'; read here:", fields(model_type='gpt9')),
    'model architectures': model('{here}/model/config.json: architectures is 3; it must be', fields(architectures=3)),
    'model wide': model(f'{{here}}/model/config.json: hidden_size is {LARGE}; a whole', fields(hidden_size=LARGE)),
    'model layers': model('{here}/model/config.json: model.layers is 1000000000;', fields(num_hidden_layers=10**9)),
    'model vocabulary': model('{here}/model: its tensors do not match its config.json', fields(vocab_size=10**9)),
    'model dropout': model("{here}/model/config.json: classifier_dropout is 'x'; it", fields(classifier_dropout='x')),
    'model pickle alone': model(
        '{here}/model: no model.safetensors; pytorch_model.bin is a pickle, which may run code',
        lambda folder: (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin'),
    ),
    'header huge': model('{here}/model/model.safetensors: cannot be read (', tensors(b'{}', length=2**63)),
    'header of terabytes': model(
        '{here}/model/model.safetensors: cannot be read (', tensors({'a': tensor([2**38], 0, 2**40)})
    ),
    'header overlaps': model(
        '{here}/model/model.safetensors: cannot be read (', tensors({'a': tensor([1]), 'b': tensor([1])}, bytes(4))
    ),
    'header out of range': model(
        '{here}/model/model.safetensors: cannot be read (', tensors({'a': tensor([1], 4, 8)}, bytes(4))
    ),
    'header overflows': model(
        '{here}/model/model.safetensors: cannot be read (', tensors({'a': tensor([2**40, 2**40])}, bytes(4))
    ),
    'header name twice': model(
        '{here}/model: its tensors do not match its config.json',
        tensors(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
    ),
    'header deep': model('{here}/model/model.safetensors: cannot be read (', tensors(DEEP.encode())),
    'header name with an escape': model(
        '{here}/model: its tensors do not match its config.json',
        tensors({'\x1b[31mred\r\n': tensor([1])}, bytes(4)),
    ),
    'file of holes': model('{here}/model', promised(8192)),
    'tensor not finite': model(
        '{here}/model/model.safetensors: ', lambda folder: not_finite(folder / 'model.safetensors')
    ),
    'shard outside': model(
        f'{{here}}/model/{INDEX}: no index of shards: weight_map must give',
        index_of_shards('{"weight_map": {"a": "../../etc/passwd"}}'),
    ),
    'shard with a long name': model(
        '{here}/model: the shard aaaaa', index_of_shards(json.dumps({'weight_map': {'a': 'a' * 5000}}))
    ),
    'tokenizer above the model': BadInput(
        'scripts/predict.py --model={here}/model --output={here}/out --files={base}/table/dev.tsv',
        '{here}/model/vocab.txt: the tokenizer has 107 tokens; the model has 27',
        {'model': copied('model', written('vocab.txt', WORDS + '\n'.join(f'w{n}' for n in range(100))))},
    ),
    'longer than memory': BadInput(
        f'scripts/convert.py --model={{base}}/model --output={{here}}/out --length={10**11}', f'{10**11} positions take'
    ),
    # ---- metrics and reports ----
    'metrics no JSON': run(
        '{here}/run/metrics.jsonl: unusable lines are ignored: line 1: not JSON',
        written('metrics.jsonl', 'x\n'),
        command=METRICS,
    ),
    'metrics deep': run(
        '{here}/run/metrics.jsonl: unusable lines are ignored: line 1: not',
        written('metrics.jsonl', f'{DEEP}\n'),
        command=METRICS,
    ),
    'metrics step': run(
        "{here}/run/metrics.jsonl: unusable lines are ignored: line 1: step 'a' of split 3 is not a valid step",
        written('metrics.jsonl', '{"step": "a", "split": 3}\n'),
        command=METRICS,
    ),
    'metrics number': run(
        '{here}/run/metrics.jsonl: unusable lines are ignored: line 1: loss is a number beyond 1e+100',
        written('metrics.jsonl', f'{{"step": 1, "split": "train", "loss": {"9" * 400}}}\n'),
        command=METRICS,
    ),
    # ---- the command line ----
    'no workdir': BadInput('train.py --config=tests/training/tiny_run.py', '--workdir is missing'),
    'no config file': BadInput('train.py --config=none.py --workdir={here}/new', "config: there is no file 'no"),
    'tracker unknown': train(
        'train.trackers=csv,comet', "train.trackers is 'comet'; known: tensorboard, csv, trackio,"
    ),
    'profile without an end': BadInput(
        'train.py --config=tests/training/tiny_run.py --workdir={here}/new --profile=20',
        "flag --profile=20: '20' is not a range of steps; write FIRST:LAST, counted from 1, such as 20:25",
    ),
    'profile beyond the run': BadInput(
        'train.py --config=tests/training/tiny_run.py --workdir={here}/new --profile=20:25'
        ' --config.data.source=text:{base}/corpus.txt#paragraphs --config.data.cache={here}/cache',
        '--profile 20:25 is beyond the run, which has 20 steps',
    ),
    'config no Python': BadInput(
        'train.py --config={base}/corpus.txt --workdir={here}/new',
        'config: not Python that can be read: invalid syntax (',
    ),
    'flag unknown': BadInput('eval.py --workdir={base}/run --nope', "Unknown command line flag 'nope'"),
    'word too many': BadInput(
        'eval.py --workdir={base}/run x', "'x' is no flag; flags and config fields begin with --"
    ),
    'text without a mask': BadInput('scripts/fill_mask.py --model={base}/run dog', "no [MASK] in the text 'dog'"),
    'temperature': BadInput(
        'scripts/generate.py --workdir={base}/run --prompt=a --temperature=nan', 'temperature is nan'
    ),
    'picture too long': BadInput(
        'scripts/visualize.py pattern window(8) --length=1000000000 --output={here}/x.png',
        '--length is 1000000000; it must',
    ),
}

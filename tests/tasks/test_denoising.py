"""Tests of denoising runs: shapes, tokenizers, processes, refused configs, and a whole run that learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.text_to_text.common import text_to_text_config
from configs.text_to_text.glue import get_config as glue_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.data.corpus.prepare import prepare_corpus
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.text_to_text_special_ids import find_text_to_text_special_ids
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.tasks.denoising import DenoisingTask, max_text_lengths
from efficient_attention.tasks.text_to_text import TextToTextTask
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.metrics import read_metrics
from tests.data.tokenizers.test_sentencepiece import MODELS
from tests.data.tokenizers.test_sentencepiece import train as train_sentencepiece
from tests.training.tiny_run import write_corpus

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = pytest.mark.lenient_promotion


@pytest.fixture(scope='module')
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the config fields of a corpus and its cache, which all tests of this file share."""
    folder = tmp_path_factory.mktemp('corpus')
    return {'data.source': write_corpus(folder), 'data.cache': str(folder / 'cache')}


def config_of(corpus: dict[str, Any], name: str = 'span_corruption', **fields: Any) -> RunConfig:
    config = text_to_text_config()
    flat = corpus | {'data.held_out': 0.2, 'data.vocab_size': 90, 'data.tokenizer': 'train:unigram'}
    flat |= {'data.length': 24, 'pairs.target_length': 24, 'noise.name': name, 'model.width': 16, 'model.layers': 1}
    flat |= {'model.decoder_layers': 1, 'model.positions': 'sinusoidal', 'optimizer.warmup_steps': 2}
    flat |= {'model.dropout_rate': 0.0, 'model.attention_dropout_rate': 0.0}
    flat |= {'optimizer.learning_rate': 1e-2, 'train.steps': 12, 'train.batch_size': 8, 'train.log_every_steps': 4}
    flat |= {'eval.every_steps': 6, 'eval.batch_size': 64, 'checkpoint.every_steps': 12}
    config.update_from_flattened_dict(flat | fields)
    return from_dict(config.to_dict(), RunConfig)


@pytest.mark.parametrize('name', ['span_corruption', 'bart'])
def test_batches_have_the_shapes_of_a_plan(corpus: dict[str, Any], name: str):
    task = DenoisingTask(config_of(corpus, name))
    shapes = DenoisingTask.without_data(task.config).batch_shapes()
    [batch] = task.training_batches(0, 1, 0, 1)
    assert {key: (batch[key].shape, batch[key].dtype) for key in shapes} == {
        key: (shape.shape, shape.dtype) for key, shape in shapes.items()
    }
    assert task.tokens_per_step() == sum(batch[key].size for key in ('source', 'tokens'))
    assert task.rows_per_epoch() == task.training_data.count and task.training_flops() > 0


def test_t5s_lengths_follow_from_that_of_the_source(corpus: dict[str, Any]):
    fields = {'data.length': 512, 'pairs.target_length': 128}
    assert max_text_lengths(config_of(corpus, **fields)) == (568, (511, 113))
    task = DenoisingTask.without_data(config_of(corpus, **fields))
    assert task.lengths == (512, 114)
    assert max_text_lengths(config_of(corpus, 'bart', **fields)) == (127, (127, 127))


ALL_LETTERS = {'data.vocab_size': 120}  # With fewer pieces, rare capitals are unknown.


def rows_of(task: DenoisingTask) -> list[tuple[list[int], list[int]]]:
    """Returns the source and target of each evaluation row, without end symbols and padding."""
    rows = []
    for batch in task.evaluation_batches(0, 1):
        for row in np.flatnonzero(batch['segments'].any(axis=1)):
            sides = (batch['source'], batch['source_segments']), (batch['targets'], batch['segments'])
            source, target = (ids[row][segments[row] > 0].tolist() for ids, segments in sides)
            assert source[-1] == target[-1] == task.ends.end
            rows.append((source[:-1], target[:-1]))
    return rows


def restored(source: list[int], target: list[int], sentinels: set[int]) -> list[int]:
    """Returns the source with each sentinel replaced by its span from the target."""
    spans: dict[int, list[int]] = {}
    for id in target:
        spans |= {id: []} if id in sentinels else {}
        if id not in sentinels:
            spans[list(spans)[-1]].append(id)
    assert [id for id in source if id in sentinels] == list(spans) and all(spans.values())
    return [one for id in source for one in spans.get(id, [id])]


def documents_of(corpus: dict[str, Any], task: DenoisingTask) -> list[str]:
    """Returns the documents of the corpus file in the form that the tokenizer decodes to."""
    path = Path(corpus['data.source'].removeprefix('text:').removesuffix('#paragraphs'))
    documents = path.read_text(encoding='utf-8').split('\n\n')
    return [document.strip().lower() if task.data.lowercase else document.strip() for document in documents]


def test_source_and_target_of_span_corruption_give_the_documents_back(corpus: dict[str, Any]):
    """Sources and targets of span corruption, put together and decoded, give the documents to every character."""
    task = DenoisingTask(config_of(corpus, **ALL_LETTERS))
    sentinels = set(find_text_to_text_special_ids(task.tokenizer, '').sentinels)
    ids = [id for row in rows_of(task) for id in restored(*row, sentinels)]
    text, found, documents = task.tokenizer.decode(ids), 0, documents_of(corpus, task)
    while text:
        document = next(one for one in documents if text.startswith(one))
        text, found = text.removeprefix(document).lstrip(), found + 1
    assert found == len(task.corpus.held_out) > 1


def test_targets_of_bart_are_sentences_of_a_document_that_the_source_hides(corpus: dict[str, Any]):
    task = DenoisingTask(config_of(corpus, 'bart', **ALL_LETTERS, **{'data.length': 48, 'pairs.target_length': 48}))
    documents, mask = documents_of(corpus, task), task.tokenizer.token_to_id('[MASK]')
    rows = rows_of(task)
    for source, target in rows:
        text = task.tokenizer.decode(target)
        assert text.endswith('.') and any(text in one for one in documents)
        assert mask not in target and set(source) <= {*target, mask}
    assert sum(mask in source for source, _ in rows) > len(rows) // 2


@pytest.mark.parametrize('name', ['span_corruption', 'bart'])
def test_two_processes_read_the_rows_of_one(corpus: dict[str, Any], name: str):
    task = DenoisingTask(config_of(corpus, name))
    whole = list(task.training_batches(3, 5, 0, 1))
    parts = [list(DenoisingTask(task.config).training_batches(3, 5, process, 2)) for process in range(2)]
    for batch, *blocks in zip(whole, *parts, strict=True):
        for key, values in batch.items():
            assert np.array_equal(values, np.concatenate([block[key] for block in blocks])), key
    once, again = (np.concatenate([b['source'] for b in task.evaluation_batches(0, 1)]) for _ in range(2))
    assert np.array_equal(once, again)


def test_a_trained_tokenizer_ends_with_as_many_sentinels_as_a_text_has_spans(corpus: dict[str, Any]):
    task = DenoisingTask(config_of(corpus))
    pieces = task.tokenizer.get_vocab()
    assert len(pieces) == 90 and task.noise.sentinels.tolist() == [89]  # A text of 24 tokens has one span.
    longer = DenoisingTask(config_of(corpus, **{'data.length': 64}))
    names = [longer.tokenizer.id_to_token(number) for number in longer.noise.sentinels.tolist()]
    assert names == [f'<extra_id_{number}>' for number in range(3)] and longer.noise.sentinels.tolist() == [89, 88, 87]
    assert longer.fingerprint != task.fingerprint and longer.vocabulary == longer.tokenizer.get_vocab()
    assert '<extra_id_0>' not in DenoisingTask(config_of(corpus, 'bart')).vocabulary


def test_a_released_tokenizer_serves_with_its_own_sentinels(corpus: dict[str, Any], tmp_path: Path):
    """T5's tokenizer has neither [CLS] nor [MASK]. Span corruption needs none; BART's noise is refused in one line."""
    path = tmp_path / 'spiece.model'
    path.write_bytes(train_sentencepiece(**MODELS['like T5']))
    size = load_tokenizer(path, lowercase=False, is_text_to_text=True).get_vocab_size()
    fields = {'data.tokenizer': str(path), 'model.vocab_size': size, 'data.vocab_size': 10}
    task = DenoisingTask(config_of(corpus, **fields))
    assert task.noise.sentinels.tolist() == [size - 1] and (task.ends.pad, task.ends.end, task.ends.start) == (0, 1, 0)
    with pytest.raises(InputError, match=r"no \[MASK\] or <mask> in its vocabulary, which noise.name 'bart' needs$"):
        DenoisingTask(config_of(corpus, 'bart', **fields))
    with pytest.raises(
        InputError, match=rf'it has {size} pieces, its sentinel <extra_id_0> among those beyond; the model'
    ):
        DenoisingTask(config_of(corpus, **fields | {'model.vocab_size': size - 1}))
    many = {'noise.density': 0.5, 'noise.mean_span': 1.0, 'data.length': 256, 'pairs.target_length': 256}
    with pytest.raises(InputError, match=r'100 sentinels \(<extra_id_0>, ...\) in its vocabulary; 127 are needed$'):
        DenoisingTask(config_of(corpus, **fields | many | {'model.vocab_size': size}))


def test_a_corpus_that_was_prepared_beforehand_is_found(corpus: dict[str, Any], tmp_path: Path):
    """A run finds a corpus prepared with its number of sentinels, or for any task with a tokenizer file."""
    asked = {'data.cache': str(tmp_path / 'cache')}
    run = config_of(corpus | asked, **{'data.length': 64})
    learnt = prepare_corpus(run.data, sentinels=3, show_progress=False).folder
    task = DenoisingTask(run)
    assert (
        task.corpus.folder == learnt and task.notes[0] == 'noise: texts of 70 tokens with 3 spans and as many sentinels'
    )
    files = {'data.tokenizer': str(learnt / 'tokenizer.json'), 'data.vocab_size': 90}
    for name in ('span_corruption', 'bart'):
        run = config_of(corpus | asked, name, **files, **{'data.length': 64})
        assert DenoisingTask(run).corpus.folder == prepare_corpus(run.data, show_progress=False).folder != learnt
    plain = config_of(corpus | asked, 'bart')
    assert DenoisingTask(plain).corpus.folder == prepare_corpus(plain.data, show_progress=False).folder
    assert len(list((tmp_path / 'cache').iterdir())) == 3


@pytest.mark.parametrize(
    'name, fields, said',
    [
        (
            'span_corruption',
            {'pairs.target_length': 2},
            'noise.name span_corruption: no text fits 23 tokens of a source',
        ),
        (
            'bart',
            {'pairs.target_length': 2, 'pairs.begin': '[CLS]'},
            'pairs.target_length is 2; with noise it must be 4 or',
        ),
        ('bart', {'pairs.begin': '<go>'}, "pairs.begin is '<go>', which the tokenizer lacks"),
        ('bart', {'pairs.start': '<go>'}, 'tokenizer train:unigram: no <go> in its vocabulary; it was named as'),
        ('bart', {'data.held_out': 1.0}, 'the train split of the corpus has 0 tokens'),
        (
            'span_corruption',
            {'data.vocab_size': 20, 'data.length': 512, 'pairs.target_length': 114},
            'data.vocab_size is 20, and 28 of its pieces would be sentinels',
        ),
    ],
)
def test_what_does_not_serve_is_named(corpus: dict[str, Any], name: str, fields: dict, said: str):
    with pytest.raises(InputError, match=f'^{said}'):
        DenoisingTask(config_of(corpus, name, **fields)).prepare_training()


def test_a_run_learns_and_is_evaluated(corpus: dict[str, Any], tmp_path: Path):
    held_out = train(config_of(corpus), tmp_path / 'run')
    lines = [line for line in read_metrics(tmp_path / 'run') if line['split'] == 'held_out']
    assert lines[1]['target_loss'] < lines[0]['target_loss'] - 0.05
    found = evaluate_workdir(tmp_path / 'run', batch_size=32)
    assert found['target_loss'] == pytest.approx(held_out['target_loss'], rel=1e-5) and 'bleu' not in found
    pieces = load_tokenizer(tmp_path / 'run' / 'tokenizer.json', lowercase=False).get_vocab()
    assert pieces['<extra_id_0>'] == 89
    assert_pairs_go_on_from_it(tmp_path / 'run')


def assert_pairs_go_on_from_it(workdir: Path) -> None:
    """Asserts that a run on pairs takes sizes, tokenizer and symbols from the folder if its config leaves them open."""
    values = glue_config('sst2-pretrained')
    values.update_from_flattened_dict({'train.start_from': str(workdir), 'pairs.train': 'toy:copy:9:1-5'})
    values.pairs.held_out = ''
    config = fill_config(values.to_dict()).config
    assert not config.has_noise and config.model == read_config(workdir).model
    assert TextToTextTask(config).vocabulary == load_tokenizer(workdir / 'tokenizer.json', lowercase=False).get_vocab()

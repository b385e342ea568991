"""Tests of text-to-text runs: input, reports, refused configs, a whole run that learns, and resuming."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from tokenizers import Tokenizer

from configs.text_to_text.common import text_to_text_config
from configs.text_to_text.glue import get_config as glue_config
from efficient_attention.config.dict_conversion import from_dict, to_dict
from efficient_attention.config.noise import NoiseConfig
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.pairs.pair_datasets import parse_pair_datasets
from efficient_attention.data.pairs.pair_encoder import special_ids_of_tokenizer
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.inference import translator
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inference.translator import (
    DecodingOptions,
    Translation,
    open_translator,
    score_generated_targets,
)
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.flops import encoder_decoder_flops
from efficient_attention.tasks.metrics.translation import translation_scores
from efficient_attention.tasks.task import HostBatch
from efficient_attention.tasks.text_to_text import TextToTextTask, source_padded_lengths
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from efficient_attention.training.run import build_run
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.config_file import claim_workdir
from efficient_attention.workdir.metrics import read_metrics
from tests.tolerances import assert_close

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = pytest.mark.lenient_promotion


def config_of(**fields: Any) -> RunConfig:
    config = text_to_text_config()
    flat = {'data.tokenizer': 'train:wordpiece', 'data.vocab_size': 24, 'data.length': 8}
    flat |= {'pairs.train': 'toy:reverse:40:2-6', 'pairs.held_out': 'toy:reverse:10:2-6:1'}
    flat |= {'pairs.target_length': 8, 'pairs.buckets': (8,), 'model.width': 16, 'model.layers': 1}
    flat |= {'model.decoder_layers': 1, 'model.positions': 'sinusoidal', 'optimizer.warmup_steps': 2}
    # Pegasus has these values.
    flat |= {'model.embedding_norm': False, 'model.norm': 'pre', 'model.norm_epsilon': 1e-5}
    flat |= {'optimizer.learning_rate': 3e-3, 'train.steps': 12, 'train.batch_size': 8, 'train.log_every_steps': 4}
    flat |= {'eval.every_steps': 6, 'eval.batch_size': 8, 'checkpoint.every_steps': 6, 'train.label_smoothing': 0.1}
    config.update_from_flattened_dict(flat | fields)
    return from_dict(config.to_dict(), RunConfig)


def test_a_run_learns_and_its_workdir_is_evaluated(tmp_path: Path):
    held_out = train(config_of(), tmp_path / 'run')
    lines = [line for line in read_metrics(tmp_path / 'run') if line['split'] == 'held_out']
    assert lines[1]['target_loss'] < lines[0]['target_loss'] - 0.05
    assert held_out['target_loss'] == held_out['target_cross_entropy']  # Evaluation has no label smoothing.
    training = [line for line in read_metrics(tmp_path / 'run') if line['split'] == 'train']
    assert all(line['target_loss'] > line['target_cross_entropy'] for line in training[-1:])
    assert (tmp_path / 'run' / 'tokenizer.json').exists()
    before: list[dict[str, float | str]] = []
    found = evaluate_workdir(tmp_path / 'run', batch_size=16, before_search=before.append, beams=2)
    assert found['target_loss'] == pytest.approx(held_out['target_loss'], rel=1e-5)
    assert before[0].items() < found.items() and before[0]['target_loss'] == found['target_loss'] and len(before) == 1
    run = open_translator(tmp_path / 'run', decoding=DecodingOptions(beams=2, max_tokens=8, batch_size=16))
    [held_out_set] = parse_pair_datasets('toy:reverse:10:2-6:1', '')
    sources, targets, _ = zip(*held_out_set.read_pairs(), strict=True)
    scores = translation_scores([best[0].text for best in run(sources)], targets)
    assert {name: found[name] for name in scores} == scores
    assert_goes_out_and_comes_back(tmp_path / 'run', tmp_path / 'exported')
    for start in (tmp_path / 'run', tmp_path / 'exported'):
        assert_another_run_follows(start)


def assert_goes_out_and_comes_back(workdir: Path, folder: Path) -> None:
    """Asserts that a run exports to a Hugging Face folder and reopens, with the begin and end ids of its targets."""
    before = open_pretrained(workdir)
    save_pretrained(folder, before)
    after = open_pretrained(folder)
    assert (after.family, after.problem, after.model) == ('pegasus', 'text_to_text', before.model)
    assert jax.tree.all(jax.tree.map(np.array_equal, before.params(), after.params()))
    encoder = TextToTextTask(config_of()).encoder.source
    # Other libraries read the file in this way.
    text = Tokenizer.from_file(str(folder / 'tokenizer.json')).encode('3 1 4 12')
    assert text.ids == encoder.ids(['3 1 4 12'])[0].tolist()
    pieces = load_tokenizer(workdir / 'tokenizer.json', lowercase=False).get_vocab()
    ids = {'pad_token_id': '[PAD]', 'decoder_start_token_id': '[CLS]', 'eos_token_id': '[SEP]'}
    assert {key: after.extra[key] for key in ids} == {key: pieces[piece] for key, piece in ids.items()}


def assert_another_run_follows(start: Path) -> None:
    """Asserts that a config with open fields takes them from the encoder-decoder of `train.start_from`."""
    config = glue_config('sst2-pretrained')
    config.train.start_from = str(start)
    filled = fill_config(config.to_dict())
    trained = open_pretrained(start)
    assert filled.pretrained is not None and filled.config.model == trained.model
    assert filled.config.data.tokenizer == str(trained.tokenizer) and filled.config.data.vocab_size == 24
    tokenizer = load_tokenizer(start / 'tokenizer.json', lowercase=False)
    symbols = [
        special_ids_of_tokenizer(tokenizer, one.pairs.start, one.pairs.begin) for one in (filled.config, config_of())
    ]
    assert symbols[0] == symbols[1]


def test_two_tokenizers_learn_write_and_stay_apart(tmp_path: Path):
    """Source and target tokenizers give a digit different ids, and the run's folder holds both tokenizers."""
    fields = {'pairs.target_tokenizer': 'train:unigram', 'pairs.target_vocab_size': 17, 'model.shared_table': False}
    # A digit and the space before it are two target pieces.
    fields |= {'pairs.target_length': 14, 'pairs.buckets': (14,)}
    fields |= {'model.dropout_rate': 0.0, 'model.attention_dropout_rate': 0.0}
    config = config_of(**fields, **{'train.steps': 6, 'train.log_every_steps': 2})
    assert (config.model.vocab_size, config.model.target_vocab_size) == (24, 17)
    train(config, tmp_path / 'run')
    lines = [line for line in read_metrics(tmp_path / 'run') if line['split'] == 'train']
    assert lines[-1]['target_loss'] < lines[0]['target_loss'] - 0.1
    found = evaluate_workdir(tmp_path / 'run', batch_size=16, beams=2)
    task = TextToTextTask(config)
    source, target = task.vocabulary, task.target_vocabulary
    assert len(source) == 24 and len(target) == 17 and '▁' in target and '▁' not in source
    assert task.fingerprint.keys() == {'pairs', 'tokenizer', 'target_tokenizer'}
    [batch] = task.training_batches(0, 1, 0, 1)
    assert batch['tokens'][0, 0] == target['[CLS]'] and (batch['source'] == source['[SEP]']).sum() == 8
    for name, pieces in (('tokenizer', source), ('target_tokenizer', target)):
        assert load_tokenizer(tmp_path / 'run' / f'{name}.json', lowercase=False).get_vocab() == pieces
    run = open_translator(tmp_path / 'run', decoding=DecodingOptions(beams=2, max_tokens=14, batch_size=16))
    [held_out_set] = parse_pair_datasets('toy:reverse:10:2-6:1', '')
    sources, targets, _ = zip(*held_out_set.read_pairs(), strict=True)
    made = run(sources, alignments=True)
    scores = translation_scores([best[0].text for best in made], targets)
    assert {name: found[name] for name in scores} == scores
    assert set(made[0][0].source_pieces) <= source.keys() and set(made[0][0].pieces) <= target.keys()
    with pytest.raises(InputError, match='the model has two tokenizers'):
        save_pretrained(tmp_path / 'exported', open_pretrained(tmp_path / 'run'))
    glue = glue_config('sst2-pretrained')
    glue.train.start_from = str(tmp_path / 'run')
    assert fill_config(glue.to_dict()).config.pairs.target_tokenizer == str(tmp_path / 'run' / 'target_tokenizer.json')
    other = config_of(**fields, **{'train.start_from': str(tmp_path / 'run'), 'pairs.train': 'toy:sort:40:7-7'})
    with pytest.raises(InputError, match=r'add --config.pairs.target_tokenizer=.*run/target_tokenizer.json$'):
        train(other, tmp_path / 'other')


class Copies:
    """A stand-in for a translator that returns each source, the last first, and reports two targets without an end."""

    unended = 2

    @property
    def unknown(self) -> 'Copies':
        return self

    def summarize_and_reset(self) -> str:
        return ''

    def iterate_targets(self, texts: list[str]) -> Iterator[tuple[int, list[Translation]]]:
        for number in reversed(range(len(texts))):
            yield number, [Translation(texts[number], 0.0, (), ())]


def test_pairs_that_are_left_out_are_not_scored_and_are_counted(monkeypatch: pytest.MonkeyPatch):
    fields = {'pairs.train': 'toy:copy:40:2-6', 'pairs.held_out': 'toy:copy:10:2-12:1; toy:copy:5:2-6:1'}
    task = TextToTextTask(config_of(**fields, **{'pairs.overlong': 'skip'}))
    monkeypatch.setattr(translator, 'make_translator', lambda *_: Copies())
    kept = [pair.number for one in task.encoded('held_out') for pair in one]
    seen: list[None] = []
    found = score_generated_targets(task, nnx.graphdef(nnx.Dict()), {}, lambda: seen.append(None))
    assert found['exact_match'] == 1.0  # Each text is compared with its own pair's target.
    assert 5 < len(kept) < 15 and len(seen) == len(kept) and found['left_out'] == 15 - len(kept)
    assert found['unended'] == 4  # of two sets
    assert task.notes[0].startswith(f'pairs.held_out: {15 - len(kept)} pairs left out (pairs.overlong), the first at ')
    assert sum(len(one) for one in task.held_out_data.length_buckets.longest_first_batches()) == len(kept)


def test_sets_are_joined_with_their_prefixes_and_what_is_cut_is_said():
    sets = {
        'pairs.train': 'toy:copy:20:2-3; toy:sort:10:9-9',
        'pairs.held_out': '',
        'pairs.prefix': ('copy: ', 'sort: '),
    }
    sets |= {'data.vocab_size': 60}
    task = TextToTextTask(config_of(**sets))
    pairs = [pair for one in task.encoded('train') for pair in one]
    copy, sort = (task.tokenizer.token_to_id(word) for word in ('copy', 'sort'))
    assert copy is not None and sort is not None  # The tokenizer's training texts include the prefixes.
    assert [pair.source[0] for pair in pairs] == 20 * [copy] + 10 * [sort]
    assert task.notes == ['pairs.train: 10 pairs cut (pairs.overlong), the first at toy:sort:10:9-9']
    assert task.rows_per_epoch() == 30


def test_a_vocabulary_that_is_mostly_filled_up_is_said():
    assert TextToTextTask(config_of()).notes == []
    task = TextToTextTask(config_of(**{'data.vocab_size': 200, 'model.vocab_size': 200}))
    [note] = task.notes
    assert note.startswith('data.vocab_size is 200, and the pairs have ') and int(note.split()[7]) < 40


def test_sets_are_mixed_by_shares_and_the_counts_are_said():
    sets = {'pairs.train': 'toy:copy:40:2-3; toy:sort:8:4-4', 'pairs.held_out': '', 'pairs.mixing_limit': 12}
    task = TextToTextTask(config_of(**sets))
    task.prepare_training()
    assert task.rows_per_epoch() == 20
    said = 'pairs.train: an epoch has 20 pairs: 12 of the 40 of toy:copy:40:2-3; 8 of the 8 of toy:sort:8:4-4'
    assert task.notes == [said]
    batches = list(task.training_batches(0, 6, 0, 1))  # 6 steps are two epochs of three batches.
    numbers = np.concatenate([batch['index'] for batch in batches])
    numbers = numbers[numbers >= 0]
    assert sorted(numbers[numbers >= 40]) == sorted([*range(40, 48)] * 2)
    assert len(numbers) == 40 and len(set(numbers[numbers < 40])) == 24
    sizes = {'pairs.overlong': 'skip', 'data.vocab_size': 60, 'pairs.train': 'toy:copy:40:2-3; toy:sort:8:20-20'}
    with pytest.raises(InputError, match="^pairs.train: the set 'toy:sort:8:20-20' gives no pair, so it cannot be"):
        TextToTextTask(config_of(**sets | sizes)).prepare_training()


def test_the_loss_of_packed_rows_is_that_of_the_same_pairs_in_rows_of_their_own():
    fields = {'data.length': 24, 'pairs.target_length': 16, 'pairs.buckets': (24,), 'pairs.held_out': ''}
    fields |= {'pairs.train': 'toy:sort:30:2-6', 'model.init_std': 0.3, 'train.label_smoothing': 0.0}
    tasks = [TextToTextTask(config_of(**fields, **{'pairs.packed': is_packed})) for is_packed in (True, False)]
    model = nnx.jit(lambda: tasks[0].make_model(nnx.Rngs(0)))()
    sums = nnx.jit(lambda model, batch: tasks[0].objective.sums(model, batch, None, None)[0]['target'])
    found = []
    for task, steps in zip(
        tasks,
        (tasks[0].training_data.steps_in_epoch(0), tasks[1].training_data.length_buckets.steps_per_epoch),
        strict=True,
    ):
        batches = [with_positions(batch) for batch in task.training_batches(0, steps, 0, 1)]
        found.append(jax.tree.map(lambda *parts: sum(parts), *jax.device_get([sums(model, rows) for rows in batches])))
        assert sum(batch['weights'].sum() for batch in batches) == sum(len(p.target) for p in task.training_data.pairs)
    assert tasks[0].rows_per_epoch() < 15
    assert_close(found[0], found[1])
    lengths = {'source_lengths', 'lengths'}  # only rows of one pair have them
    assert tasks[0].batch_shapes().keys() == batches[0].keys() - lengths and lengths < batches[0].keys()
    assert tasks[0].training_flops() > 0
    [note] = tasks[0].notes
    assert note.startswith(f'pairs.packed: {tasks[0].rows_per_epoch()} rows of 24 and 16 tokens in the first epoch, ')


def with_positions(batch: HostBatch) -> HostBatch:
    """Returns a packed or unpacked batch with position arrays, so that one program runs both kinds."""
    alone = {'source_positions': np.arange(24)[None], 'positions': np.arange(16)[None]}
    filled = {name: np.broadcast_to(row, (8, row.shape[1])).astype(np.int32) for name, row in alone.items()}
    return {name: array for name, array in (filled | batch).items() if name != 'index'}


@pytest.mark.parametrize('attention', ['bigbird(2, 1)', 'lsh(4, 2)'])
def test_an_evaluation_and_a_search_read_a_source_in_rows_of_one_length(attention: str):
    """If attention depends on the row length, evaluation and search pad a source alike, whatever its target."""
    fields = {'model.attention': attention, 'model.shared_qk': True, 'data.length': 12, 'pairs.buckets': (4, 8)}
    fields |= {'pairs.target_length': 9, 'pairs.held_out': 'toy:sum:40:1-13:1', 'model.attention_dropout_rate': 0.0}
    task = TextToTextTask(config_of(**fields))
    graph, params = nnx.split(nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0))))
    transducer = translator.make_translator(graph, params, task.encoder, DecodingOptions(), '', task.config).transducer
    seen = set()
    for batch in task.evaluation_batches(0, 1):
        lengths = batch['source_segments'][batch['index'] >= 0].sum(axis=1)
        seen.add(batch['source'].shape[1])
        assert {transducer.row_length(length, 0) for length in lengths.tolist()} == {batch['source'].shape[1]}
    assert seen == {4, 8, 12}
    noised = RunConfig(**{**task.config.__dict__, 'pairs': PairsConfig(target_length=9), 'noise': NoiseConfig('bart')})
    assert source_padded_lengths(noised) == (9, 12)


def test_of_a_decoder_that_no_search_serves_an_evaluation_gives_the_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = config_of(**{'model.decoder_attention': 'causal & random_tiles(1, 4)'})
    run = build_run(config)
    claim_workdir(tmp_path, config)
    run.task.save_assets(tmp_path)
    fingerprint = {'config': to_dict(config), **run.task.fingerprint}
    with CheckpointWriter(tmp_path, config.checkpoint) as checkpoints:
        checkpoints.save(0, run.init_random_state(), record={'fingerprint': fingerprint})
    found = evaluate_workdir(tmp_path)
    assert found['target_loss'] > 0 and 'bleu' not in found
    said = (
        "no text is generated: model.decoder_attention 'causal & random_tiles(1, 4)' depends on the length of its row"
    )
    assert any(record.getMessage().startswith(said) for record in caplog.records)
    with pytest.raises(InputError, match='depends on the length of its row'):
        open_translator(tmp_path)


def test_the_fingerprint_follows_the_pairs_and_the_tokenizer():
    found = [TextToTextTask(config_of(**fields)).fingerprint for fields in ({}, {'data.vocab_size': 23})]
    assert found[0]['pairs'] == found[1]['pairs'] and found[0]['tokenizer'] != found[1]['tokenizer']
    other = TextToTextTask(config_of(**{'pairs.held_out': 'toy:reverse:10:2-6:2'})).fingerprint
    assert other['pairs'] != found[0]['pairs'] and other['tokenizer'] == found[0]['tokenizer']


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'pairs.prefix': ('a', 'b')}, '^pairs.prefix has 2 prefixes, and pairs.train 1 datasets; write several'),
        ({'model.vocab_size': 24, 'data.vocab_size': 24, 'pairs.start': '<go>'}, "^pairs.start is '<go>'"),
        ({'pairs.train': 'lines:none.de,none.en'}, "^pairs.train: no file matches 'none.de'$"),
    ],
)
def test_what_does_not_serve_is_named(fields: dict, said: str):
    with pytest.raises(InputError, match=said):
        TextToTextTask(config_of(**fields))


def test_a_plan_needs_no_pairs():
    task = TextToTextTask.without_data(config_of(**{'pairs.train': 'lines:none.de,none.en'}))
    shapes = task.batch_shapes()
    assert shapes['source'].shape == (8, 8) and shapes['weights'].dtype == np.float32
    assert task.training_flops() == 3 * 8 * encoder_decoder_flops(task.model, 8, 8)  # Every row has the full length.

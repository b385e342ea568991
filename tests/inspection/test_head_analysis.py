"""Tests the whole analysis of heads, on a tiny encoder and a tiny language model, and its page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inspection.head_analysis import HeadOptions, analyze_heads
from efficient_attention.inspection.head_comparison import compare_pictures, parts_of_row, scored_output
from efficient_attention.inspection.head_report import heads_page, write_head_report
from tests.inference.test_generate import workdir_of
from tests.inference.tiny_checkpoint import random_text, write_checkpoint
from tests.inspection.conllu_files import KING, OLD_DOG, write_conllu
from tests.shrunk_configs import write_images

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts.


@pytest.fixture(scope='module')
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('encoder'), 'fill_mask')


def test_an_encoder_is_measured_on_texts_and_dependencies(
    encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    text = tmp_path / 'text.txt'
    text.write_text(random_text(60), encoding='utf-8')
    files = [str(write_conllu(tmp_path / f'{name}.conllu', [OLD_DOG, KING] * 2)) for name in ('dev', 'test')]
    options = HeadOptions(text=str(text), dependencies=files, limit=2, compared=2, least_cases=4)
    found = analyze_heads(encoder, options)
    assert f'{text}: 3 windows of up to 24 tokens; the first 2 are read (--limit)' in caplog.text
    assert (found['windows'], found['tokens'], found['length']) == (2, 48, 24)
    assert [(one['layer'], one['head']) for one in found['heads']] == [(0, 0), (0, 1)]
    for one in found['heads']:
        assert (
            {*one['shares']} == {*one['value_shares']} == {*('cls', 'sep', 'punctuation', 'self', 'previous', 'next')}
        )
        assert 0 < one['entropy'] < np.log(24) and 0 < one['shares']['cls'] < 1
    assert [one['relation'] for one in found['relations']] == ['all', 'det', 'nsubj']
    assert all({'accuracy', 'offset_accuracy', 'random_accuracy'} < one.keys() for one in found['relations'])
    assert {'attachment_score', 'random_attachment_score', 'offset', 'offset_attachment_score'} == {*found['probe']}
    assert found['sentences']['test'] == {'read': 4, 'left_out': 0}
    kinds = ('raw weights', 'attention rollout', 'attention flow', 'gradient times input', 'integrated gradients')
    assert {*found['agreement']['correlations']} == {*kinds} and found['agreement']['rows'] == 2
    assert found['agreement']['output'] == "the first token's final vector"
    check_report(found, tmp_path / 'new' / 'heads.v1')


def check_report(found: dict, output: Path) -> None:
    """Writes the report and checks its two files."""
    data, page = write_head_report(found, output)
    assert (data.name, page.name) == ('heads.v1.json', 'heads.v1.html')
    assert json.loads(data.read_text(encoding='utf-8')) == found
    html = page.read_text(encoding='utf-8')
    assert 'content="default-src &#39;none&#39;' in html or "content=\"default-src 'none'" in html
    assert '<script' not in html and not re.search(r'(src|href)=', html) and ' style=' not in html
    assert html.count('<circle') == 2 and html.count('<rect') == 2 * 2 * 6
    for words in ('Dependencies', 'Which picture to believe', 'Map of heads', 'nsubj', 'gradient times input'):
        assert words in html


def test_text_of_the_page_is_escaped():
    html = heads_page({'model': '<img onerror=alert(1)>'})
    assert '<img' not in html and '&lt;img onerror=alert(1)&gt;' in html


def test_a_language_model_with_memory_is_measured(tmp_path: Path):
    fields = {'data.batches': 'streams', 'data.length': 8, 'model.attention': 'causal', 'model.positions': 'none'}
    fields |= {'model.relative': 'transformer_xl', 'model.memory_length': 8}
    text = tmp_path / 'text.txt'
    text.write_text('The old dog sleeps near a', encoding='utf-8')
    found = analyze_heads(workdir_of(tmp_path, **fields), HeadOptions(text=str(text)))
    assert (found['windows'], found['tokens']) == (4, 25) and 'agreement' not in found
    assert {*found['heads'][0]['shares']} == {'first', 'punctuation', 'memory', 'self', 'previous', 'next'}
    assert all(one['shares']['next'] == 0 < one['shares']['memory'] < 1 for one in found['heads'])
    assert 'Share of weight' in heads_page(found)


def test_a_model_of_images_is_measured_in_pixels(tmp_path: Path):
    fields = {'data.source': write_images(tmp_path), 'data.units': 'pixels', 'data.image_shape': (4, 4, 3)}
    fields |= {'data.vocab_size': 257, 'data.length': 48, 'model.attention': 'causal', 'model.max_length': 48}
    images = ','.join(str(tmp_path / 'images' / f'{number}.png') for number in range(2))
    workdir = workdir_of(tmp_path, **fields)
    found = analyze_heads(workdir, HeadOptions(text=images))
    file = str(write_conllu(tmp_path / 'dev.conllu', [OLD_DOG, KING]))
    with pytest.raises(InputError, match=f'^{workdir} reads images; --dependencies needs a model of texts$'):
        analyze_heads(workdir, HeadOptions(dependencies=[file, file]))
    assert (found['windows'], found['tokens']) == (2, 96) and 'agreement' not in found
    assert {*found['heads'][0]['shares']} == {'first', 'self', 'previous', 'next', 'left', 'above'}
    assert all(0 < one['mean_distance'] < np.hypot(3, 3) for one in found['heads'])
    assert 'the pixel above' in heads_page(found)


def test_scores_of_a_classifier_are_compared_on_its_logit(tmp_path: Path):
    pipeline = ea.pipeline('attention', write_checkpoint(tmp_path, 'classification'))
    [row] = pipeline.rows.windows(random_text(8))
    output = scored_output(pipeline.rows)
    attribution = ea.pipeline('attribution', tmp_path / 'model')
    whole = attribution.explain(row)
    changed = row.ids_L.copy()
    changed[3] = pipeline.rows.encoder.mask
    named = ea.pipeline('attribution', tmp_path / 'model', label=whole['label'])
    expected = abs(named.explain(row._replace(ids_L=changed))['logit'] - whole['logit'])
    assert output.changes(row, [3]) == pytest.approx([expected], rel=1e-4) and expected > 0
    np.testing.assert_allclose(output.gradient_scores(row)['integrated gradients'], whole['scores'], rtol=1e-5)
    found = compare_pictures(pipeline, [row], 1)
    assert (found['output'], found['rows']) == ('the logit of the predicted label', 1)
    assert all(-1 <= one['mean'] <= 1 for one in found['correlations'].values()) and len(found['correlations']) == 5


def test_equal_files_of_dependencies_are_said(encoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = str(write_conllu(tmp_path / 'dev.conllu', [OLD_DOG, KING] * 2))
    analyze_heads(encoder, HeadOptions(dependencies=[file, file], least_cases=4))
    assert 'dev and test have the same sentences: heads are counted on the sentences that chose them' in caplog.text


def test_parts_of_a_row_keep_its_special_tokens(encoder: Path):
    [row] = ea.pipeline('attention', encoder).rows.windows(random_text(12))
    parts = parts_of_row(row, 9)
    assert [len(part.names) for part in parts] == [9, 7] and not parts_of_row(row, 4)
    assert all((part.names[0], part.names[-1]) == ('[CLS]', '[SEP]') for part in parts)
    assert [name for part in parts for name in part.names[1:-1]] == row.names[1:-1]
    assert [len(part.names) for part in parts_of_row(row, 12)] == [12]  # the last 2 tokens are too few


@pytest.mark.parametrize(
    'given, said',
    [
        ({}, '^there is nothing to measure: give --text, --dependencies or --removal$'),
        ({'dependencies': ['a.conllu']}, '^--dependencies names 1 file; it must be DEV TEST$'),
        ({'text': 'x', 'limit': -1}, '^--limit is -1; it must be at least 0$'),
        ({'text': 'x', 'least_cases': 0}, '^--least_cases is 0; it must be at least 1$'),
        ({'text': '{here}/none*.txt'}, "^no file matches '.*none.*txt'$"),
        ({'text': '{here}/empty.txt'}, 'empty.txt: the file has no text$'),
        ({'text': '{here}/text.txt', 'length': 25}, '^length is 25; the model has 24 positions$'),
    ],
)
def test_bad_input_is_one_line(encoder: Path, tmp_path: Path, given: dict, said: str):
    (tmp_path / 'empty.txt').write_text(' \n', encoding='utf-8')
    (tmp_path / 'text.txt').write_text('the dog', encoding='utf-8')
    if 'text' in given:
        given = given | {'text': given['text'].format(here=tmp_path)}
    with pytest.raises(InputError, match=said):
        analyze_heads(encoder, HeadOptions(**given))


def test_recurrent_models_and_models_without_tokenizer_are_refused(encoder: Path, tmp_path: Path):
    (tmp_path / 'text.txt').write_text('the dog', encoding='utf-8')
    options = HeadOptions(text=str(tmp_path / 'text.txt'))
    fields = {'model.cell': 'gru', 'model.attention': 'causal', 'model.positions': 'none'}
    with pytest.raises(InputError, match="^model.cell is 'gru'; it must be 'none': recurrent layers have no attention"):
        analyze_heads(workdir_of(tmp_path, **fields), options)
    bare = tmp_path / 'bare'
    bare.mkdir()
    for name in ('config.json', 'model.safetensors'):
        (bare / name).write_bytes((encoder / name).read_bytes())
    with pytest.raises(InputError, match='bare: no tokenizer there'):
        analyze_heads(bare, options)

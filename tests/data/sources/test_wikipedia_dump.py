"""Tests of a MediaWiki dump: which pages are read, which text remains of their markup, and errors of bad files."""

import bz2
import gzip
from pathlib import Path

import pytest

from efficient_attention.data.sources import wikipedia_dump
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.data.sources.wikipedia_dump import read_pages, wikipedia_dump_documents, wikitext_to_plain_text
from efficient_attention.errors import InputError

SAMPLE = Path(__file__).resolve().parents[3] / 'data' / 'wikipedia_dump_sample'  # 206 pages of a Wikipedia dump of 2016


def page(text: str, *, title: str = 'Dog', namespace: int = 0, more: str = '') -> str:
    revision = f'<revision><comment>not this</comment><model>wikitext</model><text>{text}</text></revision>'
    return f'<page><title>{title}</title><ns>{namespace}</ns>{more}{revision}</page>'


def write_dump(path: Path, *pages: str) -> Path:
    content = f'<mediawiki><siteinfo><sitename>W</sitename></siteinfo>{"".join(pages)}</mediawiki>'.encode()
    pack = {'.bz2': bz2.compress, '.gz': gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    return path


@pytest.mark.parametrize('name', ['dump.xml', 'dump.xml.bz2', 'dump.xml.gz'])
def test_articles_are_read_and_other_pages_are_not(tmp_path, name: str):
    pages = [
        page('A dog &amp;amp; a cat.'),
        page('#REDIRECT [[Dog]]', more='<redirect title="Dog" />'),
        page('Talk.', namespace=1),
        page('{}').replace('wikitext', 'json'),
        page('A cat.', title='Cat').replace('<model>wikitext</model>', ''),
    ]
    path = write_dump(tmp_path / name, *pages)
    assert list(wikipedia_dump_documents([path])) == ['A dog & a cat.', 'A cat.']
    assert [page.title for page in read_pages(path)] == ['Dog', 'Dog', 'Dog', 'Dog', 'Cat']
    source = open_source(f'dump:{path}')
    assert list(source.documents()) == ['A dog & a cat.', 'A cat.'] and len(source.digest()) == 64


@pytest.mark.parametrize(
    'wikitext, text',
    [
        ("'''Bold''' and ''italic''.", 'Bold and italic.'),
        ('The [[dog]] and [[cat|cats]].', 'The dog and cats.'),
        ('See [http://a.org the page] or http://b.org now.', 'See the page or now.'),
        ('One.{{cite|x=[[y]]}}<ref name="a">not this</ref><ref name="a" /> Two.', 'One. Two.'),
        ('[[File:a.jpg|thumb|A [[dog]].]]Text.\n[[Category:Dogs]]\n[[de:Hund]]', 'Text.'),
        ('== Heading ==\nFirst.\n\n\nSecond.', 'First.\n\nSecond.'),
        ('* an item\n# another\n: indented\nText after.', 'Text after.'),
        ('{| class="wikitable"\n|-\n| a || b\n|}\nAfter.', 'After.'),
        ('Before<!-- hidden --> after.<br />End&nbsp;here &lt;b&gt;.', 'Before after. End here <b>.'),
        ('__NOTOC__\nA name ({{lang|x}}; , ) and Achilles ({{x}}; , Akhilleus, ).', 'A name and Achilles (Akhilleus).'),
        ('<math>x^2</math><gallery>\nFile:a.jpg\n</gallery>', ''),
        ('Unclosed {{template and [[link and <ref>tag.', 'Unclosed {{template and [[link and <ref>tag.'),
        ('', ''),
    ],
)
def test_markup_becomes_running_text(wikitext: str, text: str):
    assert wikitext_to_plain_text(wikitext) == text


@pytest.mark.parametrize('opening', ['<ref>', '[http://a ', 'http://a ', '{|\n', ' ', ', ', '__'])
def test_openings_without_an_end_do_not_take_for_ever(opening: str):
    assert wikitext_to_plain_text('Text. ' + opening * 100_000).startswith('Text.')


def test_a_cut_or_foreign_file_is_named_with_the_line(tmp_path, monkeypatch):
    path = tmp_path / 'dump.xml'
    path.write_text('<mediawiki>\n<page><title>Dog')
    with pytest.raises(InputError, match=r'dump.xml: not the XML of a dump \(no element found: line 2'):
        list(wikipedia_dump_documents([path]))
    path.write_text('{"text": "Good."}')
    with pytest.raises(InputError, match='dump.xml: not the XML of a dump'):
        list(wikipedia_dump_documents([path]))
    path.write_text('<!DOCTYPE m [<!ENTITY a "aaaa">]>\n<mediawiki>&a;</mediawiki>')
    with pytest.raises(InputError, match='dump.xml: line 1: a document type declaration, which dumps never have'):
        list(wikipedia_dump_documents([path]))
    monkeypatch.setattr(wikipedia_dump, 'PAGE_CHARACTERS', 9)
    with pytest.raises(InputError, match='line 1: a page of more than 9 characters'):
        list(wikipedia_dump_documents([write_dump(path, page('0123456789'))]))
    packed = write_dump(tmp_path / 'dump.xml.bz2', page('Good.'))
    packed.write_bytes(packed.read_bytes()[:-8])
    with pytest.raises(InputError, match=r'dump.xml.bz2: cannot be read \(Compressed file ended'):
        list(wikipedia_dump_documents([packed]))


@pytest.mark.real
@pytest.mark.skipif(not SAMPLE.exists(), reason='needs data/wikipedia_dump_sample')
def test_a_part_of_a_real_dump_gives_the_running_text_of_its_articles():
    (path,) = SAMPLE.glob('*.bz2')
    pages = list(read_pages(path))
    documents = [text for text in open_source(f'dump:{path}').documents() if text]
    assert len(pages) == 206 and len(documents) == 105
    markup = ('[[', ']]', '{{', '}}', "''", '<ref', '{|', '==')
    assert not [(sign, text[:60]) for text in documents for sign in markup if sign in text]

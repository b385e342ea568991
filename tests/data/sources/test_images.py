"""Tests of images as documents: bytes row by row, equal shapes, files and TFDS, and errors that name a bad image."""

import numpy as np
import pytest
from PIL import Image

from efficient_attention.config.data import DataConfig
from efficient_attention.data.sources import tfds
from efficient_attention.data.sources.images import open_images
from efficient_attention.data.sources.tfds import TFDSRows
from efficient_attention.data.text.prepare import prepare_text
from efficient_attention.errors import InputError

SHAPE = (4, 3, 3)


def images_of(count, shape=SHAPE):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def write(folder, images):
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f'{number:03d}.png')
    return f'images:{folder}/*.png'


def test_files_are_read_row_by_row_in_the_order_of_their_names(tmp_path):
    images = images_of(5)
    source = open_images(write(tmp_path, images), SHAPE)
    assert list(source.documents()) == [image.tobytes() for image in images]
    first = np.frombuffer(next(source.documents()), np.uint8)
    assert first[3 * 3 + 1] == images[0, 1, 0, 1]  # the green value of row 1, column 0
    before = source.digest()
    write(tmp_path, images[::-1])
    assert open_images(source.text, SHAPE).digest() != before


def test_globs_are_read_in_the_order_that_they_are_written(tmp_path):
    images = images_of(6)
    for folder, part in (('test', images[:2]), ('train', images[2:])):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, part)
    source = open_images(f'images:{tmp_path}/train/*.png,{tmp_path}/*/*.png', SHAPE)
    assert list(source.documents()) == [image.tobytes() for image in [*images[2:], *images[:2]]]


def test_an_image_of_one_colour_is_no_blank_document(tmp_path):
    blank = np.full((1, *SHAPE), 32, np.uint8)
    assert list(open_images(write(tmp_path, blank), SHAPE).documents()) == [b' ' * 36]


def test_grey_images_have_one_channel(tmp_path):
    images = images_of(2, (4, 3))
    assert next(open_images(write(tmp_path, images), (4, 3, 1)).documents()) == images[0].tobytes()


@pytest.mark.parametrize(
    'shape, found',
    [((3, 4, 3), '3 x 4 RGB'), ((4, 3), '4 x 3 L'), ((4, 3, 4), '4 x 3 RGBA')],
)
def test_an_image_of_another_shape_is_named_with_what_it_is_and_should_be(tmp_path, shape, found):
    source = open_images(write(tmp_path, [*images_of(1), *images_of(1, shape)]), SHAPE)
    line = f'{tmp_path}/001.png: the image is {found} (height x width); data.image_shape (4, 3, 3) asks for 4 x 3 RGB'
    with pytest.raises(InputError) as caught:
        list(source.documents())
    assert str(caught.value) == line


def test_a_file_that_is_no_image_is_named(tmp_path):
    source = write(tmp_path, images_of(2, (40, 30, 3)))
    path = tmp_path / '001.png'
    whole = path.read_bytes()
    for damaged in (b'no image', whole[: len(whole) // 2], whole[:60] + bytes(60) + whole[120:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r'001\.png: not an image that can be read') as caught:
            list(open_images(source, (40, 30, 3)).documents())
        assert '\n' not in str(caught.value)


def test_what_is_no_source_of_images_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"^data.source 'images:{tmp_path}/\\*.png': no file matches"):
        open_images(f'images:{tmp_path}/*.png', SHAPE)
    with pytest.raises(InputError, match="^data.source is 'text:x'; images are read from images:<glob> and tfds:"):
        open_images('text:x', SHAPE)


def test_images_need_a_field():
    with pytest.raises(InputError, match="^data.source 'tfds:cifar10': the field is missing; write tfds:"):
        open_images('tfds:cifar10', SHAPE)


def test_images_of_tfds(monkeypatch):
    images = images_of(3)
    rows = {
        'cifar10': [{'image': image} for image in images],
        'labels': [{'image': 1}],
        'wide': [{'image': images[0].T}],
    }

    def stand_in(name: str, split: str) -> TFDSRows:
        return TFDSRows(name, {'image': None}, rows[name] if split == 'train' else [])

    monkeypatch.setattr(tfds, 'tfds_rows', stand_in)
    source = open_images('tfds:cifar10#image', SHAPE)
    assert list(source.documents()) == [image.tobytes() for image in images]
    assert source.digest() == open_images('tfds:cifar10#image', SHAPE).digest()
    assert not list(open_images('tfds:cifar10:test#image', SHAPE).documents())
    with pytest.raises(InputError, match="tfds:labels: row 0: field 'image' is no image of bytes"):
        list(open_images('tfds:labels#image', SHAPE).documents())
    with pytest.raises(InputError, match='tfds:wide: row 0: the image is 3 x 3 x 4 '):
        list(open_images('tfds:wide#image', SHAPE).documents())


@pytest.mark.parametrize('splitting', ['documents', 'end'])
def test_prepared_images_are_whole_in_every_split(tmp_path, splitting):
    images = images_of(20)
    fields = {'units': 'pixels', 'image_shape': SHAPE, 'length': 36, 'splitting': splitting, 'held_out': 0.3}
    config = DataConfig(source=write(tmp_path, images), cache=str(tmp_path / 'cache'), **fields)
    text = prepare_text(config, show_progress=False)
    assert text.splits['train'].dtype == np.uint8 and text.units.size == 257
    read = [row.tobytes() for split in text.splits.values() for row in split.reshape(-1, 36)]
    assert sorted(read) == sorted(image.tobytes() for image in images)
    for split, ids in text.splits.items():
        np.testing.assert_array_equal(text.document_starts[split], np.arange(0, len(ids), 36))
    assert len(text.splits['held_out']) == 6 * 36 if splitting == 'end' else 36 <= len(text.splits['held_out']) < 600
    assert text.rows('train', 36).start == 256 and text.unigram_counts[256] == 0

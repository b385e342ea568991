"""Tests that the committed picture is that of the script, and that its packages exist."""

import re
import xml.etree.ElementTree as xml
from pathlib import Path

from scripts.draw_architecture import BOXES, HEIGHT, WIDTH, picture

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_picture_is_that_of_the_script():
    text = (ROOT / 'docs' / 'images' / 'architecture.svg').read_text(encoding='utf-8')
    assert text == picture() and xml.fromstring(text).tag.endswith('svg')


def test_the_packages_of_the_picture_exist_and_boxes_are_inside():
    for left, top, width, height, _, _, (_, packages) in BOXES:
        assert left + width < WIDTH and top + height < HEIGHT
        assert all((ROOT / 'efficient_attention' / name).is_dir() for name in re.split(', ', packages))

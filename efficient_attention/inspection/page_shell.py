"""Joins the template, the style and the scripts of the attention page with its data."""

import base64
import functools
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / 'page_files'
SCRIPTS = ('data.js', 'drawing.js', 'lines_and_matrix.js', 'other_views.js', 'page.js')


def fill_shell(title: str, data: str, blocks: str) -> str:
    """Returns the page as HTML.

    Args:
        title: the heading, any text.
        data: the JSON of the page, as `json_text` returns it.
        blocks: the arrays of the page, as base64.
    """
    template, style, script = _files()
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    parts = {'title': html.escape(_without_halves(title)), 'policy': policy, 'style': style, 'script': script}
    parts |= {'data': data, 'blocks': blocks}
    return re.sub(r'\{\{ (\w+) \}\}', lambda found: parts[found[1]], template)


def json_text(value: Any) -> str:
    """Returns JSON that is safe inside a script element: `<` and lone halves of characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(',', ':')).replace('<', '\\u003c')
    return re.sub('[\ud800-\udfff\u2028\u2029]', lambda found: f'\\u{ord(found[0]):04x}', text)


@functools.cache
def _files() -> tuple[str, str, str]:
    """Returns the template, the style and the script."""
    template, style, *scripts = (
        (FILES / name).read_text(encoding='utf-8') for name in ('page.html', 'page.css', *SCRIPTS)
    )
    return template, style, '\n'.join(scripts)


def _hash(text: str) -> str:
    """Returns the source of a content security policy that allows only this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _without_halves(text: str) -> str:
    """Returns a text without halves of characters (lone surrogates), which no file can hold."""
    return text.encode('utf-8', 'replace').decode('utf-8')

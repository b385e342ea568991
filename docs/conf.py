"""Settings of the site, which `make docs` builds with Sphinx from the Markdown files of this folder.

Pages that the build writes itself are in docs/generated/ (docs/site_pages.py). Tutorials run in the build.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'docs')]
os.environ['PYTHONPATH'] = str(ROOT)  # for the tutorials, whose code runs in another process

import site_pages  # noqa: E402  it is next to this file

import efficient_attention  # noqa: E402

project = 'efficient-attention'
author = 'the authors of efficient-attention'
release = efficient_attention.__version__
html_title = f'efficient-attention {release}'

extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon', 'sphinx_copybutton']
exclude_patterns = ['results/data', 'tutorials/colab']
nitpicky = True
nitpick_ignore_regex = [('py:.*', '.*')]  # most types are of other libraries, whose pages a build cannot read offline
html_theme = 'furo'
html_static_path = ['static']
html_css_files = ['site.css']
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
autodoc_typehints = 'signature'
python_maximum_signature_line_length = 88
napoleon_use_rtype = False
napoleon_use_ivar = True

nb_execution_mode = 'cache'  # runs a tutorial if its code has changed; remove the folder to run all
nb_execution_cache_path = str(ROOT / 'build' / 'notebooks')
nb_execution_in_temp = True  # each tutorial writes its runs into a folder of its own
nb_execution_timeout = 600  # seconds per cell, for a machine with other load
nb_execution_raise_on_error = True
nb_merge_streams = True
copybutton_exclude = '.linenos, .gp'

SITE_PAGES = {f'{name}.md': f'/generated/{name.lower()}.md' for name in site_pages.PROJECT_PAGES}


def link_to_site(app, docname, source):  # noqa: ARG001  Sphinx gives all three
    """Points links to README.md and its neighbours to their copies in the site, and makes notebooks downloads."""
    source[0] = source[0].replace('](colab/', '](path:colab/')
    source[0] = re.sub(
        r'\]\((?:\.\./)+(\w+\.md)',
        lambda link: f']({SITE_PAGES[link[1]]}' if link[1] in SITE_PAGES else link[0],
        source[0],
    )


def keep_indented_lines(app, what, name, obj, options, lines):  # noqa: ARG001  Sphinx gives all six
    """Shows an indented block of a docstring as it is, such as the table of tasks of `pipeline`."""
    for place in reversed(range(1, len(lines))):
        above = next((line for line in reversed(lines[:place]) if line), '    ')
        if lines[place].startswith('    ') and not lines[place - 1] and re.match(r'[^ :.]', above):
            lines[place:place] = ['::', '']


def setup(app):
    """Writes the generated pages before Sphinx looks for pages."""
    app.connect('builder-inited', lambda _: site_pages.write_pages(ROOT / 'docs' / 'generated'))
    app.connect('source-read', link_to_site)
    app.connect('autodoc-process-docstring', keep_indented_lines)

"""Settings of the site, which `make docs` builds with Sphinx from the Markdown files of this folder.

Pages that the build writes itself are in docs/generated/ (docs/site_pages.py). Tutorials run in the build.
"""

import os
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'docs')]
# The tutorials run in other processes, and call the command that is next to this Python.
os.environ['PYTHONPATH'] = str(ROOT)
os.environ['PATH'] = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])

import site_pages  # noqa: E402  it is next to this file
from myst_nb.sphinx_ import NbMetadataCollector  # noqa: E402
from sphinx.pycode import ModuleAnalyzer  # noqa: E402
from sphinx.util import logging  # noqa: E402

import efficient_attention  # noqa: E402
from tests.quick_compile import FLAGS  # noqa: E402

# Tutorials compile their programs as the tests do, with hardly any optimisation, in half of the time that users need.
os.environ['XLA_FLAGS'] = f'{FLAGS} {os.environ.get("XLA_FLAGS", "")}'.strip()

project = 'efficient-attention'
author = 'the authors of efficient-attention'
release = efficient_attention.__version__
html_title = f'efficient-attention {release}'

extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon', 'sphinx_copybutton']
exclude_patterns = ['results/data', 'tutorials/colab']
nitpicky = True
# Types in signatures without a page here: of other libraries, and internal ones that users do not name.
INTERNAL_TYPES = (
    'AnyModel|AttendKeywords|AttentionOperands|AttentionPage|CompressedMemory|Context|DecoderOptions|'
    'DistillationActivations|EncodedSource|EncoderOptions|EvalOptions|LayerActivations|Pattern|PipelineOptions|'
    'SegmentMemory|Scorer|StateMemory'
)
nitpick_ignore_regex = [('py:.*', rf'(?!efficient_attention\b).*|efficient_attention\..*\.({INTERNAL_TYPES})')]
linkcheck_anchors = False  # hosts add many anchors in the browser only
html_theme = 'furo'
html_static_path = ['static']
html_css_files = ['site.css']
html_show_sphinx = html_show_copyright = False
html_copy_source = False

myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
autodoc_typehints = 'signature'
python_maximum_signature_line_length = 88
napoleon_use_rtype = False
napoleon_use_ivar = True

nb_execution_mode = 'cache'  # runs a tutorial again if its code, or a source of the package, has changed
nb_execution_cache_path = str(ROOT / 'build' / 'notebooks' / site_pages.hash_of_sources())
nb_execution_in_temp = True  # each tutorial writes its runs into a folder of its own
nb_execution_timeout = 600  # seconds per cell, for a machine with other load
nb_execution_raise_on_error = True
nb_merge_streams = True
copybutton_exclude = '.linenos, .gp'

# Most seconds of all tutorials together: five minutes, times four for a slow or busy machine.
TUTORIALS_LIMIT = 4 * 300
STARTED = time.time()

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


def link_to_public_name(app, env, node, contnode):
    """Links a type in a signature, whose name may have its module, to its entry on the API page."""
    module, _, name = node.get('reftarget', '').rpartition('.')
    if node.get('refdomain') != 'py' or name not in efficient_attention.__all__:
        return None
    if module and not module.startswith('efficient_attention.'):
        return None
    target = f'efficient_attention.{name}'
    return env.get_domain('py').resolve_xref(env, node['refdoc'], app.builder, 'obj', target, node, contnode)


def hide_overloads():
    """Makes Sphinx show the signature that the API page gives, with shapes, in place of the overloads."""
    for module in {f'efficient_attention.{module}' for module in efficient_attention._PUBLIC.values()}:
        analyzer = ModuleAnalyzer.for_module(module)  # Sphinx keeps it, and reads the overloads from it
        analyzer.analyze()
        analyzer.overloads.clear()


def check_tutorial_times(app, env):  # noqa: ARG001  Sphinx gives both
    """Prints the time of each tutorial, and warns if the tutorials of this build exceed the limit together."""
    records = [
        (name, found['exec_data'])
        for name, found in sorted(NbMetadataCollector.get_doc_data(env).items())
        if 'exec_data' in found
    ]
    for name, record in records:
        kept = '' if record['mtime'] >= STARTED else ', from an earlier build'
        print(f'[docs] {name}: {record["runtime"] or 0:.0f} s{kept}', flush=True)
    together = sum(record['runtime'] or 0 for _, record in records if record['mtime'] >= STARTED)
    print(f'[docs] tutorials of this build together: {together:.0f} s, limit {TUTORIALS_LIMIT} s', flush=True)
    if together > TUTORIALS_LIMIT:
        logging.getLogger(__name__).warning('tutorials ran for %.0f s, limit %d s', together, TUTORIALS_LIMIT)


def setup(app):
    """Writes the generated pages before Sphinx looks for pages."""
    hide_overloads()
    app.connect('builder-inited', lambda _: site_pages.write_pages(ROOT / 'docs' / 'generated'))
    app.connect('source-read', link_to_site)
    app.connect('autodoc-process-docstring', keep_indented_lines)
    app.connect('missing-reference', link_to_public_name)
    app.connect('env-updated', check_tutorial_times)

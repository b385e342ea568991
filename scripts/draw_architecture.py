"""Draws the picture of the architecture: how text becomes a trained model, and which package does which part.

python scripts/draw_architecture.py --output docs/images/architecture.svg
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled before the other imports, which are slow.

import sys
from html import escape

from absl import flags

from efficient_attention.attention.registry import NAMES
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_output

WIDTH, HEIGHT = 960, 560
STYLE = """
  text { font-family: system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 15px; fill: #1f2933; }
  .package { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; font-size: 12px; fill: #52606d; }
  .title { font-weight: 600; }
  rect { stroke: #9aa5b1; fill: #ffffff; }
  .page { fill: #f8fafc; stroke: none; }
  .data { fill: #e3f2fd; }  .model { fill: #fff3e0; }  .part { fill: #ffffff; }
  .training { fill: #e8f5e9; }  .use { fill: #f3e5f5; }  .config { fill: #eceff1; }
  path { stroke: #52606d; stroke-width: 1.6; fill: none; marker-end: url(#head); }
"""
HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<polygon points="0,0 8,4 0,8" fill="#52606d"/></marker>'
)
# Left, top, width, height, colour, title, (lines, packages).
BOXES = (
    (30, 24, 900, 56, 'config', 'config: one file per experiment chooses everything below', ((), 'config')),
    (30, 130, 190, 60, 'data', 'text, tables, pairs', ((), 'data/sources')),
    (30, 230, 190, 60, 'data', 'token ids', ((), 'data/tokenizers')),
    (30, 330, 190, 76, 'data', 'batch', (('rows, segments, labels',), 'data/batching')),
    (270, 130, 390, 276, 'model', 'model', ((), 'models')),
    (290, 182, 160, 52, 'part', 'embeddings', ((), 'modules')),
    (290, 254, 160, 52, 'part', 'layers', ((), 'modules, recurrence')),
    (290, 326, 160, 60, 'part', 'heads', ((), 'models')),
    (
        480,
        182,
        162,
        204,
        'part',
        'attention',
        ((f'{len(NAMES)} mechanisms,', 'patterns of keys,', 'several backends'), 'attention'),
    ),
    (710, 130, 220, 60, 'training', 'loss and metrics', ((), 'objectives, tasks')),
    (710, 230, 220, 60, 'training', 'gradients, update', ((), 'training')),
    (710, 330, 220, 76, 'training', 'workdir', (('checkpoints, report',), 'workdir')),
    (30, 460, 280, 76, 'use', 'evaluate, predict, generate', (('ea.load, ea.pipeline',), 'inference')),
    (
        340,
        460,
        280,
        76,
        'use',
        'smaller models',
        (('distil, prune, 8-bit integers',), 'distillation, pruning, interop'),
    ),
    (650, 460, 280, 76, 'use', 'Hugging Face folders', (('in and out',), 'interop')),
)
ARROWS = (
    'M125,190 V228',
    'M125,290 V328',
    'M220,368 C255,368 235,208 288,208',
    'M370,234 V252',
    'M370,306 V324',
    'M450,280 H478',
    'M660,160 H708',
    'M820,190 V228',
    'M820,290 V328',
    'M710,260 H662',
    'M820,406 V434 H170 V458',
    'M480,434 V458',
    'M790,434 V458',
)


def main() -> None:
    """Writes the picture."""
    options = flags.FlagValues()
    define_output('SVG file.', options=options)
    parse_flags(sys.argv, ('output',), options=options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(picture(), encoding='utf-8')


def picture() -> str:
    """Returns the SVG text."""
    arrows = '\n'.join(f'<path d="{path}"/>' for path in ARROWS)
    boxes = '\n'.join(box(*one) for one in BOXES)
    about = 'Text becomes token ids and batches. A model of embeddings, layers with attention, and heads gives a loss.'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">
<title>Architecture of efficient-attention</title>
<desc>{about}</desc>
<style>{STYLE}</style>
<defs>{HEAD}</defs>
<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="12"/>
{boxes}
{arrows}
</svg>
"""


def box(
    left: int, top: int, width: int, height: int, colour: str, title: str, rest: tuple[tuple[str, ...], str]
) -> str:
    """Returns a box with its title, its lines, and the names of the packages on its last line."""
    lines, packages = rest
    middle = left + width // 2
    texts = [f'<text class="title" text-anchor="middle" x="{middle}" y="{top + 24}">{escape(title)}</text>']
    texts += [
        f'<text text-anchor="middle" x="{middle}" y="{top + 44 + 20 * number}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    place = top + 44 + 20 * len(lines)
    texts.append(f'<text class="package" text-anchor="middle" x="{middle}" y="{place}">{escape(packages)}</text>')
    rect = f'<rect class="{colour}" x="{left}" y="{top}" width="{width}" height="{height}" rx="8"/>'
    return '\n'.join([rect, *texts])


if __name__ == '__main__':
    run_command(main)

"""Shows what the heads of a model do: writes `heads.json` and a self-contained page `heads.html`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.workdir.report import render_page

CELL, GAP = 22, 30  # width of a head's square, and room for labels, in units of the drawing
MAP = 800  # width and height of the map of heads, without its margin
MARGIN = 40  # room for the labels at the right end
COLOURS = 8  # number of colours in the style of all pages
CLASS_NAMES = {
    'cls': '[CLS]',
    'sep': '[SEP]',
    'punctuation': 'punctuation',
    'first': 'the first token',
    'memory': 'earlier windows',
    'self': 'itself',
    'previous': 'the previous token',
    'next': 'the next token',
    'left': 'the pixel to the left',
    'above': 'the pixel above',
}


def write_head_report(found: Mapping[str, Any], output: Path) -> list[Path]:
    """Writes the result of `analyze_heads` as JSON and as a page, and returns both paths.

    Args:
        found: the result.
        output: the path of both files without their suffixes.
    """
    texts = {'.json': json.dumps(found, indent=1) + '\n', '.html': heads_page(found)}
    paths = [output.parent / f'{output.name}{suffix}' for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomically(path, text)
    return paths


def heads_page(found: Mapping[str, Any]) -> str:
    """Returns the page of a result of `analyze_heads` as HTML; it makes no requests and has no scripts."""
    heads = found.get('heads', [])
    return render_page(
        'heads.html',
        title=f'What the heads of {Path(found["model"]).name} do',
        data={'charts': []},  # this page has no script
        found=found,
        grids=head_grids(heads),
        map=map_drawing(found.get('map', [])),
        cell=CELL,
        gap=GAP,
        size=MAP + 2 * MARGIN,
        tables=[statistics_table(heads)] if heads else [],
        relations=relation_table(found.get('relations', [])),
        removal=removal_table(found.get('removal', {})),
        removed_grids=removal_grids(found.get('removal', {})),
        correlations=correlation_table(found.get('agreement', {}).get('correlations', {})),
    )


def head_grids(heads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a drawing per class of keys: a square per head, the darker the larger its share of weight."""
    found = []
    for name in heads[0]['shares'] if heads else ():
        for kind, says in (('shares', ''), ('value_shares', ', weighed by the length of values')):
            if name in heads[0][kind]:
                cells = [(one['layer'], one['head'], one[kind][name]) for one in heads]
                found.append({'title': f'{CLASS_NAMES.get(name, name)}{says}'} | grid_drawing(cells))
    return found


def grid_drawing(cells: Sequence[tuple[int, int, float]], *, is_share: bool = True) -> dict[str, Any]:
    """Returns the squares of a drawing with a row per layer and a column per head, and its size.

    A share from 0 to 1 is a shade as it is; other values are shades from the least to the largest.
    """
    values = [value for _, _, value in cells]
    low, width = (0.0, 1.0) if is_share else (min(values), max(values) - min(values) or 1.0)
    rows, columns = max(layer for layer, _, _ in cells) + 1, max(head for _, head, _ in cells) + 1
    squares = [
        {
            'x': GAP + CELL * head,
            'y': GAP + CELL * layer,
            'shade': f'{min(max((value - low) / width, 0.0), 1.0):.3f}',
            'says': f'layer {layer}, head {head}: ' + (f'{value:.1%}' if is_share else f'{value:.4f}'),
        }
        for layer, head, value in cells
    ]
    size = {'width': GAP + CELL * columns, 'height': GAP + CELL * rows}
    return size | {'squares': squares, 'rows': range(rows), 'columns': range(columns)}


def map_drawing(heads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a point per head of the map, with its place in the drawing and the colour of its layer."""
    if not heads:
        return []
    lows = [min(one['place'][axis] for one in heads) for axis in (0, 1)]
    width = max(max(one['place'][axis] for one in heads) - lows[axis] for axis in (0, 1)) or 1.0
    return [
        {
            'x': f'{MARGIN + MAP * (one["place"][0] - lows[0]) / width:.1f}',
            'y': f'{MARGIN + MAP * (one["place"][1] - lows[1]) / width:.1f}',
            'colour': f'var(--c{one["layer"] % COLOURS})',
            'label': f'{one["layer"]}.{one["head"]}',
        }
        for one in heads
    ]


def statistics_table(heads: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the rows of the table of all heads: the column names, then a row per head."""
    names = list(heads[0]['shares'])
    has_values = bool(heads[0]['value_shares'])
    columns = [CLASS_NAMES.get(name, name) for name in names]
    rows = [['head', 'entropy, nats', 'mean distance', *columns]]
    rows[0] += [f'{name}, by values' for name in columns] if has_values else []
    for one in heads:
        shares = [one['shares'][name] for name in names] + [one['value_shares'][name] for name in names if has_values]
        row = [f'{one["layer"]}.{one["head"]}', f'{one["entropy"]:.2f}', f'{one["mean_distance"]:.1f}']
        rows.append(row + [f'{share:.1%}' for share in shares])
    return rows


def relation_table(relations: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the rows of the table of relations: the column names, then a row per relation; [] without relations."""
    if not relations:
        return []
    rows = [['relation', 'cases', 'head', 'direction', 'accuracy', 'best offset', 'its accuracy', 'random weights']]
    for one in relations:
        row = [one['relation'], f'{one["cases"]:,}', f'{one["layer"]}.{one["head"]}', one['direction']]
        row += [f'{one["accuracy"]:.1%}', f'{one["offset"]:+d}', f'{one["offset_accuracy"]:.1%}']
        rows.append([*row, f'{one["random_accuracy"]:.1%}'])
    return rows


def removal_table(removal: Mapping[str, Any]) -> list[list[str]]:
    """Returns the rows of the table of removed heads: the column names, then a row per number; [] without removal."""
    if not removal:
        return []
    rows = [['heads removed', 'least important first', 'random orders, mean', 'standard deviation']]
    rows.append(['0', f'{removal["all"]:.4f}', f'{removal["all"]:.4f}', ''])
    for one, other in zip(removal['by_importance'], removal['by_chance'], strict=True):
        rows.append([f'{one["removed"]}', f'{one["value"]:.4f}', f'{other["mean"]:.4f}', f'{other["deviation"]:.4f}'])
    return rows


def removal_grids(removal: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns drawings of the metric without each head, and with one head per layer, the darker the larger."""
    grids = {'without': 'without this head', 'only': 'with only this head in its layer'}
    return [
        {'title': f'{removal["metric"]} {says}'}
        | grid_drawing([(one['layer'], one['head'], one['value']) for one in removal[name]], is_share=False)
        for name, says in (grids.items() if removal else ())
    ]


def correlation_table(correlations: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Returns the rows of the table of rank correlations, the highest first; [] without correlations."""
    ordered = sorted(correlations.items(), key=lambda one: -one[1]['mean'])
    rows = [[name, f'{one["mean"]:.3f}', f'{one["deviation"]:.3f}'] for name, one in ordered]
    return [['scores of tokens', 'mean rank correlation', 'standard deviation'], *rows] if rows else []

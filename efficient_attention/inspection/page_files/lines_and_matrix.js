// The views `head` (lines between queries and keys) and `matrix` (a heat map of one head).
const ROW = 22; // height of a token in the view of lines
const MOST_SQUARES = 12; // heads that have a square of their own beside a token

// Whether the choice of texts and of special tokens lets a pair through.
function isChosen(frame, query, key) {
  const [from, to] = [frame.texts[query], frame.keyTexts[key]];
  if (state.hideSpecials && (from === null || to === null)) return false;
  return state.pair === 'all' || `${from}${to}` === state.pair;
}

function eachChosenKey(head, query, visit) {
  head.eachKey(query, (key, weight) => { if (isChosen(head.frame, query, key)) visit(key, weight); });
}

const nameOf = (tokens, place) => `${place} “${labelOf(tokens[place])}”`;

// A line of text per head: the strongest keys of a query, or the strongest readers of a key.
function strongest(heads, found, tokens, says) {
  return heads.map((head, place) => {
    const edges = [...found[place]].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    const most = edges.slice(0, 6).map(([other, weight]) => `${nameOf(tokens, other)} ${shown(weight)}`).join(', ');
    const more = edges.length > 6 ? `, and ${edges.length - 6} more` : '';
    return `head ${head.name} ${says}: ${most || 'nothing'}${more}`;
  }).slice(0, 4).join('\n') + (heads.length > 4 ? `\n… and ${heads.length - 4} more heads` : '');
}

// What a query reads, or who reads a key: a Map of weights for each head.
function edgesOf(heads, side, place) {
  return heads.map((head) => {
    const found = side === 'query' ? head.keysOf(place) : head.readersOf(place);
    for (const other of found.keys()) {
      const pair = side === 'query' ? [place, other] : [other, place];
      if (!isChosen(head.frame, ...pair)) found.delete(other);
    }
    return found;
  });
}

function sayEdges(heads, side, place) {
  const { frame } = heads[0];
  const found = edgesOf(heads, side, place);
  if (side === 'query') say(`query ${nameOf(frame.tokens, place)}\n${strongest(heads, found, frame.keys, 'reads')}`);
  else say(`key ${nameOf(frame.keys, place)}\n${strongest(heads, found, frame.tokens, 'is read by')}`);
}

class LinesView {
  constructor() {
    this.label = 'Head';
    this.isMulti = true;
    this.hover = null; // {side: 'query' or 'key', place}
    this.scroller = new Scroller(this, 'Lines from each query to the keys that it reads');
    this.node = element('div', {}, this.scroller.node, element('p', { class: 'caption' },
      'Left: queries; right: keys. The stronger a line, the larger the weight. Only lines of queries in view are drawn. ' +
      'Point at a token to see only its lines, click to keep it.'));
  }

  refresh() { this.scroller.later(); }

  offset() { return state.frame.isOwn ? state.frame.memory : 0; }

  size(width) {
    const { frame } = state;
    return [Math.min(width, 1140), Math.max(frame.tokens.length + this.offset(), frame.keys.length) * ROW + 30];
  }

  draw(surface, x, y, width, height) {
    const { frame } = state;
    const full = this.size(this.scroller.node.clientWidth)[0];
    const edges = { left: full * 0.35, right: full * 0.65 };
    const first = Math.floor((y - 30) / ROW);
    const last = Math.ceil((y + height) / ROW);
    const range = (offset, count) => [Math.max(0, first - offset), Math.min(count, last - offset)];
    const [firstQuery, lastQuery] = range(this.offset(), frame.tokens.length);
    const [firstKey, lastKey] = range(0, frame.keys.length);
    this.place = (row) => row * ROW + 30 + ROW / 2 - y;
    const focus = this.focus();
    if (y < 30) {
      surface.text(edges.left - 18, 14 - y, 'queries', { anchor: 'end', fill: colour('faint'), size: 12 });
      surface.text(edges.right + 18, 14 - y, 'keys', { fill: colour('faint'), size: 12 });
    }
    if (lastKey > firstKey && firstKey < frame.memory) {
      surface.rect(edges.right, this.place(firstKey) - ROW / 2, full - edges.right,
        (Math.min(lastKey, frame.memory) - firstKey) * ROW, colour('memory'));
    }
    this.drawFocus(surface, focus, edges, full);
    const queries = focus && focus.side === 'query' ? [focus.place] : Array.from({ length: lastQuery - firstQuery }, (_, n) => firstQuery + n);
    const lines = focus && focus.side === 'key' ? this.drawReaders(surface, focus.place, edges)
      : this.drawLines(surface, queries, edges, Boolean(focus));
    const look = { size: 13, most: edges.left - 30 };
    for (let query = firstQuery; query < lastQuery; query += 1) {
      const fill = frame.texts[query] === null ? colour('faint') : colour('ink');
      surface.text(edges.left - 18, this.place(query + this.offset()), labelOf(frame.tokens[query]), { ...look, fill, anchor: 'end' });
    }
    for (let key = firstKey; key < lastKey; key += 1) {
      const fill = frame.keyTexts[key] === null ? colour('faint') : colour('ink');
      surface.text(edges.right + 18, this.place(key), labelOf(frame.keys[key]), { ...look, fill });
    }
    if (focus) this.drawSquares(surface, focus, edges, focus.side === 'query' ? [firstKey, lastKey] : [firstQuery, lastQuery]);
    this.scroller.count({ lines, heads: chosenHeads().length, tokens: lastQuery - firstQuery, keys: lastKey - firstKey });
  }

  focus() { return this.hover || this.kept || null; }

  drawFocus(surface, focus, edges, full) {
    if (!focus) return;
    const row = focus.side === 'query' ? focus.place + this.offset() : focus.place;
    const [start, end] = focus.side === 'query' ? [0, edges.left] : [edges.right, full];
    surface.rect(start, this.place(row) - ROW / 2, end - start, ROW, colour('chosen'));
  }

  line(surface, head, query, key, weight, edges, isFocus) {
    const share = Math.min(1, Math.abs(weight) / (head.most() || 1));
    const stroke = weight < 0 ? colour('negative') : chosenHeads().length > 1 ? headColour(head.number) : colour('weight');
    surface.line(edges.left - 12, this.place(query + this.offset()), edges.right + 12, this.place(key), stroke,
      isFocus ? Math.sqrt(share) : share, 0.8 + 2.2 * share);
  }

  drawLines(surface, queries, edges, isFocus) {
    let count = 0;
    for (const head of chosenHeads()) {
      for (const query of queries) {
        eachChosenKey(head, query, (key, weight) => {
          count += 1;
          this.line(surface, head, query, key, weight, edges, isFocus);
        });
      }
    }
    return count;
  }

  drawReaders(surface, key, edges) {
    const heads = chosenHeads();
    const found = edgesOf(heads, 'key', key);
    heads.forEach((head, place) => found[place].forEach(
      (weight, query) => this.line(surface, head, query, key, weight, edges, true)));
    return found.reduce((sum, one) => sum + one.size, 0);
  }

  // Squares beside the tokens at the other side, one for each head, as strong as its weight.
  drawSquares(surface, focus, edges, [first, last]) {
    const heads = chosenHeads().slice(0, MOST_SQUARES);
    const found = edgesOf(heads, focus.side, focus.place);
    const isQuery = focus.side === 'query';
    const width = Math.min(12, 40 / heads.length);
    heads.forEach((head, number) => found[number].forEach((weight, place) => {
      if (place < first || place >= last) return;
      const fill = weight < 0 ? colour('negative') : heads.length > 1 ? headColour(head.number) : colour('weight');
      const start = isQuery ? edges.right + 4 : edges.left - 4 - width;
      const shift = heads.length > 1 ? (number + 1 - heads.length) * width : 0;
      surface.rect(start + (isQuery ? shift : -shift), this.place(isQuery ? place : place + this.offset()) - 7,
        width - 1, 14, fill, Math.sqrt(Math.min(1, Math.abs(weight) / (head.most() || 1))));
    }));
  }

  point(x, y, isClick) {
    const before = JSON.stringify([this.hover, this.kept]);
    this.hover = x === null ? null : this.tokenAt(x, y);
    if (isClick) {
      this.kept = this.hover;
      if (this.kept && this.kept.side === 'query') state.query = this.kept.place;
    }
    if (JSON.stringify([this.hover, this.kept]) === before) return;
    const focus = this.focus();
    if (focus) sayEdges(chosenHeads(), focus.side, focus.place);
    else say('');
    this.refresh();
  }

  tokenAt(x, y) {
    const { frame } = state;
    const full = this.size(this.scroller.node.clientWidth)[0];
    const row = Math.floor((y + this.scroller.y - 30) / ROW);
    const side = x < full * 0.35 ? 'query' : x > full * 0.65 ? 'key' : null;
    const place = side === 'query' ? row - this.offset() : row;
    const count = side === 'query' ? frame.tokens.length : frame.keys.length;
    return side && place >= 0 && place < count ? { side, place } : null;
  }

  key(event) {
    if (event.key === 'Escape') this.kept = null;
    else if (!moveQuery(event)) return false;
    else this.kept = { side: 'query', place: state.query };
    if (this.kept) {
      sayEdges(chosenHeads(), 'query', state.query);
      this.scroller.show(0, (state.query + this.offset()) * ROW, 1, ROW + 30);
    }
    this.refresh();
    return true;
  }

  svg() { return this.scroller.svg(); }
}

// Moves the chosen query with the arrow keys; returns whether the key was one of them.
function moveQuery(event) {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step) return false;
  state.query = Math.min(state.frame.tokens.length - 1, Math.max(0, state.query + step));
  return true;
}

class MatrixView {
  constructor() {
    this.label = 'Matrix';
    this.isMulti = false;
    this.scroller = new Scroller(this, 'Heat map of one head: queries downwards, keys to the right');
    this.zoom = element('select', { 'aria-label': 'Size of a cell', onchange: () => this.refresh() },
      ...[2, 4, 8, 14, 22].map((size) => element('option', { value: size }, `${size} px`)));
    this.frame = null;
    this.legend = element('p', { class: 'caption' }, 'Rows are queries, columns are keys. Grey: not read, weight exactly 0. ' +
      'Yellow band: keys of earlier segments. Hatched: a weight too small for the size of this page.');
    this.node = element('div', {}, element('div', { class: 'tools' }, element('label', {}, 'cell ', this.zoom)),
      this.scroller.node, this.legend);
  }

  refresh() {
    const { frame } = state;
    if (this.frame !== frame) {
      this.frame = frame;
      const most = Math.max(frame.tokens.length, frame.keys.length);
      this.zoom.value = String([22, 14, 8, 4].find((size) => size * most <= 1000) || 2);
      this.margin = this.margins(frame);
    }
    this.scroller.later();
  }

  // Room for the labels at the left and at the top.
  margins(frame) {
    const widest = (tokens) => Math.min(130, 14 + Math.max(24, ...tokens.slice(0, 3000).map((token) => labelOf(token).length * 7.5)));
    return [widest(frame.tokens), widest(frame.keys)];
  }

  get cell() { return Number(this.zoom.value); }

  size() {
    const { frame } = state;
    const [left, top] = this.margin || [0, 0];
    return [left + frame.keys.length * this.cell + 2, top + frame.tokens.length * this.cell + 2];
  }

  draw(surface, x, y, width, height) {
    const { frame } = state;
    const { cell } = this;
    const [left, top] = this.margin;
    const head = oneHead();
    const range = (start, length, margin, count) => [Math.floor(start / cell), Math.min(count, Math.ceil((start + length - margin) / cell))];
    const [firstQuery, lastQuery] = range(y, height, top, frame.tokens.length);
    const [firstKey, lastKey] = range(x, width, left, frame.keys.length);
    const at = (query, key) => [left + key * cell - x, top + query * cell - y];
    const counts = { cells: 0, unread: 0 };
    const palette = { weight: colour('weight'), negative: colour('negative'), unread: colour('unread'), dim: colour('faint') };
    for (let query = firstQuery; query < lastQuery; query += 1) {
      this.drawRow(surface, head, query, [firstKey, lastKey], at, palette, counts);
    }
    if (this.spot && this.spot.query < lastQuery) surface.frame(...at(this.spot.query, this.spot.key), cell, cell, colour('mark'));
    surface.rect(0, 0, left, height, colour('card'));
    surface.rect(0, 0, width, top, colour('card'));
    if (frame.memory > firstKey) {
      const end = Math.min(frame.memory, lastKey);
      surface.rect(at(0, firstKey)[0] < left ? left : at(0, firstKey)[0], 0, (end - firstKey) * cell, top, colour('memory'));
      surface.rect(at(0, frame.memory)[0] - 1, 0, 2, height, colour('mark'), 0.6);
    }
    this.drawLabels(surface, [firstQuery, lastQuery], [firstKey, lastKey], at);
    this.scroller.count({ ...counts, heads: 1, tokens: lastQuery - firstQuery, keys: lastKey - firstKey });
  }

  drawRow(surface, head, query, [firstKey, lastKey], at, palette, counts) {
    const found = head.keysOf(query);
    const most = head.most() || 1;
    const size = this.cell - (this.cell > 6 ? 1 : 0);
    let start = null; // unread cells side by side are one rectangle
    for (let key = firstKey; key <= lastKey; key += 1) {
      const weight = key < lastKey ? found.get(key) : undefined;
      const isUnread = key < lastKey && weight === undefined && head.isUnread(query, key);
      if (isUnread && start === null) start = key;
      if (!isUnread && start !== null) {
        const [x, y] = at(query, start);
        surface.rect(x, y, (key - start) * this.cell - (this.cell - size), size, palette.unread);
        counts.unread += key - start;
        start = null;
      }
      if (key === lastKey || isUnread) continue;
      const [x, y] = at(query, key);
      if (weight === undefined) {
        if (this.cell > 6) surface.line(x, y + size, x + size, y, palette.dim, 0.35, 1);
      } else if (isChosen(head.frame, query, key)) {
        counts.cells += 1;
        surface.rect(x, y, size, size, weight < 0 ? palette.negative : palette.weight, 0.06 + 0.94 * Math.min(1, Math.abs(weight) / most));
      }
    }
  }

  drawLabels(surface, [firstQuery, lastQuery], [firstKey, lastKey], at) {
    const { frame } = state;
    const [left, top] = this.margin;
    const step = Math.max(1, Math.ceil(12 / this.cell)); // small cells: not each token has room for its label
    const middle = this.cell / 2;
    const look = { size: this.cell < 12 ? 10 : 12, fill: colour('soft') };
    for (let query = Math.ceil(firstQuery / step) * step; query < lastQuery; query += step) {
      const y = at(query, 0)[1] + middle;
      if (y > top) surface.text(left - 6, y, labelOf(frame.tokens[query]), { ...look, anchor: 'end', most: left - 10 });
    }
    for (let key = Math.ceil(firstKey / step) * step; key < lastKey; key += step) {
      const x = at(0, key)[0] + middle;
      if (x > left) surface.text(x, top - 6, labelOf(frame.keys[key]), { ...look, isUpright: true, most: top - 10 });
    }
    surface.rect(0, 0, left, top, colour('card'));
  }

  point(x, y, isClick) {
    const before = this.spot;
    this.spot = x === null ? null : this.pairAt(x, y);
    if (isClick && this.spot) state.query = this.spot.query;
    if (JSON.stringify(before) === JSON.stringify(this.spot)) return;
    this.say();
    this.refresh();
  }

  say() { say(this.spot ? pairText(oneHead(), this.spot.query, this.spot.key) : ''); }

  pairAt(x, y) {
    const { frame } = state;
    const [left, top] = this.margin;
    const key = Math.floor((x - left + this.scroller.x) / this.cell);
    const query = Math.floor((y - top + this.scroller.y) / this.cell);
    const isIn = x >= left && y >= top && key < frame.keys.length && query < frame.tokens.length;
    return isIn ? { query, key } : null;
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return false;
    const { query, key } = this.spot || { query: state.query, key: 0 };
    const within = (place, count) => Math.min(count - 1, Math.max(0, place));
    this.spot = { query: within(query + step[0], state.frame.tokens.length), key: within(key + step[1], state.frame.keys.length) };
    state.query = this.spot.query;
    this.scroller.show(this.spot.key * this.cell, this.spot.query * this.cell, this.cell + this.margin[0], this.cell + this.margin[1]);
    this.say();
    this.refresh();
    return true;
  }

  svg() { return this.scroller.svg(); }
}

// What the page knows of a pair: its weight, or why there is none, and the rounds of LSH that found it.
function pairText(head, query, key) {
  const { frame } = head;
  const weight = head.keysOf(query).get(key);
  const none = head.isUnread(query, key) ? 'not read, exactly 0' : 'too small for the size of this page';
  const inRounds = (rounds) => (rounds.length ? `round${rounds.length > 1 ? 's' : ''} ${rounds.join(', ')}` : 'no round');
  const rounds = head.rounds && head.roundsOf(query, key);
  const memory = key < frame.memory ? ', of an earlier segment' : '';
  return `head ${head.name}: query ${nameOf(frame.tokens, query)} → key ${nameOf(frame.keys, key)}${memory}\n` +
    `weight ${weight === undefined ? none : shown(weight)}` +
    (rounds ? `; same or next chunk in ${inRounds(rounds.chunk)}, same hash bucket in ${inRounds(rounds.bucket)}` : '');
}

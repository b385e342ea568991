// The views `model` (thumbnails), `neuron` (queries times keys), `text` (shaded running text) and `image`.
class ModelView {
  constructor() {
    this.label = 'Model';
    this.isMulti = true;
    this.node = element('div', {});
  }

  refresh() {
    if (this.frame === state.frame) return;
    this.frame = state.frame;
    const { layers } = state.frame;
    const size = Math.min(96, Math.max(34, Math.floor(1020 / Math.max(...layers.map((layer) => layer.heads.length))) - 18));
    const rows = layers.map((layer, number) => element('tr', {}, element('th', { scope: 'row' }, `layer ${layer.name}`),
      ...layer.heads.map((head, place) => element('td', {}, this.button(head, number, place, size)))));
    this.node.replaceChildren(
      element('div', { class: 'card models' }, element('table', {}, element('tbody', {}, ...rows))),
      element('p', { class: 'caption' }, 'A square for each head: queries downwards, keys to the right. Darker: more weight. ' +
        'Grey: not read. If not all edges fit in the page, the number is the share of the weight that it has. ' +
        'Click on a head to see its lines.'));
    this.node.dataset.heads = layers.reduce((sum, layer) => sum + layer.heads.length, 0);
  }

  button(head, layer, place, size) {
    const canvas = thumbnail(head);
    canvas.style.width = `${size}px`;
    canvas.style.height = `${Math.max(8, Math.round(size * Math.min(1.5, Math.max(0.3, head.L / head.M))))}px`;
    const share = head.record.most === null ? '' : `: ${percent(head.record.share)}`;
    const onclick = () => { choose(layer, [place]); show('head'); };
    const label = `layer ${state.frame.layers[layer].name}, head ${head.number}${share && `${share} of the weight is in this page`}`;
    return element('button', { class: 'thumbnail', type: 'button', 'aria-label': label, title: label, onclick }, canvas,
      `${head.number}${share}`);
  }

  svg() {
    const size = 60;
    const { layers } = state.frame;
    const surface = new SvgSurface(60 + (size + 8) * Math.max(...layers.map((layer) => layer.heads.length)), layers.length * (size + 22) + 8);
    layers.forEach((layer, row) => {
      surface.text(4, row * (size + 22) + 8 + size / 2, `layer ${layer.name}`, { size: 11 });
      layer.heads.forEach((head, column) => {
        const [x, y] = [56 + column * (size + 8), row * (size + 22) + 8];
        surface.image(x, y, size, size, thumbnail(head));
        surface.text(x + size / 2, y + size + 8, String(head.number), { size: 10, anchor: 'middle' });
      });
    });
    return surface.toString();
  }
}

const percent = (share) => `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0)} %`;

class NeuronView {
  constructor() {
    this.label = 'Neuron';
    this.isMulti = false;
    this.scroller = new Scroller(this, 'Query times key, number by number');
    this.missing = element('p', { class: 'card running' });
    this.node = element('div', {}, this.missing, this.scroller.node, element('p', { class: 'caption' },
      'Blue: above 0; orange: below 0. The logit is the factor times the sum of the products. Biases, relative terms and masks ' +
      'are not part of it. Point at a row for its numbers; the arrow keys choose another query.'));
  }

  refresh() {
    const head = oneHead();
    this.found = head.neurons();
    this.missing.hidden = Boolean(this.found);
    this.scroller.node.hidden = !this.found;
    this.missing.textContent = head.record.neurons === undefined
      ? 'This page has no queries and keys for this head: the mechanism does not compare them, or they did not fit.' : '';
    this.scroller.later();
  }

  // The columns: token, key, product, sum, weight.
  columns(width) {
    const part = Math.max(128, Math.floor((width - 190 - 200) / 2) - 16);
    return { name: 0, key: 150, product: 150 + part + 16, logit: 150 + 2 * part + 32, weight: 150 + 2 * part + 136, part };
  }

  size(width) {
    return this.found ? [Math.max(width, 650), 74 + state.frame.keys.length * ROW] : [width, 0];
  }

  draw(surface, x, y, width, height) {
    if (!this.found) return;
    const { frame } = state;
    const full = this.size(this.scroller.node.clientWidth)[0];
    const at = this.columns(full);
    const query = this.found.query(state.query);
    const weights = oneHead().keysOf(state.query);
    const first = Math.max(0, Math.floor(y / ROW));
    const last = Math.min(frame.keys.length, Math.ceil((y + height - 74) / ROW));
    const scales = this.scales(query, first, last);
    for (let key = first; key < last; key += 1) {
      this.drawKey(surface, key, 74 + key * ROW - y, { at, x, query, weights, scales });
    }
    surface.rect(0, 0, width, 74, colour('card'));
    const look = { size: 12, fill: colour('faint') };
    ['key', 'product', 'logit', 'weight'].forEach((name) => {
      const label = { product: 'query × key', logit: `${this.factor()}sum` }[name] || name;
      surface.text(at[name] - x, 60, label, look);
    });
    surface.text(8 - x, 24, labelOf(frame.tokens[state.query]), { size: 14, most: 134 });
    surface.text(8 - x, 42, `query ${state.query}`, look);
    this.strip(surface, query, at.key - x, 14, at.part, 26, scales.query);
    this.scroller.count({ rows: last - first, heads: 1, numbers: query.length });
  }

  factor() {
    const { scale } = oneHead();
    return scale === null ? '' : `${Number(scale.toPrecision(4))} × `;
  }

  scales(query, first, last) {
    const scales = { query: largestOf(query), key: 0, product: 0 };
    for (let key = first; key < last; key += 1) {
      const vector = this.found.key(key);
      scales.key = Math.max(scales.key, largestOf(vector));
      scales.product = Math.max(scales.product, largestOf(vector.map((value, place) => value * query[place])));
    }
    return scales;
  }

  drawKey(surface, key, y, { at, x, query, weights, scales }) {
    const { frame } = state;
    const head = oneHead();
    const vector = this.found.key(key);
    const product = vector.map((value, place) => value * query[place]);
    if (key < frame.memory) surface.rect(0, y, 142, ROW, colour('memory'));
    if (this.row === key) surface.rect(0, y, 146, ROW, colour('chosen'));
    surface.text(8 - x, y + ROW / 2, labelOf(frame.keys[key]), { size: 13, most: 134 });
    this.strip(surface, vector, at.key - x, y + 3, at.part, ROW - 6, scales.key);
    this.strip(surface, product, at.product - x, y + 3, at.part, ROW - 6, scales.product);
    const logit = (head.scale === null ? 1 : head.scale) * sumOf(product);
    surface.text(at.logit - x, y + ROW / 2, logit.toFixed(2), { size: 12 });
    const weight = weights.get(key);
    if (weight !== undefined) {
      surface.rect(at.weight - x, y + 4, 50 * Math.min(1, Math.abs(weight)), ROW - 8, weight < 0 ? colour('negative') : colour('weight'), 0.35);
    }
    surface.text(at.weight - x, y + ROW / 2, weight === undefined ? (head.isUnread(state.query, key) ? 'not read' : 'small') : shown(weight), { size: 12 });
  }

  strip(surface, vector, x, y, width, height, most) {
    const cell = width / vector.length;
    vector.forEach((value, place) => {
      const opacity = most ? Math.abs(value) / most : 0;
      surface.rect(x + place * cell, y, Math.max(0.5, cell - (cell > 3 ? 0.5 : 0)), height, value < 0 ? colour('negative') : colour('weight'), opacity);
    });
  }

  point(x, y) {
    const row = x === null || y < 74 ? null : Math.floor((y - 74 + this.scroller.y) / ROW);
    this.row = row !== null && row < state.frame.keys.length ? row : null;
    if (this.row === null) say('');
    else this.say();
    this.scroller.later();
  }

  say() {
    const query = this.found.query(state.query);
    const sum = sumOf(this.found.key(this.row).map((value, place) => value * query[place]));
    const { scale } = oneHead();
    const logit = scale === null ? '' : `; logit ${this.factor()}${sum.toFixed(4)} = ${(scale * sum).toFixed(4)}`;
    say(`${pairText(oneHead(), state.query, this.row)}; query × key sums to ${sum.toFixed(4)}${logit}`);
  }

  key(event) {
    if (!moveQuery(event)) return false;
    changed();
    return true;
  }

  svg() { return this.found ? this.scroller.svg() : new SvgSurface(300, 40).toString(); }
}

const largestOf = (vector) => vector.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
const sumOf = (vector) => vector.reduce((sum, value) => sum + value, 0);

// How the tokens of most tokenizers become running text again: pieces that continue a word, and signs for spaces.
function runningTexts(tokens) {
  const isPieces = tokens.some((token) => /^##./u.test(token));
  const isMarked = tokens.some((token) => /^[▁Ġ]/u.test(token));
  const hasSpaces = tokens.some((token) => /\s/u.test(token));
  return tokens.map((token, place) => {
    if (isMarked) return token.replace(/^[▁Ġ]/u, ' ').replace(/Ċ/gu, '\n');
    if (isPieces && /^##./u.test(token)) return token.slice(2);
    return hasSpaces || place === 0 || isSingle(tokens) ? token : ` ${token}`;
  });
}

const isSpaced = (text) => text.length > 1 && text[0] === ' ';

// Texts of characters need no spaces between their tokens.
const isSingle = (tokens) => tokens.length > 8 && tokens.every((token) => Array.from(token).length === 1);

class TextView {
  constructor() {
    this.label = 'Text';
    this.isMulti = true;
    this.way = element('select', { 'aria-label': 'Direction', onchange: () => this.shade() },
      element('option', { value: 'query' }, 'what the token reads'), element('option', { value: 'key' }, 'who reads the token'));
    this.body = element('div', { class: 'card running', tabindex: 0 });
    this.body.addEventListener('mouseover', (event) => this.point(event.target));
    this.body.addEventListener('click', (event) => this.point(event.target));
    this.body.addEventListener('keydown', (event) => {
      if (moveQuery(event)) { this.way.value = 'query'; this.spot = state.query; this.shade(); event.preventDefault(); }
    });
    this.node = element('div', {}, element('div', { class: 'tools' }, element('label', {}, 'shade ', this.way)), this.body,
      element('p', { class: 'caption' }, 'Point at a token. The shade is the mean weight of the chosen heads; the darkest token has the largest.'));
  }

  refresh() {
    const { frame } = state;
    if (this.frame !== frame) {
      this.frame = frame;
      this.spot = Math.min(state.query, frame.tokens.length - 1);
      const keys = runningTexts(frame.keys);
      this.keys = keys.map((text, key) => this.span(text, 'key', key, frame.keyTexts[key], key < frame.memory));
      const blocks = [this.block(this.keys, keys)];
      this.queries = this.keys.slice(frame.memory);
      if (!frame.isOwn) {
        const queries = runningTexts(frame.tokens);
        this.queries = queries.map((text, query) => this.span(text, 'query', query, frame.texts[query], false));
        blocks.unshift(this.block(this.queries, queries));
      }
      this.body.replaceChildren(...blocks);
      this.node.dataset.tokens = keys.length;
    }
    this.shade();
  }

  span(text, side, place, number, isEarlier) {
    const kind = [number === null ? 'special' : '', isEarlier ? 'earlier' : ''].join(' ').trim();
    const node = element('span', { class: kind || null, 'data-side': side, 'data-place': place });
    node.textContent = text === '' ? '∅' : isSpaced(text) ? text.slice(1) : text;
    return node;
  }

  // The space before a word stays outside its shade.
  block(spans, texts) {
    return element('div', { class: 'block' }, ...spans.flatMap((span, place) => (isSpaced(texts[place]) ? [' ', span] : [span])));
  }

  point(node) {
    if (node.dataset.place === undefined) return;
    const { frame } = state;
    let place = Number(node.dataset.place);
    if (!frame.isOwn) this.way.value = node.dataset.side;
    else if (this.way.value === 'query') place -= frame.memory;
    if (place < 0) { say('A token of an earlier segment reads nothing here; choose “who reads the token”.'); return; }
    if (this.way.value === 'query') state.query = place;
    this.spot = place;
    this.shade();
  }

  // Mean weights of the chosen heads.
  means() {
    const heads = chosenHeads();
    const sums = new Map();
    for (const found of edgesOf(heads, this.way.value, this.spot)) {
      found.forEach((weight, place) => sums.set(place, (sums.get(place) || 0) + weight / heads.length));
    }
    return sums;
  }

  shade() {
    const isQuery = this.way.value === 'query';
    const [here, there] = isQuery ? [this.queries, this.keys] : [this.keys, this.queries];
    this.spot = Math.min(this.spot, here.length - 1);
    const means = this.means();
    const most = Math.max(...[...means.values()].map(Math.abs), 0) || 1;
    for (const node of [...this.keys, ...this.queries]) {
      node.style.background = '';
      node.classList.remove('here');
    }
    means.forEach((weight, place) => {
      const [red, green, blue] = rgb(colour(weight < 0 ? 'negative' : 'weight'));
      there[place].style.background = `rgba(${red}, ${green}, ${blue}, ${(0.75 * Math.sqrt(Math.abs(weight) / most)).toFixed(3)})`;
    });
    here[this.spot].classList.add('here');
    this.node.dataset.shaded = means.size;
    sayEdges(chosenHeads(), this.way.value, this.spot);
  }

  svg() {
    const box = this.body.getBoundingClientRect();
    const surface = new SvgSurface(Math.ceil(box.width), Math.ceil(box.height));
    for (const node of new Set([...this.queries, ...this.keys])) {
      for (const part of node.getClientRects()) {
        const [x, y] = [part.left - box.left, part.top - box.top];
        if (part.bottom < box.top || part.top > box.bottom || !part.width) continue;
        if (node.style.background) surface.rect(x, y, part.width, part.height, ...solid(node.style.backgroundColor));
        if (node.classList.contains('here')) surface.frame(x, y, part.width, part.height, colour('mark'));
      }
      const [first] = node.getClientRects();
      if (first && first.bottom >= box.top && first.top <= box.bottom) {
        const start = RIGHT_TO_LEFT.test(node.textContent) ? { anchor: 'middle' } : {};
        const x = first.left - box.left + (start.anchor ? first.width / 2 : 0);
        surface.text(x, first.top - box.top + first.height / 2, node.textContent, { size: parseFloat(getComputedStyle(node).fontSize), ...start });
      }
    }
    return surface.toString();
  }
}

// A colour such as `rgba(1, 2, 3, 0.5)` as a colour and its opacity.
function solid(text) {
  const [red, green, blue, opacity = '1'] = text.match(/[\d.]+/g);
  return [`rgb(${red}, ${green}, ${blue})`, Number(opacity)];
}

class ImageView {
  constructor() {
    this.label = 'Image';
    this.isMulti = true;
    this.canvas = element('canvas', { tabindex: 0, role: 'img', 'aria-label': 'The pixels that a query reads' });
    this.canvas.addEventListener('mousemove', (event) => this.point(event.offsetX, event.offsetY, false));
    this.canvas.addEventListener('click', (event) => this.point(event.offsetX, event.offsetY, true));
    this.canvas.addEventListener('keydown', (event) => {
      if (moveQuery(event)) { changed(); event.preventDefault(); }
    });
    this.node = element('div', {}, element('div', { class: 'card models' }, this.canvas), element('p', { class: 'caption' },
      'Left: the pixels, if the tokens are numbers. Right: the mean weight that the query gives to each pixel, over the chosen heads. ' +
      'Point at a pixel to read its weight; click on it to make it the query. The list of queries also has the other tokens.'));
  }

  refresh() {
    const { frame } = state;
    this.pixels = frame.keys.map((_, key) => key).filter((key) => frame.keyTexts[key] !== null && key >= frame.memory);
    [this.height, this.width] = frame.image;
    this.cell = Math.max(1, Math.floor(Math.min(480 / this.width, 480 / this.height)));
    this.draw(new CanvasSurface(this.canvas, ...this.extent()));
  }

  extent() { return [2 * this.width * this.cell + 24, this.height * this.cell]; }

  weights() {
    const heads = chosenHeads();
    const sums = new Map();
    for (const found of edgesOf(heads, 'query', state.query)) {
      found.forEach((weight, key) => sums.set(key, (sums.get(key) || 0) + weight / heads.length));
    }
    return sums;
  }

  draw(surface) {
    const { frame } = state;
    const { cell, width } = this;
    const weights = this.weights();
    const most = Math.max(...this.pixels.map((key) => Math.abs(weights.get(key) || 0))) || 1;
    const numbers = this.pixels.map((key) => Number(frame.keys[key]));
    const [low, high] = [numbers.reduce((a, b) => Math.min(a, b)), numbers.reduce((a, b) => Math.max(a, b))];
    const gap = width * cell + 24;
    this.pixels.forEach((key, place) => {
      const [x, y] = [(place % width) * cell, Math.floor(place / width) * cell];
      const level = Number.isNaN(low) || high === low ? 128 : Math.round(255 * (numbers[place] - low) / (high - low));
      surface.rect(x, y, cell, cell, `rgb(${level}, ${level}, ${level})`);
      const weight = weights.get(key);
      const [fill, share] = weight === undefined ? [colour('unread'), 1] : [colour(weight < 0 ? 'negative' : 'weight'), Math.abs(weight) / most];
      surface.rect(gap + x, y, cell, cell, fill, share);
      if (frame.isOwn && key - frame.memory === state.query) {
        surface.frame(x, y, cell, cell, colour('mark'));
        surface.frame(gap + x, y, cell, cell, colour('mark'));
      }
    });
    this.node.dataset.pixels = this.pixels.length;
    this.node.dataset.shaded = this.pixels.filter((key) => weights.has(key)).length;
  }

  point(x, y, isClick) {
    const gap = this.width * this.cell + 24;
    const column = Math.floor((x >= gap ? x - gap : x) / this.cell);
    const row = Math.floor(y / this.cell);
    if (column < 0 || column >= this.width || row < 0 || row >= this.height) return;
    const key = this.pixels[row * this.width + column];
    if (key === undefined) return; // a language model does not read the last byte of an image
    if (isClick && state.frame.isOwn) {
      state.query = key - state.frame.memory;
      changed();
    }
    const weight = this.weights().get(key);
    say(`row ${row}, column ${column}: key ${nameOf(state.frame.keys, key)}\nquery ${nameOf(state.frame.tokens, state.query)}: ` +
      `mean weight ${weight === undefined ? 'not in this page, or exactly 0' : shown(weight)}`);
  }

  svg() {
    const surface = new SvgSurface(...this.extent());
    this.draw(surface);
    return surface.toString();
  }
}

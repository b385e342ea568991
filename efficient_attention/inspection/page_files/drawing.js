// Draws the same shapes on a canvas or into an SVG file, and scrolls through drawings that are larger than the page.
const FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Noto Color Emoji', sans-serif";
const SVG = 'http://www.w3.org/2000/svg';
const WHOLE = 6000; // up to this many pixels, a saved file has the whole drawing; else the part that is visible

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Golden angles keep the colours of neighbouring heads apart.
const headColour = (number) => `hsl(${(215 + number * 137.5) % 360} 70% 45%)`;

class CanvasSurface {
  constructor(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.context = canvas.getContext('2d');
    this.context.scale(ratio, ratio);
  }

  rect(x, y, width, height, fill, opacity = 1) {
    this.context.globalAlpha = opacity;
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, width, height);
  }

  frame(x, y, width, height, stroke) {
    this.context.globalAlpha = 1;
    this.context.strokeStyle = stroke;
    this.context.lineWidth = 1.5;
    this.context.strokeRect(x, y, width, height);
  }

  line(x1, y1, x2, y2, stroke, opacity, width) {
    const { context } = this;
    context.globalAlpha = opacity;
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    context.stroke();
  }

  text(x, y, text, { anchor = 'start', fill = colour('ink'), size = 13, most = 0, isUpright = false } = {}) {
    const { context } = this;
    context.save();
    context.globalAlpha = 1;
    context.font = `${size}px ${FONT}`;
    context.fillStyle = fill;
    context.direction = 'ltr';
    context.textAlign = { start: 'left', middle: 'center', end: 'right' }[anchor];
    context.textBaseline = 'middle';
    context.translate(x, y);
    if (isUpright) context.rotate(-Math.PI / 2);
    context.fillText(most ? shortened(text, most, size) : text, 0, 0);
    context.restore();
  }

  image(x, y, width, height, source) {
    this.context.globalAlpha = 1;
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(source, x, y, width, height);
  }
}

class SvgSurface {
  constructor(width, height) {
    this.file = document.implementation.createDocument(SVG, 'svg'); // a document of its own never loads anything
    this.root = this.file.documentElement;
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) {
      this.root.setAttribute(name, value);
    }
    this.rect(0, 0, width, height, colour('card'));
  }

  add(name, attributes, text = null) {
    const node = this.file.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) {
      node.setAttribute(key, typeof value === 'number' ? Number(value.toFixed(3)) : value);
    }
    if (text !== null) node.textContent = text.replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, '\ufffd');
    this.root.append(node);
  }

  rect(x, y, width, height, fill, opacity = 1) { this.add('rect', { x, y, width, height, fill, 'fill-opacity': opacity }); }

  frame(x, y, width, height, stroke) { this.add('rect', { x, y, width, height, fill: 'none', stroke }); }

  line(x1, y1, x2, y2, stroke, opacity, width) {
    this.add('line', { x1, y1, x2, y2, stroke, 'stroke-opacity': opacity, 'stroke-width': width });
  }

  text(x, y, text, { anchor = 'start', fill = colour('ink'), size = 13, most = 0, isUpright = false } = {}) {
    const attributes = { x, y, fill, 'font-size': size, 'font-family': FONT, 'text-anchor': anchor,
      'dominant-baseline': 'central', 'xml:space': 'preserve' };
    if (isUpright) attributes.transform = `rotate(-90 ${x} ${y})`;
    this.add('text', attributes, most ? shortened(text, most, size) : text);
  }

  image(x, y, width, height, source) {
    this.add('image', { x, y, width, height, href: source.toDataURL(), preserveAspectRatio: 'none',
      'image-rendering': 'pixelated' });
  }

  toString() { return new XMLSerializer().serializeToString(this.root); }
}

const MEASURE = document.createElement('canvas').getContext('2d');
const WIDTHS = new Map();

// Cuts a text to a width in pixels, between whole characters.
function shortened(text, most, size) {
  const key = `${size}|${most}|${text}`;
  if (WIDTHS.has(key)) return WIDTHS.get(key);
  MEASURE.font = `${size}px ${FONT}`;
  let result = text;
  if (MEASURE.measureText(text).width > most) {
    const parts = typeof Intl.Segmenter === 'function'
      ? Array.from(new Intl.Segmenter().segment(text), (part) => part.segment) : Array.from(text);
    let low = 0;
    let high = Math.min(parts.length, 400);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (MEASURE.measureText(`${parts.slice(0, middle).join('')}…`).width <= most) low = middle;
      else high = middle - 1;
    }
    result = `${parts.slice(0, low).join('')}…`;
    if (text.startsWith('\u2068')) result += '\u2069';
  }
  WIDTHS.set(key, result);
  return result;
}

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children);
  return node;
}

// A drawing that scrolls: only what is visible is drawn.
//   size() -> [width, height] of the whole drawing, for a width of the page
//   draw(surface, x, y, width, height): draws the part at (x, y); must give its drawn counts to `counted`
//   point(x, y, isClick): the mouse is at a place of the visible part; null = it left
//   key(event): a key is pressed; true = it meant something
class Scroller {
  constructor(view, label) {
    this.view = view;
    this.canvas = element('canvas', { tabindex: 0, role: 'img', 'aria-label': label });
    this.spacer = element('div', {}, this.canvas);
    this.node = element('div', { class: 'card scroll' }, this.spacer);
    this.node.addEventListener('scroll', () => this.later());
    this.canvas.addEventListener('mousemove', (event) => view.point(event.offsetX, event.offsetY, false));
    this.canvas.addEventListener('mouseleave', () => view.point(null, null, false));
    this.canvas.addEventListener('click', (event) => view.point(event.offsetX, event.offsetY, true));
    this.canvas.addEventListener('keydown', (event) => { if (view.key(event)) event.preventDefault(); });
    new ResizeObserver(() => this.later()).observe(this.node);
  }

  later() {
    if (!this.isWaiting) {
      this.isWaiting = true;
      requestAnimationFrame(() => { this.isWaiting = false; this.draw(); });
    }
  }

  get x() { return this.node.scrollLeft; }

  get y() { return this.node.scrollTop; }

  draw() {
    const [width, height] = this.view.size(this.node.clientWidth);
    this.node.style.height = `${Math.min(height + 2 + (width > this.node.clientWidth ? 16 : 0), Math.max(360, window.innerHeight * 0.74))}px`;
    this.spacer.style.width = `${Math.max(1, width)}px`;
    this.spacer.style.height = `${Math.max(1, height)}px`;
    const [seenWidth, seenHeight] = [Math.min(width, this.node.clientWidth), Math.min(height, this.node.clientHeight)];
    if (seenWidth > 0 && seenHeight > 0) {
      this.view.draw(new CanvasSurface(this.canvas, seenWidth, seenHeight), this.x, this.y, seenWidth, seenHeight);
    }
  }

  svg() {
    const [width, height] = this.view.size(this.node.clientWidth);
    const isWhole = width <= WHOLE && height <= WHOLE;
    const part = isWhole ? [0, 0, width, height]
      : [this.x, this.y, Math.min(width, this.node.clientWidth), Math.min(height, this.node.clientHeight)];
    const surface = new SvgSurface(part[2], part[3]);
    this.view.draw(surface, ...part);
    return surface.toString();
  }

  show(x, y, width, height) {
    const { node } = this;
    if (y < node.scrollTop) node.scrollTop = y;
    if (y + height > node.scrollTop + node.clientHeight) node.scrollTop = y + height - node.clientHeight;
    if (x < node.scrollLeft) node.scrollLeft = x;
    if (x + width > node.scrollLeft + node.clientWidth) node.scrollLeft = x + width - node.clientWidth;
  }

  // Says in attributes what the last drawing has, for tests and for readers of the page's source.
  count(counts) { Object.assign(this.node.dataset, counts); }
}

function save(svg, name) {
  const link = element('a', { download: name, href: URL.createObjectURL(new Blob([svg], { type: 'image/svg+xml' })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Draws the thumbnail of a head, one pixel for each tile.
function thumbnail(head) {
  const { codes, rows, columns } = head.tiles;
  const canvas = element('canvas', { width: columns, height: rows });
  const context = canvas.getContext('2d');
  const pixels = context.createImageData(columns, rows);
  const strong = rgb(colour('weight'));
  const none = rgb(colour('unread'));
  const weak = rgb(colour('card'));
  codes.forEach((code, place) => {
    const share = code / 255;
    for (let part = 0; part < 3; part += 1) {
      pixels.data[4 * place + part] = code ? weak[part] + (strong[part] - weak[part]) * share : none[part];
    }
    pixels.data[4 * place + 3] = 255;
  });
  context.putImageData(pixels, 0, 0);
  return canvas;
}

const rgb = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));

'use strict';
// Reads the data of the page: tokens from JSON, and the arrays of each head from one base64 text.
const PAGE = JSON.parse(document.getElementById('data').textContent);
const BLOCKS = bytesOf(document.getElementById('blocks').textContent);
const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

function bytesOf(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
  return bytes;
}

const bytesAt = (offset, count) => BLOCKS.subarray(offset, offset + count);
const numbersAt = (offset, count) => new Uint16Array(BLOCKS.buffer, offset, count);
const decoded = (code, top) => top * (code / 255) ** 2;

// A head of a layer. `useNorms` says whether weights are multiplied by the length of the projected value, and divided by
// the sum of these products over all keys of the query.
class Head {
  constructor(record, layer, frame) {
    Object.assign(this, { record, frame, L: frame.tokens.length, M: frame.keys.length });
    this.name = `${layer.layer}.${record.head}`;
    this.number = record.head;
    this.scale = layer.scale;
    this.useNorms = false;
    const [tiles, rows, columns] = record.tiles;
    this.tiles = { codes: bytesAt(tiles, rows * columns), rows, columns };
    if (record.dense !== undefined) this.codes = bytesAt(record.dense, this.L * this.M);
    else this.readSparse();
    if (record.signs !== undefined) this.signs = bytesAt(record.signs, Math.ceil(this.L * this.M / 8));
    if (record.norms) {
      const [norms, most, sums, largest] = record.norms;
      this.norms = Float32Array.from(bytesAt(norms, this.M), (code) => decoded(code, most));
      this.sums = Float32Array.from(bytesAt(sums, this.L), (code) => decoded(code, largest));
    }
    if (record.rounds) {
      const [buckets, chunks, rounds] = record.rounds;
      const [bucketNumbers, chunkNumbers] = [buckets, chunks].map((offset) => numbersAt(offset, rounds * this.L));
      this.rounds = { count: rounds, buckets: bucketNumbers, chunks: chunkNumbers, chunkCount: layer.chunks };
    }
  }

  readSparse() {
    const counts = numbersAt(this.record.counts, this.L);
    this.starts = new Uint32Array(this.L + 1);
    this.isWhole = new Uint8Array(this.L);
    counts.forEach((count, query) => {
      this.starts[query + 1] = this.starts[query] + (count & 32767);
      this.isWhole[query] = count >> 15;
    });
    this.edgeKeys = numbersAt(this.record.keys, this.starts[this.L]);
    this.edgeCodes = bytesAt(this.record.codes, this.starts[this.L]);
  }

  scaled(weight, query, key) {
    if (!this.useNorms || !this.norms) return weight;
    return this.sums[query] ? Math.abs(weight) * this.norms[key] / this.sums[query] : 0;
  }

  // Calls `visit(key, weight)` for each key of a query that the page has.
  eachKey(query, visit) {
    const { top } = this.record;
    if (this.codes) {
      for (let key = 0, place = query * this.M; key < this.M; key += 1, place += 1) {
        if (this.codes[place]) {
          const isNegative = this.signs && (this.signs[place >> 3] >> (place & 7)) & 1;
          visit(key, this.scaled(decoded(this.codes[place], isNegative ? -top : top), query, key));
        }
      }
      return;
    }
    for (let place = this.starts[query]; place < this.starts[query + 1]; place += 1) {
      const key = this.edgeKeys[place] & 32767;
      const sign = this.edgeKeys[place] >> 15 ? -1 : 1;
      visit(key, this.scaled(sign * decoded(this.edgeCodes[place], top), query, key));
    }
  }

  // The largest absolute weight, after the switch for norms.
  most() {
    const name = this.useNorms ? 'mostScaled' : 'mostPlain';
    if (this[name] === undefined) {
      let most = 0;
      for (let query = 0; query < this.L; query += 1) {
        this.eachKey(query, (key, weight) => { if (Math.abs(weight) > most) most = Math.abs(weight); });
      }
      this[name] = most;
    }
    return this[name];
  }

  keysOf(query) {
    const found = new Map();
    this.eachKey(query, (key, weight) => found.set(key, weight));
    return found;
  }

  readersOf(key) {
    const found = new Map();
    for (let query = 0; query < this.L; query += 1) {
      this.eachKey(query, (other, weight) => { if (other === key) found.set(query, weight); });
    }
    return found;
  }

  // Whether a pair without an edge in the page has weight exactly 0. If not, its weight is only too small to be kept.
  isUnread(query, key) {
    if (this.codes || this.isWhole[query]) return true;
    const { codes, rows, columns } = this.tiles;
    return !codes[tileOf(query, this.L, rows) * columns + tileOf(key, this.M, columns)];
  }

  neurons() {
    if (!this.record.neurons) return null;
    const [queries, queryTop, keys, keyTop] = this.record.neurons;
    const { width } = this.record;
    const vector = (offset, top) => (row) => Float32Array.from(
      new Int16Array(BLOCKS.buffer, offset + 2 * row * width, width), (level) => level / 32767 * top);
    return { width, query: vector(queries, queryTop), key: vector(keys, keyTop) };
  }

  // The rounds of LSH in which the key is in the query's chunk or the one before, and those with equal buckets.
  roundsOf(query, key) {
    const { count, buckets, chunks, chunkCount } = this.rounds;
    const numbers = Array.from({ length: count }, (_, round) => round);
    const at = (array, round, token) => array[round * this.L + token];
    const back = (round) => (at(chunks, round, query) - at(chunks, round, key) + chunkCount) % chunkCount;
    return {
      chunk: numbers.filter((round) => back(round) <= 1),
      bucket: numbers.filter((round) => at(buckets, round, query) === at(buckets, round, key)),
    };
  }
}

// Tiles start at floor(number * length / count), as in Python.
function tileOf(position, length, count) {
  let tile = Math.floor(position * count / length);
  while (tile + 1 < count && Math.floor((tile + 1) * length / count) <= position) tile += 1;
  return tile;
}

// A window: tokens, keys, the text of each (null = special token), and layers of heads.
function readFrame(record) {
  const keys = record.keys || record.tokens;
  const texts = record.texts || record.tokens.map(() => 0);
  const memory = record.memory || 0;
  const isOwn = record.memory !== null;
  const frame = { tokens: record.tokens, keys, texts, memory, isOwn, image: record.image };
  frame.keyTexts = isOwn ? [...Array(memory).fill(2), ...texts] : keys.map(() => 0);
  frame.hasTexts = texts.includes(1);
  frame.hasSpecials = texts.includes(null);
  frame.layers = record.layers.map((layer) => ({
    name: layer.layer, heads: layer.heads.map((head) => new Head(head, layer, frame)),
  }));
  return frame;
}

// A token as a label: spaces and line ends get signs, and right-to-left text is isolated from its surroundings.
function labelOf(token) {
  let text = token.replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/\r/g, '␍').replace(/[\x00-\x1f\x7f]/g, '�');
  if (text.trim() === '') text = text === '' ? '∅' : text.replace(/\s/g, '␣');
  return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
}

const shown = (weight) => (Math.abs(weight) >= 1e-4 || weight === 0 ? weight.toFixed(4) : weight.toExponential(1));

// The state of the page and its controls.
const state = { frame: null, window: 0, view: 'model', layer: 0, heads: [0], query: 0, pair: 'all', hideSpecials: false, useNorms: false };
const FRAMES = PAGE.windows.map(() => null);
const VIEWS = { model: new ModelView(), head: new LinesView(), matrix: new MatrixView(), neuron: new NeuronView(), text: new TextView() };
if (PAGE.windows.some((record) => record.image)) VIEWS.image = new ImageView();
const byId = (id) => document.getElementById(id);

function say(text) { byId('said').textContent = text; }

const layerHeads = () => state.frame.layers[state.layer].heads;
const oneHead = () => layerHeads()[state.heads[state.heads.length - 1]]; // the head that was chosen last

function chosenHeads() { return state.heads.map((place) => layerHeads()[place]).sort((a, b) => a.number - b.number); }

function choose(layer, heads) {
  state.layer = layer;
  const count = layerHeads().length;
  const there = heads.filter((place) => place < count);
  state.heads = there.length ? there : [0];
}

function toggle(place) {
  const isMulti = VIEWS[state.view].isMulti && state.view !== 'model';
  if (!isMulti) state.heads = [place];
  else if (!state.heads.includes(place)) state.heads.push(place);
  else if (state.heads.length > 1) state.heads = state.heads.filter((one) => one !== place);
  changed();
}

function openWindow(number) {
  state.window = number;
  FRAMES[number] = FRAMES[number] || readFrame(PAGE.windows[number]);
  state.frame = FRAMES[number];
  state.query = Math.min(state.query, state.frame.tokens.length - 1);
  if (!state.frame.hasTexts) state.pair = 'all';
  choose(Math.min(state.layer, state.frame.layers.length - 1), state.heads);
}

function show(view) {
  state.view = view;
  say('');
  byId('view').replaceChildren(VIEWS[view].node);
  changed();
}

// Draws controls and view again, after any change of the state.
function changed() {
  for (const layer of state.frame.layers) for (const head of layer.heads) head.useNorms = state.useNorms;
  for (const button of byId('views').children) button.setAttribute('aria-selected', button.dataset.view === state.view);
  byId('controls').replaceChildren(...controls());
  byId('share').textContent = shareText();
  VIEWS[state.view].refresh();
}

function controls() {
  const { frame } = state;
  const found = [];
  if (PAGE.windows.length > 1) {
    found.push(choice('window', PAGE.windows.map((_, place) => `${place + 1} of ${PAGE.windows.length}`), state.window, (place) => { openWindow(place); }));
  }
  if (state.view !== 'model') {
    found.push(choice('layer', frame.layers.map((layer) => String(layer.name)), state.layer, (place) => choose(place, state.heads)), headButtons());
  }
  if (['neuron', 'image'].includes(state.view)) found.push(queryChoice());
  if (state.view === 'model') return found;
  if (frame.hasTexts) {
    const pairs = { all: 'all', '00': 'A → A', '01': 'A → B', 10: 'B → A', 11: 'B → B' };
    const names = ['all', '00', '01', '10', '11'];
    found.push(choice('texts', names.map((name) => pairs[name]), names.indexOf(state.pair), (place) => { state.pair = names[place]; }));
  }
  if (frame.hasSpecials) found.push(box('without special tokens', 'hideSpecials'));
  if (layerHeads().some((head) => head.norms)) found.push(box('weigh by the length of the projected value', 'useNorms'));
  return found;
}

function choice(label, names, chosen, choose_) {
  const select = element('select', { id: `choose-${label}` }, ...names.map((name, place) => element('option', { value: place, selected: place === chosen }, name)));
  select.addEventListener('change', () => { choose_(Number(select.value)); changed(); });
  return element('label', {}, `${label} `, select);
}

function queryChoice() {
  const input = element('input', { id: 'choose-query', type: 'number', min: 0, max: state.frame.tokens.length - 1, value: state.query, class: 'number' });
  input.addEventListener('change', () => {
    state.query = Math.min(state.frame.tokens.length - 1, Math.max(0, Math.floor(Number(input.value)) || 0));
    changed();
  });
  const name = element('span');
  name.textContent = labelOf(state.frame.tokens[state.query]);
  return element('label', {}, 'query ', input, name);
}

function box(label, name) {
  const input = element('input', { type: 'checkbox', id: name, checked: state[name] });
  input.addEventListener('change', () => { state[name] = input.checked; changed(); });
  return element('label', {}, input, label);
}

function headButtons() {
  const isMulti = VIEWS[state.view].isMulti;
  const buttons = layerHeads().map((head, place) => {
    const isOn = isMulti ? state.heads.includes(place) : head === oneHead();
    const button = element('button', { type: 'button', 'aria-pressed': String(isOn), 'data-head': place,
      onclick: () => toggle(place) }, String(head.number));
    if (isOn) button.style.borderBottomColor = isMulti && state.heads.length > 1 ? headColour(head.number) : colour('weight');
    return button;
  });
  const all = layerHeads().map((_, place) => place);
  if (isMulti && all.length > 1) {
    const isAll = state.heads.length === all.length;
    buttons.push(element('button', { type: 'button', id: 'all-heads', onclick: () => { state.heads = isAll ? [0] : all; changed(); } }, isAll ? 'one' : 'all'));
  }
  return element('span', { id: 'heads', role: 'group', 'aria-label': 'Heads' }, 'heads ', ...buttons);
}

// The share of the weight that the page has, for each head, and the error of heads that estimate softmax.
function shareText() {
  if (state.view === 'model') return '';
  const heads = VIEWS[state.view].isMulti ? chosenHeads() : [oneHead()];
  const errors = heads.filter((head) => head.record.error !== undefined)
    .map((head) => `${head.name}: ${head.record.error.toFixed(3)}`);
  const estimate = errors.length ? ` Total variation distance from softmax, mean over queries, of head ${errors.join('; ')}.` : '';
  return edgesText(heads) + estimate;
}

function edgesText(heads) {
  const cut = heads.filter((head) => head.record.most !== null);
  if (!cut.length) return 'All edges are in this page.';
  const parts = cut.map((head) => `${head.name}: ${percent(head.record.share)} (${head.record.most} keys of each query)`);
  return `Share of the weight that this page has, of head ${parts.join('; ')}`;
}

PAGE.notes.forEach((note) => {
  const paragraph = element('p');
  paragraph.textContent = note;
  byId('notes').append(paragraph);
});
Object.entries(VIEWS).forEach(([name, view]) => byId('views').append(
  element('button', { type: 'button', role: 'tab', 'data-view': name, onclick: () => show(name) }, view.label)));
byId('save').addEventListener('click', () => save(VIEWS[state.view].svg(), `attention_${state.view}.svg`));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { VIEWS.model.frame = null; changed(); });
openWindow(0);
show('model');

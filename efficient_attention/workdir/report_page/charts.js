
'use strict';
(() => {
  const {charts} = JSON.parse(document.getElementById('data').textContent);
  const WIDTH = 540, HEIGHT = 254, LEFT = 62, RIGHT = 20, TOP = 10, BOTTOM = 40;
  const SMOOTHED_FROM = 60;  // curves with fewer points are drawn as they are

  function element(parent, tag, attributes = {}, text = '') {
    const svg = ['svg', 'g', 'path', 'line', 'text', 'circle'].includes(tag);
    const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  // A number in few characters: 12.5k, 3.2M, 1e-5.
  function short(value) {
    const size = Math.abs(value);
    if (size && (size < 0.001 || size >= 1e12)) return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
    for (const [unit, letter] of [[1e9, 'G'], [1e6, 'M'], [1e4, 'k']])
      if (size >= unit) return +(value / (letter === 'k' ? 1e3 : unit)).toPrecision(4) + letter;
    return String(+value.toPrecision(4));
  }

  const long = value => Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString('en') : String(+value.toPrecision(5));

  // Round values between two bounds, about `count` of them.
  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find(one => one * power >= raw * 0.999) * power;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
    return found;
  }

  function logTicks(low, high) {
    const found = [], first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const every = Math.max(1, Math.ceil((last - first) / 5)), digits = last - first > 3 ? [1] : last - first > 1 ? [1, 3] : [1, 2, 3, 5, 7];
    for (let power = first; power <= last; power += every)
      for (const digit of digits) found.push(digit * 10 ** power);
    const inside = found.filter(one => one >= low * 0.999 && one <= high * 1.001);
    return inside.length > 1 ? inside : ticks(low, high, 4);
  }

  // The mean of the known values in a centred window of about 3 % of the points.
  function smoothed(values) {
    const half = Math.max(1, Math.floor(values.length / 60)), sums = [0], counts = [0];
    values.forEach((value, i) => {
      sums.push(sums[i] + (value ?? 0));
      counts.push(counts[i] + (value !== null));
    });
    return values.map((value, i) => {
      const from = Math.max(0, i - half), to = Math.min(values.length, i + half + 1);
      return value === null ? null : (sums[to] - sums[from]) / (counts[to] - counts[from]);
    });
  }

  const cut = (text, most) => text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;

  // A curve over training steps, or with `chart.axis` one point per trial over the values of a field.
  function draw(parent, chart) {
    const figure = element(parent, 'figure'), caption = element(figure, 'figcaption', {}, chart.title);
    if (chart.unit) element(caption, 'span', {}, chart.unit);
    const known = chart.lines.flatMap(line => [...line.values, ...(line.low ?? []), ...(line.high ?? [])]).filter(one => one !== null);
    if (chart.baseline !== null) known.push(chart.baseline);
    const least = known.reduce((a, b) => Math.min(a, b), Infinity), most = known.reduce((a, b) => Math.max(a, b), -Infinity);
    const axis = chart.axis ?? {label: 'step', low: 0, high: chart.lines.reduce((a, line) => Math.max(a, line.steps.at(-1) ?? 0), 1)};
    if (axis.low === axis.high) [axis.low, axis.high] = axis.is_log ? [axis.low / 2, axis.high * 2] : [axis.low - 1, axis.high + 1];
    const across = axis.is_log ? Math.log : value => value;
    const x = step => LEFT + (WIDTH - LEFT - RIGHT) * (across(step) - across(axis.low)) / (across(axis.high) - across(axis.low));
    const legend = element(figure, 'div', {class: 'legend'});
    if (!chart.axis) chart.lines.forEach((line, i) => {  // points of trials need no legend
      const entry = element(legend, 'span');
      element(entry, 'i').style.color = `var(--c${i % 8})`;
      entry.append(line.label);
    });
    if (chart.baseline !== null) {
      const entry = element(legend, 'span');
      element(entry, 'i', {class: 'dashed'}).style.color = 'var(--faint)';
      entry.append('unigram model');
    }
    const svg = element(figure, 'svg', {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': chart.axis ? chart.title : `${chart.title} by step`});
    let isLog = false;

    function render() {
      svg.replaceChildren();
      let low = least, high = most;
      if (!known.length) [low, high] = [0, 1];
      if (low === high) [low, high] = [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
      const room = isLog ? 0 : (high - low) * 0.05;
      const bottom = !isLog && least >= 0 && low - room < 0 ? 0 : low - room, top = high + room;
      const scale = isLog ? Math.log : value => value;
      const y = value => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (scale(value) - scale(bottom)) / (scale(top) - scale(bottom));
      for (const value of isLog ? logTicks(low, high) : ticks(bottom, top, 4)) {
        element(svg, 'line', {x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), stroke: 'var(--line)'});
        element(svg, 'text', {x: LEFT - 8, y: y(value) + 4, 'text-anchor': 'end'}, short(value));
      }
      const places = axis.is_log ? logTicks(axis.low, axis.high) : ticks(axis.low, axis.high, 5);
      const marked = axis.names ? axis.names.map((_, i) => i) : chart.axis ? places : places.filter(Number.isInteger);
      for (const step of marked)
        element(svg, 'text', {x: x(step), y: HEIGHT - 22, 'text-anchor': 'middle'}, axis.names ? cut(axis.names[step], 66 / axis.names.length) : short(step));
      element(svg, 'text', {x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, 'text-anchor': 'middle'}, axis.label);
      if (chart.baseline !== null)
        element(svg, 'line', {x1: LEFT, x2: WIDTH - RIGHT, y1: y(chart.baseline), y2: y(chart.baseline), stroke: 'var(--faint)', 'stroke-dasharray': '5 4'});
      const path = (steps, values) => {
        let text = '', isDown = false;
        steps.forEach((step, i) => {
          if (values[i] === null) { isDown = false; return; }
          text += `${isDown ? 'L' : 'M'}${x(step).toFixed(1)} ${y(values[i]).toFixed(1)}`;
          isDown = true;
        });
        return text;
      };
      chart.lines.forEach((line, i) => {
        const colour = `var(--c${i % 8})`, style = {fill: 'none', stroke: colour, 'stroke-linejoin': 'round'};
        if (line.low) {  // the band between the lowest and the highest value of each group of steps
          const inside = line.steps.map((_, k) => k).filter(k => line.values[k] !== null);
          const edge = (numbers, values) => numbers.map(k => `${x(line.steps[k]).toFixed(1)} ${y(values[k]).toFixed(1)}`).join('L');
          const band = `M${edge(inside, line.high)}L${edge([...inside].reverse(), line.low)}Z`;
          if (inside.length) element(svg, 'path', {d: band, fill: colour, opacity: 0.18});
        }
        if (chart.axis) {
          line.steps.forEach((step, k) => element(svg, 'circle', {cx: x(step), cy: y(line.values[k]), r: 4, fill: colour}));
          return;
        }
        const isSmoothed = !chart.exact && line.values.length >= SMOOTHED_FROM;
        if (isSmoothed) element(svg, 'path', {...style, d: path(line.steps, line.values), opacity: 0.3, 'stroke-width': 1});
        element(svg, 'path', {...style, d: path(line.steps, isSmoothed ? smoothed(line.values) : line.values), 'stroke-width': 2});
        if (line.values.length <= 30)
          line.steps.forEach((step, k) => line.values[k] !== null && element(svg, 'circle', {cx: x(step), cy: y(line.values[k]), r: 2.8, fill: colour}));
      });
      svg.pointer = {x, y};
    }

    if (known.length && least > 0 && most > least) {
      const button = element(caption, 'button', {type: 'button', 'aria-pressed': false}, 'log scale');
      button.addEventListener('click', () => {
        isLog = !isLog;
        button.setAttribute('aria-pressed', isLog);
        render();
      });
    }
    render();
    const tip = element(figure, 'div', {class: 'tip', hidden: ''});
    let marks = [];
    const leave = () => {
      tip.hidden = true;
      marks.forEach(mark => mark.remove());
      marks = [];
    };
    svg.addEventListener('pointerleave', leave);
    svg.addEventListener('pointermove', event => {
      leave();
      const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * WIDTH;
      const near = chart.lines.map((line, i) => {
        let best = -1;
        line.steps.forEach((step, k) => {
          if (line.values[k] !== null && (best < 0 || Math.abs(x(step) - at) < Math.abs(x(line.steps[best]) - at))) best = k;
        });
        return {line, i, best};
      }).filter(({best}) => best >= 0);
      if (!near.length) return;
      for (const {line, i, best} of near)
        marks.push(element(svg, 'circle', {cx: svg.pointer.x(line.steps[best]), cy: svg.pointer.y(line.values[best]), r: 4, fill: `var(--c${i % 8})`}));
      tip.textContent = near.map(({line, best}) => {
        const band = line.low ? ` (${long(line.low[best])} to ${long(line.high[best])})` : '';
        const name = line.names?.[best] ?? `${line.label}, step ${line.steps[best].toLocaleString('en')}`;
        return `${name}: ${long(line.values[best])}${band}`;
      }).join('\n');
      tip.hidden = false;
      const inFigure = figure.getBoundingClientRect();
      tip.style.maxWidth = 'none';
      tip.style.left = `${Math.max(4, Math.min(event.clientX - inFigure.left + 14, inFigure.width - tip.offsetWidth - 6))}px`;
      tip.style.top = `${box.top - inFigure.top + 6}px`;
    });
  }

  charts.forEach(chart => draw(document.getElementById('charts'), chart));
})();

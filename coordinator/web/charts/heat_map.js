// The heat map: ranks × steps, coloured by growth.
//
// A canvas, because there are up to 30,000 cells. Its colours are read from the style sheet at each
// drawing: the middle of the scale is the colour of the panel, so that healthy rows stay calm in
// both themes.

import { make } from '../elements.js';
import { setQuery } from '../route.js';
import { bytes, stepTicks, whole } from '../units.js';
import { grid, growthOf } from './heat.js';

const [LEFT, BOTTOM] = [64, 34];
/** Less than this is drawn as calm: noise of a healthy job is no signal. */
const TOP_MIN_BYTES = 1 << 20;

export function heatMap({ rows, incidents, isAgainstPeers, selected, unit }) {
  const map = grid(rows);
  if (!map) return make('p', { class: 'soft' }, `no finished ${unit}s yet`);
  const values = growthOf(map, isAgainstPeers);
  const known = values.flat().filter(value => value !== null);
  const top = known.reduce((most, value) => Math.max(most, Math.abs(value)), TOP_MIN_BYTES);
  const rowHeight = Math.max(6, Math.min(22, Math.floor(440 / rows.length)));
  const of = { rows, incidents, selected, unit, map, values, top, rowHeight };
  const readout = make('p', { class: 'readout soft' }, 'point at the map for exact numbers');
  const ground = isAgainstPeers ? 'than the median rank' : 'than at the left end';
  const canvas = drawing(
    rowHeight * rows.length + BOTTOM,
    (context, width) => paint(of, context, width),
    {
      role: 'img',
      'aria-label':
        `Heat map of the minimum of each ${unit}, ${rows.length} ranks, ` +
        `${unit}s ${map.first} to ${map.last}; the table of ranks below has the newest numbers`,
    },
  );
  canvas.addEventListener('pointermove', event => {
    const cell = cellAt(of, event);
    if (cell) readout.textContent = words(of, cell, ground);
  });
  canvas.addEventListener('click', event => {
    const cell = cellAt(of, event);
    if (cell) setQuery('rank', rows[cell.row].rank);
  });
  const scale = drawing(
    14,
    (context, width) => {
      for (let x = 0; x < width; x += 1) {
        context.fillStyle = shade((x / width) * 2 - 1);
        context.fillRect(x, 0, 1.5, 14);
      }
    },
    { class: 'legend', 'aria-hidden': 'true' },
  );
  const missing = drawing(14, (context, width) => hatch(context, 0, 0, width, 14), {
    class: 'swatch',
    'aria-hidden': 'true',
  });
  return make(
    'figure',
    {},
    make('div', { class: 'chart' }, canvas),
    readout,
    make(
      'figcaption',
      {},
      make('span', {}, bytes(-top)),
      scale,
      make('span', {}, `${bytes(top, true)} ${ground}`),
      make('span', {}, missing, ' no data'),
      incidents.length
        ? make('span', {}, '▲ open incident: framed from where it began, ┃ where it was detected')
        : null,
      make('span', {}, 'at the right: now'),
    ),
  );
}

const rightOf = width => (width < 520 ? 74 : 100);

function cellAt({ rows, map, rowHeight }, event) {
  const box = event.currentTarget.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / rowHeight);
  const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - rightOf(box.width));
  const column = Math.floor(share * map.columns);
  return rows[row] && column >= 0 && column < map.columns ? { row, column } : null;
}

function words({ rows, map, values, unit }, { row, column }, ground) {
  const minimum = map.cells[row][column];
  const where = `rank ${rows[row].rank}, ${unit} ${whole(Math.round(map.first + column * map.span))}`;
  if (minimum === null) return `${where}: no data`;
  return `${where}: minimum ${bytes(minimum)}, ${bytes(values[row][column], true)} ${ground}`;
}

function paint(of, context, width) {
  const { rows, map, values, top, rowHeight, selected, incidents } = of;
  const right = width - rightOf(width);
  const cell = (right - LEFT) / map.columns;
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  values.forEach((line, row) => {
    const y = row * rowHeight;
    line.forEach((value, column) => {
      if (value === null) return;
      context.fillStyle = shade(value / top);
      context.fillRect(LEFT + column * cell, y, cell + 0.6, rowHeight - 1);
    });
    gaps(line).forEach(([from, to]) =>
      hatch(context, LEFT + from * cell, y, (to - from) * cell, rowHeight),
    );
    const incident = incidents.find(found => found.rank === rows[row].rank);
    name(of, context, row, incident, right);
    if (incident) outline(of, context, y, incident, cell, right);
    if (rows[row].rank === selected) frame(context, '--link', LEFT, y, right - LEFT, rowHeight - 1);
  });
  axis(of, context, cell, right);
}

function name({ rows, values, rowHeight }, context, row, incident, right) {
  const stride = Math.ceil(13 / rowHeight);
  if (row % stride !== 0 && !incident) return;
  const y = row * rowHeight + rowHeight / 2;
  context.fillStyle = theme(incident ? '--bad' : '--text');
  context.textAlign = 'left';
  context.fillText(`${incident ? '▲ ' : ''}rank ${rows[row].rank}`, 2, y);
  const end = values[row].findLast(value => value !== null);
  context.fillText(end === undefined ? 'no data' : bytes(end, true), right + 6, y);
}

/** From the onset on; a bar marks where it was detected. */
function outline({ map, rowHeight }, context, y, incident, cell, right) {
  const at = step => LEFT + ((Math.max(step, map.first) - map.first) / map.span) * cell;
  frame(
    context,
    '--mark',
    at(incident.onset_step),
    y,
    right - at(incident.onset_step),
    rowHeight - 1,
  );
  context.fillStyle = theme('--mark');
  context.fillRect(at(incident.detected_step) - 1.5, y, 3, rowHeight - 1);
}

function frame(context, tint, x, y, width, height) {
  context.strokeStyle = theme(tint);
  context.lineWidth = 2;
  context.strokeRect(x, y, width, height);
}

function axis({ rows, map, unit, rowHeight }, context, cell, right) {
  const y = rows.length * rowHeight;
  context.fillStyle = theme('--soft');
  context.textAlign = 'center';
  for (const step of stepTicks(map.first, map.last, (right - LEFT) / 70)) {
    const x = LEFT + ((step - map.first) / map.span) * cell;
    context.fillRect(x, y, 1, 4);
    context.fillText(whole(step), x, y + 12);
  }
  context.textAlign = 'right';
  context.fillText(unit, right, y + 26);
}

/** Runs of columns without data, as [from, to). */
function gaps(line) {
  const found = [];
  line.forEach((value, column) => {
    if (value !== null) return;
    if (found.at(-1)?.[1] === column) found.at(-1)[1] += 1;
    else found.push([column, column + 1]);
  });
  return found;
}

function hatch(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = theme('--line');
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

/** A canvas that is sharp on any screen and is drawn again when its width changes. */
function drawing(height, draw, attributes) {
  const canvas = make('canvas', attributes);
  canvas.style.height = `${height}px`;
  new ResizeObserver(() => {
    const [width, scale] = [canvas.clientWidth, window.devicePixelRatio || 1];
    const context = canvas.getContext('2d');
    if (!context || width === 0) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    context.scale(scale, scale);
    colours.clear();
    draw(context, width);
  }).observe(canvas);
  return canvas;
}

// --- colours of the style sheet, as the theme has them now -------------------

const colours = new Map();

function theme(name) {
  if (!colours.has(name)) {
    const probe = document.getElementById('probe');
    probe.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

const parts = name =>
  theme(name)
    .match(/[\d.]+/g)
    .slice(0, 3)
    .map(Number);

/** The colour of a share from −1 to 1. The root makes small shares visible. */
function shade(share) {
  const weight = Math.sqrt(Math.min(1, Math.abs(share)));
  const [from, to] = [parts('--heat-calm'), parts(share < 0 ? '--heat-less' : '--heat-more')];
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * weight)).join(',')})`;
}

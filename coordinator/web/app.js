// The page: jobs, one job (ranks × steps), incidents, captures, actions, nodes.
//
// It reads /api/v1 every two seconds and draws what it gets; its only state is the address bar (everything after #)
// and the theme. Every text from the API goes through textContent:
// file names and command lines come from the training processes and are not trusted.
// The only request that changes anything is the one for a capture.
'use strict';

const REFRESH_MS = 2000;
const SERIES_REFRESH_MS = 5000;
const SERIES_RANKS_MAX = 128; // more rows than this are not fetched; the page says so
const SERIES_PARALLEL = 6;
const SERIES_POINTS = 400;
const HEAT_COLUMNS_MAX = 240;

// --- small things ------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function bytes(count, sign = false) {
  if (count === null || count === undefined) return 'unknown';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let value = Math.abs(count);
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  const lead = count < 0 ? '−' : sign && count > 0 ? '+' : '';
  return `${lead}${unit === 0 ? value.toFixed(0) : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

function bytesNode(count, sign = false) {
  return make('span', { title: count === null || count === undefined ? 'not measured' : `${count} bytes` },
    bytes(count, sign));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return 'unknown';
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function time(wallNs) {
  if (!wallNs) return '–';
  const date = new Date(wallNs / 1e6);
  return make('time', { datetime: date.toISOString(), title: date.toISOString() }, date.toLocaleString());
}

/* How much grows, in the unit of its layer. */
function growthFacts(incident) {
  const soFar = incident.grown_bytes;
  const unit = unitOf(incident);
  const steps = ['growth', `in ${whole(soFar)} of the last 64 ${unit}s`];
  switch (incident.layer) {
    case 'blocks': return [['growth', `+${whole(incident.bytes_per_step)} tensors a ${unit}`],
      ['grown so far', `${whole(soFar)} tensors`]];
    case 'retries': case 'churn': return [steps];
    case 'progress': return [['behind its peers', `${whole(soFar)} steps`]];
    case 'spread': return [['above its peers', bytesNode(soFar)]];
    default: return [['growth', make('span', {}, bytesNode(incident.bytes_per_step, true), ` a ${unit}`)],
      ['grown so far', bytesNode(soFar)]];
  }
}

const whole = number => (number === null || number === undefined ? '–' : number.toLocaleString('en-US'));
const lineOf = frame => `${frame.file}:${frame.line}`;
const median = values => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : 0;
};

// Symbol, word and tone of every state that the API names.
const STATES = {
  warming: ['◔', '', 'warming up'], healthy: ['✓', 'good', 'healthy'], watching: ['◉', 'warn', 'watching'],
  growing: ['▲', 'bad', 'growing'], leaking: ['▲', 'bad', 'leaking'], ended: ['■', '', 'ended'],
  unknown: ['?', 'warn', 'unknown'], disconnected: ['?', 'warn', 'disconnected'], silent: ['?', 'warn', 'silent'],
  open: ['▲', 'bad', 'open'], closed: ['✓', '', 'closed'],
  complete: ['✓', 'good', 'complete'], partial: ['◑', 'warn', 'partial'], collecting: ['…', '', 'collecting'],
  aligned: ['✓', 'good', 'aligned'], late: ['↷', 'warn', 'late'], behind: ['↶', 'warn', 'behind'],
  dead: ['✕', 'bad', 'dead'], no_tape: ['∅', 'bad', 'no tape'], unreachable: ['?', 'bad', 'unreachable'],
  awaited: ['…', '', 'awaited'],
  exited: ['■', '', 'exited'], killed: ['✕', 'bad', 'killed'], oom_killed: ['✕', 'bad', 'killed for memory'],
};

function chip(state) {
  const [symbol, tone, word] = STATES[state] ?? ['·', '', String(state)];
  return make('span', { class: `chip ${tone}` }, `${symbol} ${word}`);
}

// --- where we are: everything after # ----------------------------------------

function route() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const parts = path.split('/').filter(Boolean).map(part => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { view: parts[0] ?? 'jobs', id: parts[1] ?? '', query: new URLSearchParams(query) };
}

const link = (view, id) => `#/${view}/${encodeURIComponent(id)}`;

function setQuery(name, value) {
  const { view, id, query } = route();
  query.set(name, value);
  location.replace(`${link(view, id)}?${query}`);
}

// --- the API -----------------------------------------------------------------

async function get(path) {
  const response = await fetch(`api/v1/${path}`, { headers: { accept: 'application/json' } });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error ?? `the coordinator answered ${response.status}`);
  return body;
}

const seriesCache = new Map(); // rank of a job -> { at, data }

async function series(job, attempt, rank, device) {
  const key = JSON.stringify([job, attempt, rank, device]);
  const known = seriesCache.get(key);
  if (known && Date.now() - known.at < SERIES_REFRESH_MS) return known.data;
  const query = `rank=${rank}&device=${device}&points=${SERIES_POINTS}`;
  const data = await get(`jobs/${encodeURIComponent(job)}/series?${query}`).catch(() => known?.data ?? null);
  seriesCache.delete(key);
  seriesCache.set(key, { at: Date.now(), data });
  if (seriesCache.size > 2 * SERIES_RANKS_MAX) seriesCache.delete(seriesCache.keys().next().value);
  return data;
}

/** Series of many ranks, a few requests at a time. */
async function allSeries(job, attempt, ranks) {
  const rows = new Array(ranks.length);
  let next = 0;
  const worker = async () => {
    while (next < ranks.length) {
      const index = next++;
      const { rank, devices } = ranks[index];
      const main = devices.reduce((a, b) => (b.allocated_bytes > a.allocated_bytes ? b : a), devices[0] ?? { device: 0 });
      rows[index] = { rank, data: await series(job, attempt, rank, main.device) };
    }
  };
  await Promise.all(Array.from({ length: SERIES_PARALLEL }, worker));
  return rows;
}

// --- tables ------------------------------------------------------------------

/** Columns are [title, cell(row), { number, sort(row) }]; sorting is kept in the address bar. */
function table(columns, rows, options = {}) {
  const { name = '', rowClass = () => '', empty = 'nothing yet' } = options;
  if (rows.length === 0) return make('p', { class: 'soft' }, empty);
  const [sortBy, order] = (route().query.get(name) ?? '').split('.');
  const sorter = name && columns.find(([title, , extra]) => title === sortBy && extra?.sort);
  if (sorter) {
    rows = [...rows].sort((a, b) => {
      const [x, y] = [sorter[2].sort(a), sorter[2].sort(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (order === 'down' ? -1 : 1);
    });
  }
  const head = columns.map(([title, , extra]) => {
    const sorted = sorter && title === sortBy;
    const arrow = sorted ? (order === 'down' ? ' ↓' : ' ↑') : '';
    const turn = () => setQuery(name, `${title}.${sorted && order === 'down' ? 'up' : 'down'}`);
    return make('th', { scope: 'col', class: extra?.number ? 'number' : '',
      'aria-sort': sorted ? (order === 'down' ? 'descending' : 'ascending') : null },
    name && extra?.sort ? make('button', { type: 'button', onclick: turn }, title + arrow) : title);
  });
  const body = rows.map(row => make('tr', { class: rowClass(row) },
    columns.map(([, cell, extra]) => make('td', { class: extra?.number ? 'number' : '' }, cell(row)))));
  return make('div', { class: 'scroll' },
    make('table', {}, make('thead', {}, make('tr', {}, head)), make('tbody', {}, body)));
}

function facts(pairs) {
  return make('dl', {}, pairs.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]));
}

function list(sentences, empty) {
  if (!sentences?.length) return make('p', { class: 'soft' }, empty);
  return make('ul', {}, sentences.map(sentence => make('li', {}, sentence)));
}

// --- drawing -----------------------------------------------------------------

const themeColours = new Map(); // read once for each painting
function theme(name) {
  if (!themeColours.has(name)) {
    themeColours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return themeColours.get(name);
}

/** A canvas that is sharp on any screen; `draw(context, width, height)` runs when it is laid out. */
function drawing(height, label, draw, extra = {}) {
  const canvas = make('canvas', { role: 'img', 'aria-label': label, ...extra });
  canvas.style.height = `${height}px`;
  const paint = () => {
    const width = canvas.clientWidth || 600;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext('2d');
    if (!context) return;
    context.scale(scale, scale);
    themeColours.clear();
    draw(context, width, height);
  };
  requestAnimationFrame(paint);
  canvas.repaint = paint;
  return canvas;
}

// Anchors of cividis (one-coloured growth) and of blue-white-red (less and more than the peers).
const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
const DIVERGING = [[33, 102, 172], [146, 197, 222], [247, 247, 247], [244, 165, 130], [178, 24, 43]];

function colour(anchors, share) {
  const place = Math.min(Math.max(share, 0), 1) * (anchors.length - 1);
  const low = Math.min(Math.floor(place), anchors.length - 2);
  const mix = anchors[low].map((from, i) => Math.round(from + (anchors[low + 1][i] - from) * (place - low)));
  return `rgb(${mix.join(',')})`;
}

function hatch(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = theme('--line');
  context.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

/** What a job, a rank or an incident counts: a process without steps counts turns. */
const unitOf = of => (of?.clock === 'turns' ? 'turn' : 'step');

/** Per-step minimum of all ranks on one grid of steps; null where a rank has no data. */
function grid(rows) {
  const withData = rows.filter(row => row.data?.steps?.length);
  if (withData.length === 0) return null;
  const first = Math.min(...withData.map(row => row.data.steps[0]));
  const last = Math.max(...withData.map(row => row.data.steps.at(-1)));
  const columns = Math.min(HEAT_COLUMNS_MAX, last - first + 1);
  const span = (last - first + 1) / columns;
  const cells = rows.map(({ data }) => {
    const row = new Array(columns).fill(null);
    if (!data?.steps?.length) return row;
    data.steps.forEach((step, i) => {
      const column = Math.min(columns - 1, Math.floor((step - first) / span));
      const minimum = data.step_min_bytes[i];
      row[column] = row[column] === null ? minimum : Math.min(row[column], minimum);
    });
    // Between two points of a thinned-out series the minimum is the one before.
    const end = Math.min(columns - 1, Math.floor((data.steps.at(-1) - first) / span));
    for (let i = 1; i <= end; i += 1) row[i] ??= row[i - 1];
    return row;
  });
  return { first, last, columns, span, cells };
}

/** What the heat-map colours: growth since the left edge, or its difference from the median rank. */
function heatValues(map, mode) {
  const head = Math.max(1, Math.floor(map.columns / 10));
  const growth = map.cells.map(line => {
    const known = line.filter(value => value !== null).slice(0, head);
    const start = known.length ? median(known) : 0;
    return line.map(value => (value === null ? null : value - start));
  });
  if (mode !== 'peers') return growth;
  const middle = Array.from({ length: map.columns }, (_, column) =>
    median(growth.map(line => line[column]).filter(value => value !== null)));
  return growth.map(line => line.map((value, column) => (value === null ? null : value - middle[column])));
}

function heatMap(rows, incidents, mode, selected, unit) {
  const map = grid(rows);
  if (!map) return make('p', { class: 'soft' }, 'no finished steps yet');
  const values = heatValues(map, mode);
  const known = values.flat().filter(value => value !== null);
  const top = Math.max(1 << 20, ...(mode === 'peers' ? known.map(Math.abs) : known));
  const [anchors, share] = mode === 'peers'
    ? [DIVERGING, value => 0.5 + value / top / 2] : [CIVIDIS, value => value / top];
  const rowHeight = Math.max(6, Math.min(22, Math.floor(440 / rows.length)));
  const [left, right, bottom] = [64, 100, 22];
  const height = rowHeight * rows.length + bottom;
  const readout = make('div', { class: 'readout soft', 'aria-live': 'polite' },
    'point at the map for exact numbers');
  const at = (x, width) => Math.floor((x - left) / (width - left - right) * map.columns);

  const draw = (context, width) => {
    const cell = (width - left - right) / map.columns;
    context.font = '12px system-ui, sans-serif';
    context.textBaseline = 'middle';
    values.forEach((line, row) => {
      const y = row * rowHeight;
      line.forEach((value, column) => {
        const x = left + column * cell;
        if (value === null) {
          if (column > 0 && line[column - 1] === null) return; // the run is hatched already
          const known = line.findIndex((later, index) => index > column && later !== null);
          hatch(context, x, y, ((known < 0 ? line.length : known) - column) * cell, rowHeight);
          return;
        }
        context.fillStyle = colour(anchors, share(value));
        context.fillRect(x, y, cell + 0.6, rowHeight - 1);
      });
      const stride = Math.ceil(13 / rowHeight);
      const incident = incidents.find(found => found.rank === rows[row].rank);
      if (row % stride === 0 || incident) {
        context.fillStyle = theme(incident ? '--bad' : '--text');
        context.fillText(`${incident ? '▲ ' : ''}rank ${rows[row].rank}`, 2, y + rowHeight / 2);
        const end = line.findLast(value => value !== null);
        context.fillText(end === undefined ? 'no data' : bytes(end, true), width - right + 6, y + rowHeight / 2);
      }
      if (incident && incident.onset_step >= map.first) {
        const x = left + (incident.onset_step - map.first) / map.span * cell;
        context.strokeStyle = theme('--mark');
        context.lineWidth = 2;
        context.strokeRect(x, y, width - right - x, rowHeight - 1);
      }
      if (rows[row].rank === selected) {
        context.strokeStyle = theme('--link');
        context.lineWidth = 2;
        context.strokeRect(left, y, width - left - right, rowHeight - 1);
      }
    });
    context.fillStyle = theme('--soft');
    context.fillText(`${unit} ${whole(map.first)}`, left, height - bottom / 2);
    context.textAlign = 'right';
    context.fillText(`${unit} ${whole(map.last)}`, width - right, height - bottom / 2);
  };
  const find = event => {
    const box = event.currentTarget.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / rowHeight);
    const column = at(event.clientX - box.left, box.width);
    return rows[row] && column >= 0 && column < map.columns ? [row, column] : null;
  };
  const point = event => {
    const found = find(event);
    if (!found) return;
    const [row, column] = found;
    const step = Math.round(map.first + column * map.span);
    const minimum = map.cells[row][column];
    readout.textContent = minimum === null ? `rank ${rows[row].rank}, ${unit} ${whole(step)}: no data`
      : `rank ${rows[row].rank}, ${unit} ${whole(step)}: ${unit} minimum ${bytes(minimum)}, ` +
        `${bytes(values[row][column], true)} ${mode === 'peers' ? 'against the median rank' : 'since the left edge'}`;
  };
  const pick = event => {
    const found = find(event);
    if (found) setQuery('rank', rows[found[0]].rank);
  };
  const label = `Heat map of per-${unit} minimums, ${rows.length} ranks, ${unit}s ${map.first} to ${map.last}; ` +
    'the table below has the same numbers';
  const canvas = drawing(height, label, draw, { onmousemove: point, onclick: pick });
  const scale = drawing(14, 'colour scale', (context, width) => {
    for (let x = 0; x < width; x += 1) {
      context.fillStyle = colour(anchors, x / width);
      context.fillRect(x, 0, 1.5, 14);
    }
  }, { class: 'legend' });
  const missing = drawing(14, 'hatched', (context, width) => hatch(context, 0, 0, width, 14), { class: 'swatch' });
  return make('figure', {}, canvas, readout, make('figcaption', {},
    make('span', {}, mode === 'peers' ? `−${bytes(top)}` : '0'), scale, make('span', {}, `+${bytes(top)}`),
    make('span', {}, missing, ' no data'), make('span', {}, '▲ and frame: open incident, from its onset'),
    make('span', {}, 'number at the right: now')));
}

// Lines differ by dash as well as by colour (Okabe-Ito).
const LINES = [
  ['reserved_bytes', '--reserved', [2, 3], 'reserved'],
  ['peak_bytes', '--peak', [7, 4], 'peak'],
  ['step_min_bytes', '--step-min', [], 'step minimum'],
];

function rankChart(rank, data, incident, unit) {
  if (!data?.steps?.length) return make('p', { class: 'soft' }, 'no finished steps yet');
  const top = Math.max(1, ...LINES.flatMap(([name]) => data[name] ?? []));
  const [first, last] = [data.steps[0], data.steps.at(-1)];
  const draw = (context, width, height) => {
    const x = step => 8 + (step - first) / Math.max(1, last - first) * (width - 16);
    const y = value => height - 20 - value / top * (height - 36);
    context.font = '12px system-ui, sans-serif';
    for (const [name, tint, dash] of LINES) {
      context.strokeStyle = theme(tint);
      context.lineWidth = 1.8;
      context.setLineDash(dash);
      context.beginPath();
      data.steps.forEach((step, i) => context.lineTo(x(step), y(data[name]?.[i] ?? 0)));
      context.stroke();
    }
    context.setLineDash([]);
    context.fillStyle = theme('--soft');
    context.fillText(bytes(top), 8, 12);
    context.fillText(`${unit} ${whole(first)}`, 8, height - 6);
    context.textAlign = 'right';
    context.fillText(`${unit} ${whole(last)}`, width - 8, height - 6);
    for (const [name, step] of [['onset', incident?.onset_step], ['detected', incident?.detected_step]]) {
      if (step === undefined || step === null || step < first || step > last) continue;
      context.strokeStyle = theme('--mark');
      context.beginPath();
      context.moveTo(x(step), 16);
      context.lineTo(x(step), height - 20);
      context.stroke();
      context.fillStyle = theme('--mark');
      // The onset comes first: its name goes to the left, where there is room.
      context.textAlign = name === 'onset' ? (x(step) > 120 ? 'right' : 'left') : (x(step) > width - 120 ? 'right' : 'left');
      context.fillText(` ${name}: ${whole(step)} `, x(step), name === 'onset' ? 28 : 42);
    }
  };
  const keys = LINES.map(([, tint, dash, title]) => make('span', {}, drawing(14, title, context => {
    context.strokeStyle = theme(tint);
    context.lineWidth = 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(0, 7);
    context.lineTo(28, 7);
    context.stroke();
  }, { class: 'swatch' }), ` ${title.replace('step', unit)}`));
  return make('figure', {}, drawing(200, `Memory of rank ${rank} over ${unit}s ${first} to ${last}`, draw),
    make('figcaption', {}, keys));
}

// --- views: each loads its data, then draws it --------------------------------

function alertBox(incident) {
  return make('div', { class: `alert ${incident.state}`, role: incident.state === 'open' ? 'alert' : null },
    make('p', { class: 'sentence' }, make('a', { href: link('incident', incident.id) }, incident.sentence)),
    make('p', {}, chip(incident.state), ' ', chip(incident.class), ' ',
      incident.culprit ? make('code', {}, `${lineOf(incident.culprit)} ${incident.culprit.function}`) : 'culprit not known yet'));
}

function actionTable(actions) {
  return table([
    ['time', row => time(row.wall_ns)], ['kind', row => row.kind],
    ['decision', row => `${row.decision}${row.dry_run ? ' (dry run)' : ''}`],
    ['why', row => row.why], ['outcome', row => row.outcome ?? '–'],
    ['incident', row => make('a', { href: link('incident', row.incident_id) }, row.incident_id)],
  ], actions, { empty: 'no action was taken or considered' });
}

const JOB_ORDER = ['leaking', 'behind', 'silent', 'disconnected', 'watching', 'warming', 'healthy', 'ended'];

const VIEWS = {
  jobs: {
    load: async () => ({ ...await get('jobs'), ...await get('incidents') }),
    draw: ({ jobs, incidents }) => {
      const order = state => (JOB_ORDER.includes(state) ? JOB_ORDER.indexOf(state) : JOB_ORDER.length);
      const sorted = [...jobs].sort((a, b) => order(a.state) - order(b.state) || b.started_wall_ns - a.started_wall_ns);
      return [
        ...incidents.filter(found => found.state === 'open').map(alertBox),
        make('h1', {}, 'Jobs'),
        table([
          ['state', row => chip(row.state), { sort: row => order(row.state) }],
          ['job', row => make('a', { href: link('job', row.job) }, row.job), { sort: row => row.job }],
          ['attempt', row => row.attempt, { number: true }],
          ['ranks alive', row => `${row.ranks_alive} of ${row.world_size || row.ranks}`, { number: true, sort: row => row.ranks_alive }],
          ['steps', row => `${row.step_min === row.step_max ? '' : `${whole(row.step_min)} – `}${whole(row.step_max)}${row.clock === 'turns' ? ' turns' : ''}`, { number: true, sort: row => row.step_max }],
          ['open incidents', row => row.incidents_open, { number: true, sort: row => row.incidents_open }],
          ['nodes', row => row.nodes.join(', ')],
          ['started', row => time(row.started_wall_ns), { sort: row => row.started_wall_ns }],
        ], sorted, { name: 'sort', empty: 'no job yet: start one with  memtape run -- torchrun …' }),
        closedIncidents(incidents),
      ];
    },
  },
  job: {
    load: async id => {
      const name = encodeURIComponent(id);
      const [ranks, incidents, captures] = await Promise.all(
        [get(`jobs/${name}/ranks`), get(`incidents?job=${name}`), get(`captures?job=${name}`)]);
      const byGrowth = [...ranks.ranks].sort((a, b) => b.growth_bytes_per_step - a.growth_bytes_per_step);
      const shown = byGrowth.slice(0, SERIES_RANKS_MAX).sort((a, b) => a.rank - b.rank);
      const rows = await allSeries(id, ranks.attempt, shown);
      return { ...ranks, incidents: incidents.incidents, captures: captures.captures, rows };
    },
    draw: drawJob,
  },
  incident: {
    load: async id => {
      const incident = await get(`incidents/${encodeURIComponent(id)}`);
      const [actions, capture, data] = await Promise.all([
        get('actions'),
        incident.capture_id ? get(`captures/${encodeURIComponent(incident.capture_id)}`).catch(() => null) : null,
        series(incident.job, incident.attempt, incident.rank, incident.device)]);
      return { incident, actions: actions.actions.filter(row => row.incident_id === id), capture, data };
    },
    draw: drawIncident,
  },
  capture: {
    load: id => get(`captures/${encodeURIComponent(id)}`),
    draw: capture => [make('h1', {}, `Capture ${capture.id}`), ...manifest(capture)],
  },
  actions: {
    load: () => get('actions'),
    draw: ({ actions }) => [make('h1', {}, 'Actions'), actionTable(actions)],
  },
  nodes: {
    load: () => get('nodes'),
    draw: ({ nodes }) => [make('h1', {}, 'Nodes'), table([
      ['node', row => row.node], ['agent', row => (row.connected ? '✓ connected' : '✕ not connected')],
      ['version', row => row.version], ['last report', row => time(row.last_report_wall_ns)],
      ['GPUs', row => row.gpus?.length ?? 0, { number: true }],
      ['NVML', row => row.host.nvml_missing || 'available'],
    ], nodes, { empty: 'no agent has connected yet: start one with  memtape agent' })],
  },
};

function closedIncidents(incidents) {
  const closed = incidents.filter(found => found.state !== 'open');
  return closed.length === 0 ? null : make('section', {}, make('h2', {}, 'Closed incidents'), closed.map(alertBox));
}

function drawJob({ job, attempt, ranks, incidents, captures, rows }) {
  const { query } = route();
  const open = incidents.filter(found => found.state === 'open');
  const mode = query.get('show') === 'growth' ? 'growth' : 'peers';
  const selected = query.has('rank') ? Number(query.get('rank')) : open[0]?.rank ?? null;
  const sum = (row, name) => row.devices.reduce((total, device) => total + device[name], 0);
  const choose = make('select', { id: 'show', onchange: event => setQuery('show', event.target.value) },
    [['peers', 'difference from the median rank'], ['growth', 'growth since the left edge']]
      .map(([value, text]) => make('option', { value, selected: value === mode }, text)));
  const size = (title, value) => [title, row => bytesNode(value(row)), { number: true, sort: row => value(row) ?? -1 }];
  const count = (title, value) => [title, row => whole(value(row)), { number: true, sort: value }];
  const chosen = rows.find(row => row.rank === selected);
  const unit = unitOf({ clock: ranks.every(row => row.clock === 'turns') ? 'turns' : 'steps' });
  return [
    ...open.map(alertBox),
    make('h1', {}, `Job ${job}`),
    make('p', { class: 'soft' }, `attempt ${attempt}, ${ranks.length} ranks, ` +
      `${ranks.filter(row => row.alive).length} alive `,
    make('button', { type: 'button', onclick: () => requestCapture(job) }, 'Capture all ranks now'),
    make('span', { id: 'capture-answer', role: 'status' })),
    make('h2', {}, make('label', { for: 'show' }, `Per-${unit} minimum: `), choose),
    rows.length < ranks.length
      ? make('p', { class: 'soft' }, `showing the ${rows.length} fastest-growing of ${ranks.length} ranks`) : null,
    heatMap(rows, open, mode, selected, unit),
    chosen ? make('section', {}, make('h2', {}, `Rank ${selected}`),
      rankChart(selected, chosen.data, open.find(found => found.rank === selected),
        unitOf(ranks.find(row => row.rank === selected)))) : null,
    make('h2', {}, 'Ranks'),
    table([
      ['rank', row => make('a', { href: `${link('job', job)}?rank=${row.rank}` }, String(row.rank)), { sort: row => row.rank }],
      ['state', row => [chip(row.state), row.end ? chip(row.end) : null], { sort: row => row.state }],
      ['node', row => `${row.node}${row.pid ? `, pid ${row.pid}` : ''}`, { sort: row => row.node }],
      ['step', row => `${row.clock === 'turns' ? 'turn ' : ''}${whole(row.step)}`, { number: true, sort: row => row.step }],
      [`growth a ${unit}`, row => bytesNode(row.growth_bytes_per_step, true), { number: true, sort: row => row.growth_bytes_per_step }],
      size('allocated', row => sum(row, 'allocated_bytes')), size('reserved', row => sum(row, 'reserved_bytes')),
      size('peak', row => sum(row, 'peak_allocated_bytes')), count('blocks', row => sum(row, 'blocks')),
      count('OOMs', row => sum(row, 'ooms')), count('retries', row => sum(row, 'malloc_failures')),
      size('host RSS', row => row.rss_bytes), count('lost events', row => row.lost_events),
      ['limitations', row => row.limitations.join('; ') || '–'],
    ], ranks, { name: 'sort', rowClass: row => [open.some(found => found.rank === row.rank) ? 'suspect' : '',
      row.rank === selected ? 'selected' : ''].join(' ').trim() }),
    make('h2', {}, 'Captures'),
    captureTable(captures),
    closedIncidents(incidents),
  ];
}

function captureTable(captures) {
  return table([
    ['capture', row => make('a', { href: link('capture', row.id) }, row.id)],
    ['state', row => chip(row.state)], ['trigger', row => row.trigger],
    ['step', row => whole(row.step), { number: true }],
    ['aligned', row => `${row.aligned} of ${row.ranks}`, { number: true }],
    ['missing', row => row.missing.map(part => `rank ${part.rank}: ${part.outcome}`).join(', ') || 'none'],
    ['requested', row => time(row.requested_wall_ns)],
  ], captures, { empty: 'no capture yet' });
}

async function requestCapture(job) {
  const answer = document.getElementById('capture-answer');
  answer.textContent = ' requesting…';
  try {
    const response = await fetch(`api/v1/jobs/${encodeURIComponent(job)}/captures`, {
      method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' });
    const body = await response.json();
    if (!response.ok) throw new Error(body.error);
    location.hash = link('capture', body.id);
  } catch (error) {
    answer.textContent = ` ${error.message}`;
  }
}

function drawIncident({ incident, actions, capture, data }) {
  const unit = unitOf(incident);
  const forecast = incident.steps_to_oom === null || incident.steps_to_oom === undefined ? 'not known'
    : `in about ${whole(incident.steps_to_oom)} ${unit}s (${duration(incident.seconds_to_oom)})`;
  const commands = [`memtape show ${incident.id}`];
  if (incident.capture_id) {
    commands.push(`memtape export ${incident.capture_id} --rank ${incident.rank} --format pickle -o rank${incident.rank}.pickle`);
  }
  return [
    make('h1', {}, incident.sentence),
    make('p', {}, chip(incident.state), ' ', chip(incident.class), ' in ',
      make('a', { href: `${link('job', incident.job)}?rank=${incident.rank}` }, `job ${incident.job}`)),
    incident.closed_reason ? make('p', {}, `Closed: ${incident.closed_reason}`) : null,
    make('p', {}, 'Culprit: ', incident.culprit
      ? make('code', { class: 'culprit' }, `${lineOf(incident.culprit)}  ${incident.culprit.function}`) : 'not known yet'),
    incident.stack.length ? make('pre', { 'aria-label': 'stack, innermost frame first' },
      incident.stack.map(frame => `${lineOf(frame)}  ${frame.function}`).join('\n')) : null,
    incident.advice ? make('p', {}, make('strong', {}, 'Try first: '), incident.advice) : null,
    make('div', { class: 'columns' },
      facts([['rank', `${incident.rank}, device ${incident.device}`], ['scope', String(incident.scope).replaceAll('_', ' ')],
        ['onset', `${unit} ${whole(incident.onset_step)}`], ['detected', `${unit} ${whole(incident.detected_step)}`],
        ['opened', time(incident.opened_wall_ns)]]),
      facts([...growthFacts(incident),
        ...(incident.explained_ratio ? [['explained by this line', `${Math.round(incident.explained_ratio * 100)} %`]] : []),
        ['out of memory', forecast], ['stored', incident.stored ? '✓ on disk' : '… not yet']])),
    rankChart(incident.rank, data, incident, unit),
    make('div', { class: 'columns' },
      make('section', {}, make('h2', {}, 'Evidence for it'), list(incident.evidence, 'none yet')),
      make('section', {}, make('h2', {}, 'Evidence against it'), list(incident.against, 'none'))),
    make('h2', {}, 'Suspects'),
    table([
      ['line', row => make('code', {}, `${lineOf(row.frame)} ${row.frame.function}`)],
      ['grown', row => bytesNode(row.grown_bytes, true), { number: true }],
      ['on the peers', row => bytesNode(row.peer_bytes, true), { number: true }],
      ['blocks', row => whole(row.blocks), { number: true }],
      [`allocated in distinct ${unit}s`, row => whole(row.allocation_steps), { number: true }],
    ], incident.suspects, { empty: 'none yet: the capture is not in', rowClass: row => (incident.culprit
      && lineOf(row.frame) === lineOf(incident.culprit) ? 'suspect' : '') }),
    make('h2', {}, 'Capture'),
    ...(capture ? manifest(capture, unit) : [make('p', { class: 'soft' }, 'no capture belongs to this incident')]),
    make('h2', {}, 'Actions'), actionTable(actions),
    make('h2', {}, 'In a terminal'), make('pre', {}, commands.join('\n')),
  ];
}

function manifest(capture, unit = 'step') {
  const snapshot = part => `api/v1/captures/${encodeURIComponent(capture.id)}/ranks/${part.rank}`;
  return [
    make('p', {}, chip(capture.state), ' ', make('a', { href: link('capture', capture.id) }, capture.id),
      ` ${capture.aligned} of ${capture.ranks} ranks at the end of ${unit} ${whole(capture.step)}` +
      `${capture.before_step ? `, compared with ${unit} ${whole(capture.before_step)}` : ''}; trigger ${capture.trigger}, requested `,
      time(capture.requested_wall_ns)),
    capture.missing.length ? make('p', { class: 'error' }, 'Missing: ' +
      capture.missing.map(part => `rank ${part.rank} (${part.outcome}${part.detail ? `: ${part.detail}` : ''})`).join(', ')) : null,
    table([
      ['rank', row => String(row.rank)], ['node', row => row.node],
      ['outcome', row => [chip(row.outcome), row.dead && row.outcome !== 'dead' ? chip('dead') : null]],
      [unit, row => whole(row.step), { number: true }], ['ended', row => time(row.wall_ns)],
      ['± ms', row => (row.wall_error_ns / 1e6).toFixed(2), { number: true }],
      ['snapshot', row => (row.bytes ? make('a', { href: snapshot(row) }, bytes(row.bytes)) : '–'), { number: true }],
      ['detail', row => row.detail || '–'],
    ], capture.parts, { empty: 'no part has come in yet' }),
  ];
}

// --- the loop ----------------------------------------------------------------

let shown = '';
let running = false;
let again = false;

async function refresh() {
  if (running) { again = true; return; }
  running = true;
  const where = route();
  const view = VIEWS[where.view] ?? VIEWS.jobs;
  const asOf = document.getElementById('as-of');
  const content = document.getElementById('content');
  try {
    const data = await view.load(where.id);
    const key = JSON.stringify([location.hash, document.documentElement.dataset.theme, data]);
    if (key !== shown) {
      const focused = document.activeElement?.id;
      content.replaceChildren(...[view.draw(data)].flat(2).filter(Boolean));
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
      document.title = where.id ? `${where.id} · Memtape` : 'Memtape';
      shown = key;
    }
    asOf.className = '';
    asOf.textContent = `as of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    asOf.className = 'stale';
    asOf.textContent = `✕ ${error.message}; still trying`;
    if (shown === '' || !shown.startsWith(JSON.stringify([location.hash]).slice(0, -1))) {
      content.replaceChildren(make('p', { class: 'error' }, error.message));
      shown = '';
    }
  }
  running = false;
  if (again) { again = false; refresh(); }
}

function applyTheme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  document.getElementById('theme').textContent = `Theme: ${name}`;
}

function remembered() {
  try { return localStorage.getItem('memtape-theme') ?? 'system'; } catch { return 'system'; }
}

document.getElementById('theme').addEventListener('click', () => {
  const names = ['system', 'light', 'dark'];
  const next = names[(names.indexOf(remembered()) + 1) % names.length];
  try { localStorage.setItem('memtape-theme', next); } catch { /* private window: not kept */ }
  applyTheme(next);
  refresh();
});
document.querySelector('.skip').addEventListener('click', event => {
  event.preventDefault();
  document.getElementById('content').focus();
});
applyTheme(remembered());
window.addEventListener('hashchange', refresh);
window.addEventListener('resize', () => document.querySelectorAll('canvas').forEach(canvas => canvas.repaint?.()));
document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
refresh();

// One job: the heat map of its ranks, the chosen rank over time, where the bytes of the devices are,
// and the table of ranks.

import {
  allSeries,
  capturesOf,
  get,
  incidentsOf,
  jobPath,
  mainDevice,
  report,
  requestCapture,
} from '../api.js';
import { heatMap } from '../charts/heat_map.js';
import { layersChart } from '../charts/layers.js';
import { memoryChart } from '../charts/memory.js';
import { chip, link, make, section, size, table } from '../elements.js';
import { route, setQuery } from '../route.js';
import { plural, unitOf, whole } from '../units.js';
import { captureTable, deviceBytes, incidentCard, rankIn, rankLink, timeline } from './parts.js';

// Series of more ranks than this are not fetched; the page says so.
const ROWS_MAX = 128;
const PEERS_DRAWN_MAX = 7;

export async function load(id) {
  const [ranks, incidents, captures, actions] = await Promise.all([
    get(jobPath(id, 'ranks')),
    incidentsOf(id),
    capturesOf(id),
    get('actions'),
  ]);
  const growth = rank => rank.growth_bytes_per_step ?? 0;
  const byGrowth = [...ranks.ranks].sort((a, b) => growth(b) - growth(a));
  const shown = byGrowth.slice(0, ROWS_MAX).sort((a, b) => a.rank - b.rank);
  return {
    ...ranks,
    incidents,
    captures,
    actions: actions.actions.filter(of => of.job === ranks.job),
    rows: await allSeries(id, ranks.attempt, shown),
  };
}

export function draw(of) {
  const { job, attempt, ranks, captures, rows } = of;
  const { query } = route();
  const incidents = of.incidents.filter(found => found.attempt === attempt);
  const open = incidents.filter(found => found.state === 'open');
  const closed = of.incidents.filter(found => found.state !== 'open');
  const selected = query.has('rank')
    ? Number(query.get('rank'))
    : (open[0]?.rank ?? ranks[0]?.rank ?? null);
  const unit = unitOf({ clock: ranks.every(row => row.clock === 'turns') ? 'turns' : 'steps' });
  const isAgainstPeers = query.get('show') !== 'growth';
  return [
    make('h1', {}, `Job ${job}`),
    make(
      'p',
      { class: 'line-of-facts' },
      make(
        'span',
        {},
        `attempt ${attempt}, ${plural(ranks.length, 'rank')}, ${ranks.filter(row => row.alive).length} alive`,
      ),
      report
        ? null
        : make(
            'button',
            { type: 'button', id: 'capture', onclick: () => askForCapture(job) },
            'Capture all ranks now',
          ),
      make('span', { id: 'capture-answer', role: 'status' }),
    ),
    ...open.map(incident => incidentCard(incident, rankIn(of, incident.rank))),
    section(
      `Ranks × ${unit}s`,
      choice(isAgainstPeers, unit),
      rows.length < ranks.length
        ? make(
            'p',
            { class: 'soft' },
            `the ${rows.length} fastest-growing of ${ranks.length} ranks`,
          )
        : null,
      heatMap({ rows, incidents: open, isAgainstPeers, selected, unit }),
    ),
    chosenRank(of, open, selected),
    section('Where the bytes of the devices are', layersChart(ranks)),
    section('Ranks', rankTable(job, ranks, open, selected, unit)),
    section('Captures', captureTable(captures)),
    section(
      'Timeline',
      timeline(
        { ...of, incidents, captures: captures.filter(found => found.attempt === attempt) },
        unit,
      ),
    ),
    closed.length
      ? section(
          'Closed incidents',
          closed.map(incident => incidentCard(incident, null)),
        )
      : null,
  ];
}

function choice(isAgainstPeers, unit) {
  const options = [
    ['peers', 'difference from the median rank'],
    ['growth', 'growth since the left end'],
  ];
  return make(
    'p',
    {},
    make('label', { for: 'show' }, `Minimum of each ${unit}: `),
    make(
      'select',
      { id: 'show', onchange: event => setQuery('show', event.target.value) },
      options.map(([value, text]) =>
        make('option', { value, selected: (value === 'peers') === isAgainstPeers }, text),
      ),
    ),
  );
}

function chosenRank({ ranks, rows, captures, attempt }, open, selected) {
  const rank = ranks.find(row => row.rank === selected);
  const own = rows.find(row => row.rank === selected);
  if (!rank || !own) return null;
  const near = rows
    .filter(row => row !== own)
    .sort((a, b) => Math.abs(a.rank - selected) - Math.abs(b.rank - selected));
  return section(
    `Rank ${selected}`,
    memoryChart({
      rank: selected,
      data: own.data,
      peers: near.slice(0, PEERS_DRAWN_MAX).map(row => row.data),
      unit: unitOf(rank),
      incident: open.find(found => found.rank === selected),
      captures: captures.filter(found => found.attempt === attempt),
      capacity: deviceBytes(rank, mainDevice(rank)?.device),
      end: rank.end ? rank.step : null,
    }),
  );
}

function rankTable(job, ranks, open, selected, unit) {
  const sum = (row, name) => row.devices.reduce((total, device) => total + device[name], 0);
  const inBytes = (title, value) => ({
    title,
    cell: row => size(value(row)),
    number: true,
    sort: row => value(row) ?? -1,
  });
  const inNumbers = (title, value) => ({
    title,
    cell: row => whole(value(row)),
    number: true,
    sort: value,
  });
  const isSuspect = row => open.some(found => found.rank === row.rank);
  return table(
    [
      {
        title: 'rank',
        cell: row => make('a', { href: rankLink(job, row.rank) }, String(row.rank)),
        sort: row => row.rank,
      },
      {
        title: 'state',
        cell: row => [
          chip(row.state),
          row.end ? chip(row.end) : null,
          row.end_detail ? ` ${row.end_detail}` : '',
        ],
        sort: row => row.state,
      },
      {
        title: 'node',
        cell: row => `${row.node}${row.pid ? `, pid ${row.pid}` : ''}`,
        sort: row => row.node,
      },
      {
        title: 'step',
        cell: row => `${row.clock === 'turns' ? 'turn ' : ''}${whole(row.step)}`,
        number: true,
        sort: row => row.step,
      },
      {
        title: `growth/${unit}`,
        // A rank that has ended has none.
        cell: row =>
          row.growth_bytes_per_step == null ? '–' : size(row.growth_bytes_per_step, true),
        number: true,
        sort: row => row.growth_bytes_per_step,
      },
      inBytes('allocated', row => sum(row, 'allocated_bytes')),
      inBytes('reserved', row => sum(row, 'reserved_bytes')),
      inBytes('peak', row => sum(row, 'peak_allocated_bytes')),
      inBytes('device', row => sum(row, 'device_bytes') || null),
      inNumbers('blocks', row => sum(row, 'blocks')),
      inNumbers('OOMs', row => sum(row, 'ooms')),
      inNumbers('retries', row => sum(row, 'malloc_failures')),
      inBytes('host RSS', row => row.rss_bytes),
      inNumbers('lost events', row => row.lost_events),
      { title: 'limitations', cell: row => row.limitations.join('; ') || '–' },
    ],
    ranks,
    {
      name: 'sort',
      caption: 'Ranks',
      rowClass: row =>
        [isSuspect(row) ? 'suspect' : '', row.rank === selected ? 'selected' : ''].join(' ').trim(),
    },
  );
}

async function askForCapture(job) {
  const answer = document.getElementById('capture-answer');
  answer.textContent = 'requesting…';
  try {
    location.hash = link('capture', await requestCapture(job));
  } catch (error) {
    answer.textContent = error.message;
  }
}

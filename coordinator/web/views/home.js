// The first view: open incidents, then the jobs.

import { get, ranksOf } from '../api.js';
import { age, chip, link, make, section, table } from '../elements.js';
import { whole } from '../units.js';
import { urgencyRank } from '../words.js';
import { incidentCard, rankIn } from './parts.js';

const ORDER = [
  'failed',
  'incident',
  'behind',
  'stalled',
  'silent',
  'disconnected',
  'watching',
  'warming',
  'healthy',
  'ended',
];
const order = state => (ORDER.includes(state) ? ORDER.indexOf(state) : ORDER.length);

// Ranks are fetched for the cards of open incidents only, and not of huge jobs.
const JOBS_LOOKED_AT_MAX = 8;
const RANKS_LOOKED_AT_MAX = 1024;
const CLOSED_SHOWN_MAX = 20;

export async function load() {
  const [{ jobs }, { incidents }] = await Promise.all([get('jobs'), get('incidents')]);
  const small = new Set(jobs.filter(job => job.ranks <= RANKS_LOOKED_AT_MAX).map(job => job.job));
  const wanted = new Map(
    incidents.filter(of => of.state === 'open' && small.has(of.job)).map(of => [keyOf(of), of]),
  );
  const asked = [...wanted].slice(0, JOBS_LOOKED_AT_MAX);
  const ranks = await Promise.all(asked.map(([, of]) => ranksOf(of.job, of.attempt)));
  return { jobs, incidents, ranks: Object.fromEntries(asked.map(([key], i) => [key, ranks[i]])) };
}

const keyOf = incident => JSON.stringify([incident.job, incident.attempt]);

export function draw({ jobs, incidents, ranks }) {
  if (jobs.length === 0 && incidents.length === 0) return [empty()];
  const card = incident => incidentCard(incident, rankIn(ranks[keyOf(incident)], incident.rank));
  const open = incidents.filter(found => found.state === 'open');
  const closed = incidents.filter(found => found.state !== 'open');
  const sorted = [...jobs].sort(
    (a, b) => order(a.state) - order(b.state) || b.started_wall_ns - a.started_wall_ns,
  );
  return [
    make(
      'h1',
      {},
      open.length === 0
        ? 'No open incidents'
        : open.length === 1
          ? '1 open incident'
          : `${whole(open.length)} open incidents`,
    ),
    ...open.sort((a, b) => urgencyRank(b) - urgencyRank(a) || b.opened_wall_ns - a.opened_wall_ns).map(card),
    section('Jobs', jobTable(sorted)),
    closed.length === 0
      ? null
      : section(
          'Closed incidents',
          closed.slice(0, CLOSED_SHOWN_MAX).map(card),
          closed.length > CLOSED_SHOWN_MAX
            ? make(
                'p',
                { class: 'soft' },
                `${CLOSED_SHOWN_MAX} of ${closed.length}; memtape incidents lists all`,
              )
            : null,
        ),
  ];
}

function jobTable(jobs) {
  const steps = row => {
    const first = row.step_min === row.step_max ? '' : `${whole(row.step_min)} – `;
    return `${first}${whole(row.step_max)}${row.clock === 'turns' ? ' turns' : ''}`;
  };
  return table(
    [
      { title: 'state', cell: row => chip(row.state, row.class), sort: row => order(row.state) },
      {
        title: 'job',
        cell: row => make('a', { href: link('job', row.job) }, row.job),
        sort: row => row.job,
      },
      { title: 'attempt', cell: row => row.attempt, number: true },
      {
        title: 'ranks alive',
        cell: row => `${row.ranks_alive} of ${row.world_size || row.ranks}`,
        number: true,
        sort: row => row.ranks_alive,
      },
      { title: 'steps', cell: steps, number: true, sort: row => row.step_max },
      {
        title: 'open incidents',
        cell: row => row.incidents_open,
        number: true,
        sort: row => row.incidents_open,
      },
      { title: 'nodes', cell: row => row.nodes.join(', ') },
      { title: 'started', cell: row => age(row.started_wall_ns), sort: row => row.started_wall_ns },
    ],
    jobs,
    { name: 'sort', empty: 'no job that you may see', caption: 'Jobs' },
  );
}

/** What to do where nothing has been recorded. */
function empty() {
  const host = location.origin;
  const step = (words, command) => make('li', {}, words, make('pre', {}, command));
  return make(
    'section',
    { class: 'empty' },
    make('h1', {}, 'No job has been recorded yet'),
    make(
      'ol',
      {},
      step('On every GPU node, start an agent:', `memtape agent --coordinator ${host}`),
      step(
        'Start the training as usual, with memtape run before the command:',
        'memtape run -- torchrun --nproc-per-node 8 train.py',
      ),
      step(
        'Ask what was found; this page shows the same:',
        `memtape incidents --coordinator ${host}`,
      ),
    ),
    make(
      'p',
      { class: 'soft' },
      'Without a GPU, memtape demo shows a whole run with a rank that leaks.',
    ),
  );
}

// One capture: what caused it, how complete it is, how its ranks stand in their collectives, and
// the snapshot of each rank to download.

import { collectivesOf, incidentsOf, one, picklePath, report, snapshotPath } from '../api.js';
import { age, chip, facts, link, list, make, section, table, time } from '../elements.js';
import { bytes, duration, plural, whole } from '../units.js';
import { spaced, trigger } from '../words.js';
import { incidentCard } from './parts.js';

export async function load(id) {
  const capture = await one('captures', id);
  const [collectives, incidents] = await Promise.all([
    collectivesOf(capture),
    incidentsOf(capture.job),
  ]);
  return { capture, collectives, incidents: incidents.filter(of => of.capture_id === id) };
}

export function draw({ capture, collectives, incidents }) {
  return [
    make('h1', {}, `Capture ${capture.id}`),
    make(
      'p',
      {},
      'of job ',
      make('a', { href: link('job', capture.job) }, capture.job),
      `, attempt ${capture.attempt}`,
    ),
    ...manifest(capture, collectives),
    section(
      'Incidents that rest on it',
      incidents.length
        ? incidents.map(incident => incidentCard(incident, null))
        : make('p', { class: 'soft' }, 'none'),
    ),
  ];
}

/** What a capture holds; `collectives` where they are known. */
export function manifest(capture, collectives, unit = 'step') {
  const { step, before_step: before } = capture;
  const total = capture.parts.reduce((sum, part) => sum + part.bytes, 0);
  const took = capture.closed_wall_ns
    ? (capture.closed_wall_ns - capture.requested_wall_ns) / 1e9
    : null;
  return [
    make(
      'p',
      {},
      chip(capture.state),
      ' ',
      make('a', { href: link('capture', capture.id) }, capture.id),
      step
        ? `: ${capture.aligned} of ${plural(capture.ranks, 'rank')} at the end of ${unit} ${whole(step)}`
        : `: ${plural(capture.ranks, 'rank')}, each at its own ${unit}`,
      before ? `, compared with ${unit} ${whole(before)}` : '',
    ),
    make(
      'div',
      { class: 'columns' },
      facts([
        ['trigger', trigger(capture)],
        ['requested', [age(capture.requested_wall_ns), ', ', time(capture.requested_wall_ns)]],
        ['took', took === null ? 'being collected' : took < 1 ? 'less than 1 s' : duration(took)],
      ]),
      facts([
        ['size', bytes(total)],
        ['spread', skew(capture)],
      ]),
    ),
    capture.missing.length
      ? make(
          'p',
          { class: 'error' },
          'Missing: ' +
            capture.missing
              .map(
                part =>
                  `rank ${part.rank} (${spaced(part.outcome)}${part.detail ? `: ${part.detail}` : ''})`,
              )
              .join(', '),
        )
      : null,
    parts(capture, unit),
    collectives
      ? make(
          'details',
          { id: 'collectives', open: collectives.sentences.length > 0 },
          make('summary', {}, 'Collectives'),
          standing(collectives),
        )
      : null,
  ];
}

/** Between the first and the last rank that ended the step. */
function skew({ parts: all }) {
  const ends = all.filter(part => part.outcome === 'aligned').map(part => part.wall_ns);
  if (ends.length < 2) return 'not known';
  return `${((Math.max(...ends) - Math.min(...ends)) / 1e6).toFixed(2)} ms between the first and the last rank`;
}

function parts(capture, unit) {
  const download = (path, words, about) =>
    make('a', { href: path, download: true, title: about }, words);
  const files = row =>
    row.bytes === 0 || report
      ? '–'
      : [
          download(
            picklePath(capture.id, row.rank),
            'PyTorch pickle',
            'opens in pytorch.org/memory_viz and in memtape analyze',
          ),
          ' · ',
          download(
            snapshotPath(capture.id, row.rank),
            `snapshot, ${bytes(row.bytes)}`,
            'as it is stored: protobuf, compressed with zstd',
          ),
        ];
  return table(
    [
      { title: 'rank', cell: row => String(row.rank), sort: row => row.rank },
      { title: 'node', cell: row => row.node, sort: row => row.node },
      {
        title: 'outcome',
        cell: row => [chip(row.outcome), row.dead && row.outcome !== 'dead' ? chip('dead') : null],
        sort: row => row.outcome,
      },
      { title: unit, cell: row => whole(row.step), number: true, sort: row => row.step },
      { title: 'ended', cell: row => time(row.wall_ns), sort: row => row.wall_ns },
      {
        title: '± ms',
        cell: row => (row.wall_error_ns / 1e6).toFixed(2),
        number: true,
        sort: row => row.wall_error_ns,
      },
      { title: 'download', cell: files, sort: row => row.bytes },
      { title: 'detail', cell: row => row.detail || '–' },
    ],
    capture.parts,
    { name: 'parts', empty: 'no part has come in yet', caption: 'Ranks of the capture' },
  );
}

function standing({ sentences, groups, unknown }) {
  const why = unknown.map(
    of => `${of.ranks.length === 1 ? 'rank' : 'ranks'} ${of.ranks.join(', ')}: ${of.why}`,
  );
  return make(
    'div',
    {},
    list(
      sentences,
      groups.length ? 'all ranks stand at the same collectives' : 'no process group is known',
    ),
    groups.length
      ? table(
          [
            { title: 'group', cell: row => row.desc || row.name },
            { title: 'ranks', cell: row => whole(row.ranks.length), number: true },
            { title: 'verdict', cell: row => row.sentence },
            { title: 'furthest', cell: row => whole(row.furthest), number: true },
          ],
          groups,
          { caption: 'Process groups' },
        )
      : null,
    why.length ? make('p', { class: 'soft' }, `Not known: ${why.join('; ')}`) : null,
  );
}

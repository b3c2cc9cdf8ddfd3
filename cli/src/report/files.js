// Snapshot files: what `memtape analyze --json` prints, job by job.

import { get } from './api.js';
import { memoryChart } from './charts/memory.js';
import { chip, facts, frameNode, list, make, section, size, table } from './elements.js';
import { percent, whole } from './units.js';
import { spaced } from './words.js';
import { alternatives } from './views/incident.js';

const ROWS_SHOWN_MAX = 64;
const PEERS_DRAWN_MAX = 63;

export const load = () => get('analyses');

export const draw = ({ sentences, analyses }) => [
  ...(analyses.jobs ?? [analyses]).map((of, index) => job(of, sentences[index])),
  section('Left out', list(analyses.left_out.map(file => file.why), 'no file')),
];

function job(of, sentence) {
  const { verdict, lines, peak } = of;
  return make(
    'article',
    {},
    of.job ? make('p', {}, `job ${of.job}`) : null,
    make('h1', {}, sentence),
    verdict?.culprit ? answers(verdict) : null,
    steps(of),
    verdict?.stack?.length
      ? section(
          'Stack, innermost frame first',
          make(
            'pre',
            {},
            verdict.stack.map(frame => `${where(frame)}  ${frame.function}`).join('\n'),
          ),
        )
      : null,
    verdict?.evidence
      ? [
          section('Evidence for it', list(verdict.evidence, 'none')),
          section('Evidence against it', list(verdict.against, 'none')),
          section('Other possible classes', alternatives(verdict)),
        ]
      : null,
    section(`Lines that hold the memory of rank ${of.rank}`, held(lines)),
    peak ? section(`Lines at the peak of rank ${peak.rank}`, held(peak.lines)) : null,
    section('Files', files(of)),
    section(
      'Notes',
      list(
        [...of.notes, ...Object.entries(of.settings).map(([name, value]) => `${name} = ${value}`)],
        'none',
      ),
    ),
  );
}

const where = ({ file, line }) => `${file || '?'}:${line || '?'}`;

// A confidence that would be shown as 0 % is not shown.
const sure = (ratio) => (ratio >= 0.005 ? ` ${percent(ratio)} sure` : '');

function answers(verdict) {
  return facts([
    ['class', [chip(verdict.class), sure(verdict.confidence)]],
    ['rank', `${verdict.rank}, device ${verdict.device} (${spaced(verdict.scope)})`],
    ['line', frameNode(verdict.culprit, 'culprit')],
    ['holds', [size(verdict.bytes), ` in ${whole(verdict.blocks)} blocks`]],
    verdict.bytes_per_step ? ['growth', [size(verdict.bytes_per_step, true), ' a step']] : null,
    ['try first', verdict.advice],
    verdict.saves_bytes ? ['saves', size(verdict.saves_bytes)] : null,
  ]);
}

/** The levels of the steps of each rank's trace, by its newest file. */
function steps({ rank, ranks }) {
  const newest = new Map(ranks.map(of => [of.rank, of]));
  const series = [...newest.values()].map(({ rank: number, trace }) => {
    // A trace that began after the process shows only a part of its first step.
    const first = trace?.is_whole ? 0 : 1;
    const from = values => values?.slice(first) ?? [];
    const levels = from(trace?.floors);
    return {
      rank: number,
      steps: levels.map((_, index) => first + index + 1),
      step_min_bytes: levels,
      peak_bytes: from(trace?.peaks),
      reserved_bytes: from(trace?.reserved),
    };
  });
  const data = series.find(of => of.rank === rank);
  if (!data || data.steps.length < 2) return null;
  const peers = series.filter(of => of !== data).slice(0, PEERS_DRAWN_MAX);
  return memoryChart({ rank, data, peers, unit: 'step' });
}

function held(lines) {
  return table(
    [
      { title: 'bytes', cell: row => size(row.bytes), number: true },
      { title: 'on the others', cell: row => size(row.others_bytes), number: true },
      { title: 'blocks', cell: row => whole(row.blocks), number: true },
      { title: 'grown', cell: row => size(row.grown, true), number: true },
      {
        title: 'line',
        cell: row =>
          row.frame.file || row.frame.function ? frameNode(row.frame) : spaced(row.kind),
      },
    ],
    lines.slice(0, ROWS_SHOWN_MAX),
    { caption: 'Lines', empty: 'none is known' },
  );
}

function files({ files: all, ranks }) {
  const rows = all.map((file, index) => ({ ...file, of: ranks[index] }));
  return table(
    [
      { title: 'rank', cell: row => whole(row.rank), number: true },
      { title: 'allocated', cell: row => size(row.of.allocated), number: true },
      { title: 'peak', cell: row => size(row.of.peak), number: true },
      { title: 'reserved', cell: row => size(row.of.reserved), number: true },
      {
        title: 'inactive split',
        cell: row => size(row.of.fragmentation?.split_free),
        number: true,
      },
      { title: 'steps', cell: row => whole(row.of.trace?.steps_ended), number: true },
      { title: 'file', cell: row => row.path },
    ],
    rows.slice(0, ROWS_SHOWN_MAX),
    { caption: 'Files', empty: 'none' },
  );
}

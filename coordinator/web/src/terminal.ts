// Lines for a terminal that show what a view shows.

import type { Capture, Incident } from './types';

/** What a line is for, and the line. */
export type TerminalLine = [words: string, line: string];

/** A line of `memtape` that asks this page's coordinator. */
export const memtape = (...words: (string | number)[]): string =>
  ['memtape', ...words, '--coordinator', location.origin]
    .map(word => quoted(String(word)))
    .join(' ');

/** A word as a shell takes it: names of jobs are not trusted. */
const quoted = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;

/** What shows the same as a view. `capture` is the one in view, where it is known. */
export function linesOf(view: string, id: string, capture: Capture | null = null): TerminalLine[] {
  switch (view) {
    case 'jobs':
      return [
        ['List all incidents', memtape('incidents')],
        ['List all jobs', memtape('jobs')],
      ];
    case 'job':
      return [
        ['List the ranks of this job', memtape('ranks', id)],
        ['Show which lines hold its memory', memtape('lines', id)],
        ['List the incidents of this job', memtape('incidents', id)],
      ];
    case 'incident':
      return [['Show this incident', memtape('show', id)], lineOfReport(id)];
    case 'capture':
      return capture ? linesOfCapture(capture) : [['Show this capture', memtape('show', id)]];
    case 'actions':
      return [['List all actions', memtape('actions')]];
    default:
      return [];
  }
}

const lineOfReport = (id: string): TerminalLine => [
  'Write a report to attach to a ticket',
  memtape('report', id, '-o', `${id}.html`),
];

/** Lines about an incident and the rank that it is about. */
export function linesOfIncident({ id, capture_id: capture, rank }: Incident): TerminalLine[] {
  const pickle = `rank${rank}.pickle`;
  const exported = capture && memtape('export', capture, '--rank', rank, '-o', pickle);
  return [
    ...linesOf('incident', id),
    ...(exported ? [[`Rank ${rank} for pytorch.org/memory_viz`, exported] as TerminalLine] : []),
  ];
}

/** Lines about a capture; `before` is an earlier one of the same job. */
export function linesOfCapture(capture: Capture, before: Capture | null = null): TerminalLine[] {
  const { id } = capture;
  const rank = rankToExport(capture);
  const found: TerminalLine[] = [
    ['Show this capture', memtape('show', id)],
    ['Diagnose all ranks together', memtape('analyze', id)],
  ];
  if (before) {
    found.push([`Compare with the capture before, ${before.id}`, memtape('diff', before.id, id)]);
  }
  if (rank !== null) {
    const one = ['export', id, '--rank', rank];
    found.push([`Rank ${rank} as a flame graph`, memtape(...one, '--format', 'flamegraph')]);
    found.push([`Rank ${rank} for pytorch.org/memory_viz`, memtape(...one)]);
  }
  found.push(lineOfReport(id));
  return found;
}

/** The rank that caused the capture, else the first of which there is a snapshot. */
function rankToExport({ parts, trigger_rank: cause }: Capture): number | null {
  const ranks = parts.filter(part => part.bytes > 0).map(part => part.rank);
  return ranks.find(rank => rank === cause) ?? ranks[0] ?? null;
}

// The entries of the palette: views, jobs, ranks, incidents, captures, lines of code, and commands.

import { link } from './address';
import type { Entry } from './keys';
import { linesOf } from './terminal';
import type { Capture, Frame, Incident, Job, Rank } from './types';
import { plural, whole } from './units';
import { lineOf, spaced, standing, stateOf, trigger } from './words';

/** What is known where one looks. */
export interface Known {
  view: string;
  id: string;
  /** The capture in view. */
  capture: Capture | null;
  /** The job in view, or the newest one, and its ranks. */
  job: string | null;
  ranks: Rank[];
  /** The attempt of the ranks; null for the newest one. */
  attempt: number | null;
  jobs: Job[];
  incidents: Incident[];
  captures: Capture[];
}

/** All entries, in the order in which they stand before one has typed. */
export function entriesOf(of: Known): Entry[] {
  const incidents = [...of.incidents].sort(
    (a, b) => Number(a.state !== 'open') - Number(b.state !== 'open'),
  );
  return [
    ...VIEWS,
    ...incidents.map(incidentEntry),
    ...of.jobs.map(jobEntry),
    ...of.ranks.map(rank => rankEntry(of, rank)),
    ...incidents.flatMap(lineEntries),
    ...of.captures.map(captureEntry),
    ...commands(of),
  ];
}

const commands = ({ view, id, capture }: Known): Entry[] =>
  linesOf(view, id, capture).map(([words, line]) => ({
    kind: 'command',
    words: line,
    detail: `${words}: Enter copies it`,
    copy: line,
  }));

const VIEWS: Entry[] = [
  ['jobs', 'Jobs and incidents'],
  ['nodes', 'Nodes'],
  ['actions', 'Actions'],
].map(([view, words]) => ({ kind: 'view', words, detail: '', href: link(view) }));

const incidentEntry = (of: Incident): Entry => ({
  kind: 'incident',
  words: of.sentence,
  detail: `${of.id}, ${classOf(of)}, ${of.state}, job ${of.job}`,
  href: link('incident', of.id),
});

/** With the short name that people type. */
const classOf = ({ class: name }: Incident): string =>
  name === 'out_of_memory' ? `${spaced(name)} (OOM)` : spaced(name);

const jobEntry = (of: Job): Entry => ({
  kind: 'job',
  words: of.job,
  detail: `${stateOf(of.state)[2]}, ${plural(of.ranks, 'rank')}, step ${whole(of.step_max)}`,
  href: link('job', of.job),
});

const rankEntry = ({ job, attempt }: Known, of: Rank): Entry => ({
  kind: 'rank',
  words: `rank ${of.rank}`,
  detail: `${stateOf(standing(of))[2]}, job ${job}, node ${of.node}, pid ${of.pid}`,
  href: link('job', job ?? '', { attempt, rank: of.rank }),
});

const captureEntry = (of: Capture): Entry => ({
  kind: 'capture',
  words: of.id,
  detail: `${trigger(of)}, ${of.step ? `step ${whole(of.step)}, ` : ''}job ${of.job}`,
  href: link('capture', of.id),
});

/** The lines of an incident: of its culprit and its suspects, each once. */
function lineEntries(of: Incident): Entry[] {
  const frames = [of.culprit, ...of.suspects.map(suspect => suspect.frame)];
  const known = frames.filter((frame): frame is Frame => Boolean(frame?.file));
  const lines = new Map(known.map(frame => [lineOf(frame), frame]));
  return [...lines].map(([line, frame]) => ({
    kind: 'line',
    words: line,
    detail: `${frame.function}, ${spaced(of.class)} on rank ${of.rank}, ${of.state}`,
    href: link('incident', of.id),
  }));
}

// Requests to /api/v1. In a report (`memtape report`) the answers stand in the file, and no request
// is made.
//
// The only requests that change anything are those for a capture, about the thread of an incident,
// and those that sign in and out.

import { signal } from '@preact/signals';

import type { Span } from './address';
import type { Frame, Incident, ThreadRequest } from './types';

/** The coordinator must know who asks. */
export class NotSignedIn extends Error {}

/** The coordinator has no such thing. */
export class NotFound extends Error {}

/** What was asked for cannot be answered, such as a step that no capture shows. */
export class NotAnswerable extends Error {}

/** What a report holds. */
export interface Report {
  sentences: string[];
  start: [view: string, id: string];
  answers: Record<string, unknown>;
  made: string;
}

/** The report that this file is; null on the page. */
export const report: Report | null = JSON.parse(
  document.getElementById('report')?.textContent ?? 'null',
);

/** Shards of a cluster that the last answers lack, as `3,5`. */
export const missingShards = signal('');

/** How long an answer is waited for: a connection may be open to nobody. */
const ANSWER_MS = 30_000;

/** An answer and its text. Where none comes, each browser has other words for it. */
async function asked(path: string, options: RequestInit): Promise<[Response, string]> {
  try {
    const response = await fetch(`api/v1/${path}`, {
      ...options,
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    return [response, await response.text()];
  } catch {
    throw new Error('the coordinator does not answer');
  }
}

/** An answer, and the mark by which it is known again. */
export interface Marked {
  text: string;
  tag: string | null;
}

/** The answer to a path below /api/v1; `known` where it is still the same. */
export async function getMarked(path: string, known: Marked | null = null): Promise<Marked> {
  if (report) return { text: kept(report, path), tag: null };
  const headers: Record<string, string> = { accept: 'application/json' };
  if (known?.tag) headers['if-none-match'] = known.tag;
  const [response, text] = await asked(path, { headers });
  const isSame = response.status === 304 && known !== null;
  if (!response.ok && !isSame) throw problem(response.status, text);
  missingShards.value = response.headers.get('memtape-missing') ?? '';
  return isSame ? known : { text, tag: response.headers.get('etag') };
}

export const get = async <T>(path: string): Promise<T> =>
  JSON.parse((await getMarked(path)).text) as T;

/** Whether a path may have an answer here: a report holds few. */
export const isHere = (path: string): boolean =>
  !report || Object.hasOwn(report.answers, nameOf(path));

/** Ranks whose steps the report holds: a few of its job. */
const ranksHere = new Set(
  Object.keys(report?.answers ?? {}).flatMap(
    name => /^jobs\/[^]*\/series\?[^]*\brank=(\d+)$/.exec(name)?.slice(1).map(Number) ?? [],
  ),
);

/** Whether the steps of a rank of the job may be here. */
export const hasSteps = (rank: number): boolean => !report || ranksHere.has(rank);

function kept({ answers }: Report, path: string): string {
  const name = nameOf(path);
  if (isHere(path)) return JSON.stringify(answers[name]);
  throw new NotFound(`this report does not hold ${name}`);
}

/** The name of an answer in a report: its path with the query in the order of its names. */
function nameOf(path: string): string {
  // Names of jobs may have any character: only before they are decoded do ? and & separate.
  const [place, query = ''] = path.split('?');
  const values = query.split('&').filter(Boolean).map(decodeURIComponent).sort();
  return decodeURIComponent(place) + (values.length ? `?${values.join('&')}` : '');
}

/** The answer to a request that changes something. */
export async function post<T>(path: string, body: unknown = {}): Promise<T> {
  const [response, text] = await asked(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw problem(response.status, text);
  return (text ? JSON.parse(text) : null) as T;
}

function problem(status: number, text: string): Error {
  const line = lineIn(text) ?? `the coordinator answered ${status}`;
  if (status === 401) return new NotSignedIn(line);
  if (status === 400) return new NotAnswerable(line);
  return status === 404 ? new NotFound(line) : new Error(line);
}

function lineIn(text: string): string | null {
  try {
    return (JSON.parse(text) as { error?: string }).error ?? null;
  } catch {
    return null;
  }
}

// --- paths -------------------------------------------------------------------

const part = encodeURIComponent;

const query = (values: Record<string, string | number | null>): string => {
  const known = Object.entries(values).filter(([, value]) => value !== null);
  return known.length
    ? `?${known.map(([name, value]) => `${name}=${part(String(value))}`).join('&')}`
    : '';
};

/** Points of a series: more than a wide screen has pixels for are of no use. */
const SERIES_POINTS = 400;

/** Which series: of a rank and a device, or of an account. */
export interface SeriesOf {
  job: string;
  attempt: number;
  rank: number;
  device: number;
  account?: string | null;
  steps?: Span | null;
}

/** Which ranks and steps of an account. */
export interface AreaOf {
  job: string;
  attempt: number;
  account: string;
  steps: Span | null;
  ranks: Span | null;
  /** At most so many; the coordinator's own numbers without them. */
  rows?: number;
  columns?: number;
}

/** Which ranks and steps are compared: with the baseline, else with the other ranks. */
export interface DifferencesOf {
  job: string;
  attempt: number;
  ranks: Span | null;
  steps: Span | null;
  baseline?: { job: string; attempt: number };
}

/** Ranks of a job that are listed. */
const RANKS_LISTED = 256;

/** A rank and the peers that are drawn beside it. */
const RANKS_NEAR = 8;

export const paths = {
  jobs: 'jobs',
  nodes: 'nodes',
  actions: 'actions',
  whoami: 'whoami',
  incidents: (job: string | null = null) => `incidents${query({ job })}`,
  captures: (job: string | null = null) => `captures${query({ job })}`,
  incident: (id: string) => `incidents/${part(id)}`,
  capture: (id: string) => `captures/${part(id)}`,
  collectives: (id: string) => `captures/${part(id)}/collectives`,
  /** Beside the peers, or beside the same rank in the capture `baseline`; without steps and a time,
   * at the time that explains its incident. */
  kept: (
    id: string,
    rank: number,
    steps: Span | null,
    baseline: string | null = null,
    at: string | null = null,
  ) =>
    `captures/${part(id)}/kept${query({
      rank,
      at: steps ? null : at,
      from: steps && Math.max(1, steps.from),
      to: steps && Math.max(1, steps.to),
      baseline,
    })}`,
  /** The lines of a file around that of a frame. */
  source: (job: string, attempt: number, { file, line }: Frame) =>
    `jobs/${part(job)}/source${query({ attempt, file, line })}`,
  /** The segments of a rank; without a device those of the one that holds most. */
  segments: (id: string, rank: number, device: number | null) =>
    `captures/${part(id)}/segments${query({ rank, device })}`,
  /** Those whose memory grows fastest. */
  ranks: (job: string, attempt: number | null) =>
    `jobs/${part(job)}/ranks${query({ attempt, most: RANKS_LISTED })}`,
  /** One rank, and the nearest of the same role. */
  ranksNear: (job: string, attempt: number, rank: number) =>
    `jobs/${part(job)}/ranks${query({ attempt, near: rank, most: RANKS_NEAR })}`,
  lines: (job: string, attempt: number | null, rank: number | null) =>
    `jobs/${part(job)}/lines${query({ attempt, rank })}`,
  /** Without an account the minimum, the peak and the reserve; without steps all of them. */
  series: (of: SeriesOf) =>
    `jobs/${part(of.job)}/series${query({
      rank: of.rank,
      device: of.device,
      attempt: of.attempt,
      points: SERIES_POINTS,
      account: of.account ?? null,
      from: of.steps?.from ?? null,
      to: of.steps?.to ?? null,
    })}`,
  differences: (of: DifferencesOf) =>
    `jobs/${part(of.job)}/differences${query({
      attempt: of.attempt,
      from: of.steps?.from ?? null,
      to: of.steps?.to ?? null,
      first_rank: of.ranks?.from ?? null,
      last_rank: of.ranks?.to ?? null,
      baseline_job: of.baseline?.job ?? null,
      baseline_attempt: of.baseline?.attempt ?? null,
    })}`,
  area: (of: AreaOf) =>
    `jobs/${part(of.job)}/area${query({
      account: of.account,
      attempt: of.attempt,
      from: of.steps?.from ?? null,
      to: of.steps?.to ?? null,
      first_rank: of.ranks?.from ?? null,
      last_rank: of.ranks?.to ?? null,
      rows: of.rows ?? null,
      columns: of.columns ?? null,
    })}`,
};

/** Where a rank's snapshot is, as it is stored. */
export const snapshotPath = (capture: string, rank: number) =>
  `api/v1/captures/${part(capture)}/ranks/${rank}`;

/** The same as PyTorch's pickle. */
export const picklePath = (capture: string, rank: number) =>
  `${snapshotPath(capture, rank)}/pickle`;

/** Requests a capture of all ranks of a job, now or at the end of a step; gives its id. */
export const requestCapture = (job: string, step: number | null = null) =>
  post<{ id: string }>(`jobs/${part(job)}/captures`, step === null ? {} : { step }).then(
    ({ id }) => id,
  );

/** Acknowledges, silences or assigns an incident, or adds a note; gives the incident after it. */
export const changeThread = (id: string, request: ThreadRequest) =>
  post<Incident>(`${paths.incident(id)}/thread`, request);

/** Signs this browser in with a token; a cookie holds it from then on. */
export const signIn = (token: string) => post('session', { token });

/** Signs this browser out: the cookie goes. */
export const signOut = () => post('session/end');

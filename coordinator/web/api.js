// Requests to /api/v1, and the series that were fetched lately. In a report (`memtape report`) the
// answers stand in the file, and no request is made.
//
// A series is kept for a few seconds, a comparison of collectives for good: neither is asked for
// at every refresh. The only requests that change anything are the one for a capture, and those
// that sign in and out.

const SERIES_FRESH_MS = 5000;
const SERIES_PARALLEL = 6;
const SERIES_POINTS = 400;
const SERIES_KEPT_MAX = 256;
const COMPARISONS_KEPT_MAX = 16;

/** The coordinator wants to know who asks. */
export class NotSignedIn extends Error {}

/** The coordinator has no such thing. */
export class NotFound extends Error {}

const part = encodeURIComponent;

/** What a report holds; null on the page. */
export const report = JSON.parse(document.getElementById('report')?.textContent ?? 'null');

/** Where the coordinator is. */
export const origin = report?.origin ?? location.origin;

/** The shards of a cluster that an answer lacks, as `3,5`; set until the next refresh. */
export const missing = { shards: '' };

/** The JSON of a path below /api/v1. */
export async function get(path) {
  if (report) return kept(decodeURIComponent(path));
  const response = await fetch(`api/v1/${path}`, { headers: { accept: 'application/json' } });
  missing.shards = response.headers.get('memtape-missing') ?? missing.shards;
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const line = answer.error ?? `the coordinator answered ${response.status}`;
  if (response.status === 401) throw new NotSignedIn(line);
  throw response.status === 404 ? new NotFound(line) : new Error(line);
}

function kept(path) {
  if (Object.hasOwn(report.answers, path)) return report.answers[path];
  throw new NotFound(`this report does not hold ${path}`);
}

/** Signs this browser in with a token; a cookie holds it from then on. */
export async function signIn(token) {
  const response = await fetch('api/v1/session', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ token }),
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the coordinator answered ${response.status}`);
}

/** Signs this browser out: the cookie goes. */
export async function signOut() {
  const response = await fetch('api/v1/session/end', { method: 'POST' });
  if (!response.ok) throw new Error(`the coordinator answered ${response.status}`);
}

/** Does a cookie of this browser hold a token? */
export const isSignedIn = () =>
  get('whoami').then(
    who => who.signed_in,
    () => false,
  );

export const jobPath = (job, rest) => `jobs/${part(job)}/${rest}`;

/** The attempt's ranks; null where they cannot be had. */
export const ranksOf = (job, attempt) =>
  get(jobPath(job, `ranks?attempt=${attempt}`)).catch(() => null);

export const incidentsOf = job => get(`incidents?job=${part(job)}`).then(found => found.incidents);
export const capturesOf = job => get(`captures?job=${part(job)}`).then(found => found.captures);
export const one = (kind, id) => get(`${kind}/${part(id)}`);

/** Where a rank's snapshot is, as it is stored or as PyTorch's pickle. */
export const snapshotPath = (capture, rank) => `api/v1/captures/${part(capture)}/ranks/${rank}`;
export const picklePath = (capture, rank) => `${snapshotPath(capture, rank)}/pickle`;

/** Asks for a capture of all ranks of a job; its id. */
export async function requestCapture(job) {
  const response = await fetch(`api/v1/${jobPath(job, 'captures')}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{}',
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer.id;
}

/** A map that forgets the oldest. */
function remember(map, key, value, max) {
  map.delete(key);
  map.set(key, value);
  if (map.size > max) map.delete(map.keys().next().value);
}

const seriesKept = new Map();

/** The steps of one device of one rank; null where there are none. */
export async function series(job, attempt, rank, device) {
  const query = `series?rank=${rank}&device=${device}&attempt=${attempt}&points=${SERIES_POINTS}`;
  const path = jobPath(job, query);
  const known = seriesKept.get(path);
  if (known && Date.now() - known.at < SERIES_FRESH_MS) return known.data;
  const data = await get(path).catch(() => known?.data ?? null);
  remember(seriesKept, path, { at: Date.now(), data }, SERIES_KEPT_MAX);
  return data;
}

/** The device of a rank that holds most. */
export const mainDevice = ({ devices }) =>
  devices.reduce(
    (most, device) => (most && most.allocated_bytes >= device.allocated_bytes ? most : device),
    null,
  );

/** Series of many ranks, a few requests at a time. */
export async function allSeries(job, attempt, ranks) {
  const rows = new Array(ranks.length);
  let next = 0;
  const worker = async () => {
    while (next < ranks.length) {
      const index = next++;
      const { rank } = ranks[index];
      const device = mainDevice(ranks[index])?.device ?? 0;
      rows[index] = { rank, data: await series(job, attempt, rank, device) };
    }
  };
  await Promise.all(Array.from({ length: SERIES_PARALLEL }, worker));
  return rows;
}

const comparisons = new Map();

/** How the ranks of a closed capture stand in their collectives; null where that is not known. */
export async function collectivesOf(capture) {
  if (capture.state === 'collecting') return null;
  if (!comparisons.has(capture.id)) {
    const found = await get(`captures/${part(capture.id)}/collectives`).catch(() => null);
    remember(comparisons, capture.id, found, COMPARISONS_KEPT_MAX);
  }
  return comparisons.get(capture.id);
}

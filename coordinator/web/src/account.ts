// The accounts of a rank over its steps: what they are called, which one a view shows, and their
// values as text. Pure but for the address and the report.

import { address } from './address';
import { paths, report } from './api';
import type { Incident } from './types';
import { bytes, isKnown, whole } from './units';

/** The accounts by their names in the API; the first is shown where nothing else is chosen. */
export const ACCOUNTS: Record<string, string> = {
  allocated: 'allocated, minimum of each step',
  peak: 'allocated, peak of each step',
  reserved: 'reserved',
  blocks: 'live blocks',
  deferred: 'pending free',
  non_torch: 'device memory beside PyTorch',
  other: 'device memory of other processes',
  host: 'host memory, private',
  pinned: 'host memory, pinned',
  shared: 'host memory, shared',
  workers: 'host memory of worker processes',
  step_time: 'step time',
};

/** Accounts that one chart shows together. */
export const TOGETHER = ['allocated', 'peak', 'reserved'];

/** The incident of a report: the report holds the steps of its account and of no other; that of a
 * capture, the minima. */
const ofReport = report?.answers[paths.incident(report.start[1])] as Incident | undefined;

/** The account of the address, else that of the first of these incidents that is about one, else
 * the minimum. */
export const accountFor = (...incidents: (Incident | null | undefined)[]): string =>
  accountOf(incidents) ?? 'allocated';

/** The same; null where neither names an account. */
function accountOf(incidents: (Incident | null | undefined)[]): string | null {
  const chosen = address.value.query.get('account') ?? '';
  if (Object.hasOwn(ACCOUNTS, chosen)) return chosen;
  const layers = (report ? [ofReport] : incidents).map(of => of?.layer ?? '');
  const accounts = layers.map(layer => (layer === 'spread' ? 'peak' : layer));
  return accounts.find(name => Object.hasOwn(ACCOUNTS, name)) ?? null;
}

/** How the view of a job shows an incident. Without an account the job chooses that of another. */
export const jobValues = (of: Incident) =>
  ({ attempt: of.attempt, rank: of.rank, account: accountOf([of]) });

/** A value of an account in its unit. */
export function valueIn(
  unit: string,
): (value: number | null | undefined, signed?: boolean) => string {
  switch (unit) {
    case 'blocks':
      return (value, signed = false) => `${signed && (value ?? 0) > 0 ? '+' : ''}${whole(value)}`;
    case 'nanoseconds':
      return (value, signed = false) =>
        isKnown(value) ? milliseconds(value / 1e6, signed) : 'unknown';
    default:
      return bytes;
  }
}

/** Three digits: `8.25 ms`, `120 ms`, `1,840 ms`. */
function milliseconds(ms: number, signed: boolean): string {
  const size = Math.abs(ms);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const sign = ms < 0 ? '−' : signed && ms > 0 ? '+' : '';
  return `${sign}${whole(Number(size.toFixed(digits)))} ms`;
}

/** Less than this is drawn as calm, in the unit: noise of a healthy job is no signal. */
export const calmIn = (unit: string): number =>
  ({ bytes: 2 ** 20, blocks: 8, nanoseconds: 2e6 })[unit] ?? 1;

// The levels that a chart of one rank shows: those of its device, or of one account. Pure.

import { ACCOUNTS, valueIn } from '../account';
import type { Series, Incident } from '../types';
import { isKnown, median } from '../units';

/** A line of the chart: its class in the style sheet and its colour there. */
export interface Level {
  name: string;
  kind: string;
  colour: string;
  dash: number[];
  width: number;
  values: number[];
}

/** What a chart shows of a rank. */
export interface Levels {
  steps: number[];
  levels: Level[];
  /** The one of them that peers and the baseline are compared by. */
  compared: Level;
  /** A value as text. */
  words: (value: number | null | undefined) => string;
}

const RESERVED = {
  name: 'reserved',
  kind: 'line reserved',
  colour: '--reserved',
  dash: [2, 3],
  width: 1.8,
};
const PEAK = { name: 'peak', kind: 'line peak', colour: '--peak', dash: [7, 4], width: 1.8 };
const MINIMUM = {
  name: 'minimum',
  kind: 'line step-min',
  colour: '--step-min',
  dash: [],
  width: 2.4,
};

/** The levels of a device, with that of `account` to compare; a series of one account has that one.
 * Steps before `from` were not asked for. */
export function levelsOf(of: Series, account: string, from = 0): Levels {
  const { steps } = of;
  if (of.account) return ofAccount(steps, of.account, from);
  const minimum = { ...MINIMUM, values: of.step_min_bytes };
  const peak = { ...PEAK, values: of.peak_bytes };
  const reserved = { ...RESERVED, values: of.reserved_bytes };
  const compared = account === 'peak' ? peak : account === 'reserved' ? reserved : minimum;
  return { steps, levels: [reserved, peak, minimum], compared, words: valueIn('bytes') };
}

function ofAccount(steps: number[], of: NonNullable<Series['account']>, from: number): Levels {
  const { lowest, highest, unit, known_from_step: known } = of;
  const name = ACCOUNTS[of.name] ?? of.name;
  const isRange = highest.some((value, index) => value !== lowest[index]);
  // The first point stands for the steps before it, too.
  const first = Math.max(known ?? steps[0], from);
  const whole = (values: number[]) => (first < steps[0] ? [values[0], ...values] : values);
  const compared = { ...MINIMUM, name: isRange ? `highest ${name}` : name, values: whole(highest) };
  const low = { ...PEAK, name: `lowest ${name}`, width: 1.2, values: whole(lowest) };
  return {
    steps: first < steps[0] ? [first, ...steps] : steps,
    levels: isRange ? [low, compared] : [compared],
    compared,
    words: valueIn(unit),
  };
}

/** A forecast: where it begins, and in how many steps the level is full. */
export interface Fan {
  from: number;
  level: number;
  full: number;
  p10: number;
  p50: number;
  p90: number;
}

/** Layers in the memory that PyTorch's allocator has reserved. */
const OF_ALLOCATOR: Incident['layer'][] = ['allocated', 'peak', 'reserved', 'blocks', 'deferred'];

/**
 * The forecast of an incident from the newest step on; null where there is none, or where it is not
 * about these levels. Growth in the allocator fills the device from its reserved bytes on.
 */
export function fanOf(of: Series, incident: Incident, full: number): Fan | null {
  const { layer, last_step: judged, steps_to_oom: p50 } = incident;
  const [from, { account }] = [of.steps.at(-1) ?? 0, of];
  const isAbout = account ? account.name === layer : OF_ALLOCATOR.includes(layer);
  const level = (account?.highest ?? of.reserved_bytes).at(-1);
  if (incident.state !== 'open' || !isKnown(p50) || !isAbout || !isKnown(level)) return null;
  // The incident counts from the last judged step.
  const ahead = (steps: number | null) => Math.max(0, judged + (steps ?? p50) - from);
  const { steps_to_oom_p10: p10, steps_to_oom_p90: p90 } = incident;
  return { from, level, full, p10: ahead(p10), p50: ahead(p50), p90: ahead(p90) };
}

/** Most steps ahead, as a multiple of the steps behind: more would leave the levels no width. */
const AHEAD_MAX = 4;

/** How many steps ahead a chart of this many steps goes: to the last of the forecast's ends that it
 * can show; where it can show none, as many as it has. */
export const stepsAhead = ({ p10, p50, p90 }: Fan, behind: number): number =>
  [p90, p50, p10].find(end => end <= AHEAD_MAX * behind) ?? behind;

/** The highest level of a forecast this number of steps after its beginning. */
export const levelAhead = ({ level, full, p10 }: Fan, steps: number): number =>
  steps < p10 ? level + (full - level) * (steps / p10) : full;

/** The band of the peers at the steps of a rank; null where none of them is known. */
export interface PeerBand {
  low: (number | null)[];
  median: (number | null)[];
  high: (number | null)[];
}

export function peersAt(steps: number[], peers: (Series | null)[], account: string): PeerBand {
  const walkers = peers.flatMap(peer =>
    peer?.steps.length ? [walker(levelsOf(peer, account))] : [],
  );
  const found: PeerBand = { low: [], median: [], high: [] };
  for (const step of steps) {
    const known = walkers.map(at => at(step)).filter(isKnown);
    found.low.push(known.length ? Math.min(...known) : null);
    found.median.push(known.length ? median(known) : null);
    found.high.push(known.length ? Math.max(...known) : null);
  }
  return found;
}

/**
 * The compared level at growing steps: that of the next point, which stands for the steps before
 * it.
 */
function walker({ steps, compared: { values } }: Levels): (step: number) => number | null {
  let index = 0;
  return step => {
    while (index < steps.length && steps[index] < step) index += 1;
    return values[index] ?? null;
  };
}

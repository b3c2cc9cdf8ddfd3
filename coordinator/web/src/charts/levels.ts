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
  /** The last one is compared with the peers. */
  levels: Level[];
  /** A value as text. */
  words: (value: number | null | undefined) => string;
  /** What a summary is about. */
  about: string;
}

const DEVICE: Omit<Level, 'values'>[] = [
  { name: 'reserved', kind: 'line reserved', colour: '--reserved', dash: [2, 3], width: 1.8 },
  { name: 'peak', kind: 'line peak', colour: '--peak', dash: [7, 4], width: 1.8 },
  { name: 'minimum', kind: 'line step-min', colour: '--step-min', dash: [], width: 2.4 },
];

export function levelsOf({ steps, account, ...of }: Series): Levels {
  if (account) {
    const { lowest, highest, name, unit } = account;
    const level = { kind: 'line step-min', colour: '--step-min', dash: [], width: 2.4 };
    const low = { kind: 'line peak', colour: '--peak', dash: [7, 4], width: 1.2 };
    const isRange = highest.some((value, index) => value !== lowest[index]);
    return {
      steps,
      levels: [
        ...(isRange ? [{ ...low, name: 'lowest', values: lowest }] : []),
        { ...level, name: isRange ? 'highest' : (ACCOUNTS[name] ?? name), values: highest },
      ],
      words: valueIn(unit),
      about: ACCOUNTS[name] ?? name,
    };
  }
  const values = [of.reserved_bytes, of.peak_bytes, of.step_min_bytes];
  return {
    steps,
    levels: DEVICE.map((level, index) => ({ ...level, values: values[index] })),
    words: valueIn('bytes'),
    about: 'minimum',
  };
}

/** The level that the growth of an incident is in, at the newest step. */
export function growingLevel(of: Series, { layer }: Incident): number {
  const { account, reserved_bytes, peak_bytes, step_min_bytes } = of;
  const values = account ? account.highest : layer === 'reserved' ? reserved_bytes : peak_bytes;
  return values.at(-1) ?? step_min_bytes.at(-1) ?? 0;
}

/** The band of the peers at the steps of a rank; null where none of them is known. */
export interface PeerBand {
  low: (number | null)[];
  median: (number | null)[];
  high: (number | null)[];
}

export function peersAt(steps: number[], peers: (Series | null)[]): PeerBand {
  const walkers = peers.flatMap(peer => (peer?.steps.length ? [walker(levelsOf(peer))] : []));
  const found: PeerBand = { low: [], median: [], high: [] };
  for (const step of steps) {
    const known = walkers.map(at => at(step)).filter(isKnown);
    found.low.push(known.length ? Math.min(...known) : null);
    found.median.push(known.length ? median(known) : null);
    found.high.push(known.length ? Math.max(...known) : null);
  }
  return found;
}

/** The compared level at growing steps: that of the next point, which stands for the steps before it. */
function walker({ steps, levels }: Levels): (step: number) => number | null {
  const { values } = levels.at(-1)!;
  let index = 0;
  return step => {
    while (index < steps.length && steps[index] < step) index += 1;
    return values[index] ?? null;
  };
}

// Numbers with their units, as text. Pure: no document, no request, no clock.
//
// Bytes have the precision of the sentences that the coordinator writes, so that a number is the
// same wherever it stands. What is not known is 'unknown', never 0.

type Maybe = number | null | undefined;

const UNITS: [string, number][] = [
  ['TiB', 2 ** 40],
  ['GiB', 2 ** 30],
  ['MiB', 2 ** 20],
  ['KiB', 2 ** 10],
];

export const isKnown = <T>(value: T | null | undefined): value is T =>
  value !== null && value !== undefined;

/** To three digits: `2.69 MiB`, `1.5 MiB`, `143 MiB`, `12 B`; with `signed` `+1.5 MiB`. */
export function bytes(count: Maybe, signed = false): string {
  if (!isKnown(count)) return 'unknown';
  const sign = count < 0 ? '−' : signed && count > 0 ? '+' : '';
  const size = Math.abs(count);
  for (const [unit, scale] of UNITS) {
    // Rounded before the unit is chosen, so that 1023.96 KiB is 1 MiB.
    const hundredths = Math.round((size * 100) / scale);
    if (size < 1024 || hundredths < 100) continue;
    const times = hundredths < 1000 ? 100 : hundredths < 10000 ? 10 : 1;
    return `${sign}${whole(Math.round((size * times) / scale) / times)} ${unit}`;
  }
  return `${sign}${size} B`;
}

/** `1,218`; `–` where it is not known. */
export const whole = (number: Maybe): string =>
  isKnown(number) ? number.toLocaleString('en-US') : '–';

/** `1 step`, `2 steps`. */
export const plural = (count: number, noun: string, many = `${noun}s`): string =>
  `${whole(count)} ${count === 1 ? noun : many}`;

/** `90 s`, `25 min`, `3.1 h`, `4 days`. */
export function duration(seconds: Maybe): string {
  if (!isKnown(seconds)) return 'unknown';
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Number((seconds / 3600).toFixed(1))} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const percent = (share: number): string => `${Math.round(share * 100)} %`;

/** A time in the browser's zone: `2026-11-26 10:59:19 +01:00`. */
export function moment(wallNs: number): string {
  const date = new Date(wallNs / 1e6);
  const minutes = -date.getTimezoneOffset();
  const two = (number: number) => String(Math.floor(Math.abs(number))).padStart(2, '0');
  const zone =
    minutes === 0 ? 'UTC' : `${minutes < 0 ? '-' : '+'}${two(minutes / 60)}:${two(minutes % 60)}`;
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(':');
  return `${day} ${time} ${zone}`;
}

/** What a job, a rank or an incident counts: a process without steps counts turns. */
export const unitOf = (of: { clock?: string } | null | undefined): string =>
  of?.clock === 'turns' ? 'turn' : 'step';

/** Which steps figures are of: `at step 1,712`, `at steps 711 to 1,712`. */
export const atSteps = (unit: string, steps: number[]): string =>
  `at ${rangeWords(unit, { from: Math.min(...steps), to: Math.max(...steps) })}`;

/** `step 1,712`, `steps 711 to 1,712`. */
export const rangeWords = (noun: string, { from, to }: { from: number; to: number }): string =>
  from === to ? `${noun} ${whole(from)}` : `${noun}s ${whole(from)} to ${whole(to)}`;

export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : 0;
}

/** Round numbers from `low` to `high`, about `count` of them: 1, 2 or 5 times a power of ten. */
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough)!;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

/** The same for bytes from 0: round in the unit of the largest. */
export function byteTicks(high: number, count: number): number[] {
  const scale = UNITS.find(([, size]) => high >= size)?.[1] ?? 1;
  return ticks(0, high / scale, count).map(value => value * scale);
}

/** The same for steps: whole ones only. */
export const stepTicks = (low: number, high: number, count: number): number[] => [
  ...new Set(ticks(low, high, count).filter(Number.isInteger)),
];

// What a map of segments is drawn from: rows with their parts, where a byte lies, and the steps in
// which the blocks were allocated. Pure: no document, no request.

import type { Frame, MapBlock, MapSegment, MergedBlocks, Segments } from '../types';

/** A block, a free range, or merged blocks; `from` and `to` in bytes of its segment. */
export interface Part {
  segment: number;
  from: number;
  to: number;
  block: MapBlock | null;
  merged: MergedBlocks | null;
}

/** A row of the map: bytes `from` to `to` of a segment, with the parts that lie in them. */
export interface Row {
  segment: number;
  from: number;
  to: number;
  parts: Part[];
}

export const ORDERS = ['size', 'address'] as const;
export type Order = (typeof ORDERS)[number];

export const isFree = ({ block }: Part): boolean => block?.state === 'inactive';

/** The parts of each segment, by offset. */
export const partsOf = ({ segments }: Segments): Part[][] =>
  segments.map(({ blocks, merged }, segment) => {
    const parts: Part[] = [
      ...blocks.map(block => partOf(segment, block, { block, merged: null })),
      ...merged.map(of => partOf(segment, of, { block: null, merged: of })),
    ];
    return parts.sort((a, b) => a.from - b.from);
  });

const partOf = (
  segment: number,
  { offset_bytes: from, bytes }: { offset_bytes: number; bytes: number },
  of: Pick<Part, 'block' | 'merged'>,
): Part => ({ segment, from, to: from + bytes, ...of });

/** One row for each segment, those with most bytes or the lowest address first. */
export function rowsOf({ segments }: Segments, parts: Part[][], order: Order): Row[] {
  const rows = segments.map(({ bytes }, segment) => ({
    segment,
    from: 0,
    to: bytes,
    parts: parts[segment],
  }));
  return order === 'size' ? rows.sort((a, b) => b.to - a.to || a.segment - b.segment) : rows;
}

/** Parts that a row of a segment alone has room for, and the rows that it has. */
const PARTS_PER_ROW = 48;
const [ROWS_MIN, ROWS_MAX] = [8, 64];

/** A segment alone: its bytes in rows of the same length. */
export function slicesOf({ bytes }: MapSegment, segment: number, parts: Part[]): Row[] {
  const count = Math.min(ROWS_MAX, Math.max(ROWS_MIN, Math.ceil(parts.length / PARTS_PER_ROW)));
  const length = Math.max(1, Math.ceil(bytes / count));
  const rows: Row[] = [];
  for (let from = 0; from < bytes; from += length) {
    const to = Math.min(bytes, from + length);
    rows.push({
      segment,
      from,
      to,
      parts: parts.slice(indexAt(parts, from), indexAt(parts, to - 1) + 1),
    });
  }
  return rows;
}

/** The index of the part with this byte, of parts by offset. */
export function indexAt(parts: Part[], byte: number): number {
  let [low, high] = [0, parts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (parts[middle].from <= byte) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The address of a byte of a segment: more than a number of JavaScript holds. */
export const addressOf = (segment: MapSegment, offset: number): string =>
  `0x${(BigInt(segment.address) + BigInt(offset)).toString(16)}`;

/** The part at an address, such as `0x7f12`; null where no segment has it. */
export function partAt({ segments }: Segments, parts: Part[][], address: string): Part | null {
  if (!/^0x[0-9a-f]{1,16}$/.test(address)) return null;
  const wanted = BigInt(address);
  const segment = segments.findIndex(of => {
    const offset = wanted - BigInt(of.address);
    return offset >= 0n && offset < BigInt(of.bytes);
  });
  if (segment < 0) return null;
  const found = parts[segment];
  return found[indexAt(found, Number(wanted - BigInt(segments[segment].address)))] ?? null;
}

// --- steps -------------------------------------------------------------------

/** First and last step in which a part was allocated; null for a free range. */
export function stepsOf({ block, merged }: Part): [number, number] | null {
  if (merged) return [merged.first_step, merged.last_step];
  return block?.step == null ? null : [block.step, block.step];
}

/** Whether a part was there at the end of a step: 1, 0, or between them where some of it was. */
export function presence(part: Part, at: number): number {
  const [first, last] = stepsOf(part) ?? [0, 0];
  if (last <= at) return 1;
  return first > at ? 0 : 0.5;
}

/** The steps in which something here was allocated, in order, each once. */
export function eventsOf(parts: Part[][]): number[] {
  const steps = new Set<number>();
  for (const all of parts)
    for (const part of all) for (const step of stepsOf(part) ?? []) steps.add(step);
  return [...steps].sort((a, b) => a - b);
}

export type Which = 'before' | 'after';

/** The event before or after a step; the step itself where there is none. */
export const beside = (events: number[], at: number, which: Which): number =>
  (which === 'after' ? events.find(step => step > at) : events.findLast(step => step < at)) ?? at;

/** Blocks that were there at the end of a step, and all of them. */
export interface Tally {
  blocks: number;
  bytes: number;
  ofBlocks: number;
  ofBytes: number;
  /** Merged blocks of which some were allocated later: they are in none of the numbers. */
  uncertain: number;
}

export function tallyAt(parts: Part[][], at: number): Tally {
  const tally: Tally = { blocks: 0, bytes: 0, ofBlocks: 0, ofBytes: 0, uncertain: 0 };
  for (const all of parts)
    for (const part of all) if (!isFree(part)) add(tally, part, presence(part, at));
  return tally;
}

function add(tally: Tally, { merged, from, to }: Part, share: number) {
  const blocks = merged ? merged.blocks : 1;
  const bytes = merged ? merged.allocated_bytes + merged.pending_bytes : to - from;
  if (share > 0 && share < 1) {
    tally.uncertain += blocks;
    return;
  }
  tally.ofBlocks += blocks;
  tally.ofBytes += bytes;
  tally.blocks += share * blocks;
  tally.bytes += share * bytes;
}

// --- lines -------------------------------------------------------------------

/** The line of a part, by the index of its frame; null where it is unknown. */
export function lineOf({ stacks }: Segments, { block }: Part): number | null {
  return block?.stack == null ? null : (stacks[block.stack]?.line ?? null);
}

/** Bytes of a line. */
export interface LineBytes {
  line: number;
  bytes: number;
}

/** The lines that hold most, the largest first. */
export function linesOf({ stacks }: Segments): LineBytes[] {
  const bytes = new Map<number, number>();
  for (const { line, bytes: of } of stacks) {
    if (line != null) bytes.set(line, (bytes.get(line) ?? 0) + of);
  }
  return [...bytes].map(([line, of]) => ({ line, bytes: of })).sort((a, b) => b.bytes - a.bytes);
}

/** Number of hues, and the distance from a taken hue to the next one that a line tries. */
const [HUES, NEXT_HUE] = [12, 5];

/** The hues of the lines in degrees, by the index of their frame. A line has the same hue on each
 * rank and in each capture, unless a line that holds more has it, and another one is free. */
export function huesOf(of: Segments): number[] {
  const hues = of.frames.map(hueOf);
  const taken = new Set<number>();
  for (const { line } of linesOf(of)) {
    while (taken.has(hues[line]) && taken.size < HUES) hues[line] = (hues[line] + NEXT_HUE) % HUES;
    taken.add(hues[line]);
  }
  return hues.map(hue => (hue * 360) / HUES);
}

function hueOf({ file, line }: Frame): number {
  let hash = 7;
  for (const char of `${file}:${line}`) hash = (hash * 31 + char.charCodeAt(0)) % 9973;
  return hash % HUES;
}

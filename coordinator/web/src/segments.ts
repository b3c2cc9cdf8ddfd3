// What segments and their blocks are called. Pure: no document, no request.

import { addressOf, lineOf, stepsOf, type Part } from './charts/segments';
import type { MapSegment, Segments } from './types';
import { bytes, plural, whole } from './units';
import { lineOf as lineText, shortLineOf } from './words';

/** How much more or less. */
const beyond = (count: number): string =>
  `${bytes(Math.abs(count))} ${count < 0 ? 'less' : 'more'}`;

/** A part of a segment: its size, its state, its step, its line and its address. */
export function partWords(map: Segments, part: Part, unit: string): string {
  const where = `at ${addressOf(map.segments[part.segment], part.from)}`;
  const size = bytes(part.to - part.from);
  if (part.merged) {
    const { blocks, allocated_bytes: live, pending_bytes: pending } = part.merged;
    const held = `${plural(blocks, 'small block')} with ${bytes(live + pending)} of ${size}`;
    return `${held}, allocated in ${steps(part, unit)}, ${where}`;
  }
  const { state, requested_bytes: requested } = part.block!;
  if (state === 'inactive') return `${size} free, ${where}`;
  const asked =
    requested != null && requested !== part.to - part.from
      ? ` (${whole(requested)} bytes requested)`
      : '';
  const line = lineOf(map, part);
  const by =
    line === null ? 'stack unknown' : `${lineText(map.frames[line])} ${map.frames[line].function}`;
  const name = state === 'pending_free' ? 'pending free' : state.replaceAll('_', ' ');
  return `${size} ${name}${asked}, ${steps(part, unit)}, ${by}, ${where}`;
}

/** Frames of a stack that a line names. */
const FRAMES_NAMED = 6;

/** The same with the stack, the innermost frames first. */
export function partWithStack(map: Segments, part: Part, unit: string): string {
  const stack = part.block?.stack == null ? [] : [...map.stacks[part.block.stack].frames].reverse();
  if (stack.length === 0) return partWords(map, part, unit);
  const named = stack.slice(0, FRAMES_NAMED).map(index => {
    const { file, line, function: name } = map.frames[index];
    return `${name} ${shortLineOf({ file, line })}`.trim();
  });
  const more = stack.length - named.length;
  return `${partWords(map, part, unit)}; ${named.join(' ← ')}${more > 0 ? ` ← ${more} more` : ''}`;
}

function steps(part: Part, unit: string): string {
  const [first, last] = stepsOf(part)!;
  return first === last ? `${unit} ${whole(first)}` : `${unit}s ${whole(first)} to ${whole(last)}`;
}

/** A segment: its size, its pool, its stream and its address. */
export function segmentWords({ address, bytes: size, stream, ...of }: MapSegment): string {
  const expandable = of.expandable ? 'expandable ' : '';
  const pool = `${poolWords(of)}${stream ? `, stream ${stream}` : ''}`;
  return `${expandable}segment of ${bytes(size)}, ${pool}, at ${address}`;
}

export const poolWords = ({
  pool,
  private_pool: id,
}: Pick<MapSegment, 'pool' | 'private_pool'>): string =>
  id ? `private pool ${id}` : `${pool} pool`;

/** How the segments are known, where it is not from the allocator. */
export function sourceWords({ segment_source: source, split_bytes: split }: Segments): string {
  if (source === 'runtime' && split === null)
    return "; segments are calls of cudaMalloc, of which some may be other code's";
  if (source === 'none')
    return (
      '; the rank was not recorded with --detail: its segments are not known, and are drawn ' +
      'around the blocks'
    );
  return '';
}

/** Where the counters of the snapshot and its blocks do not agree, and what is not shown. */
export function disagreements(of: Segments): string[] {
  const { allocated_difference_bytes: allocated, reserved_difference_bytes: reserved } = of;
  const { other_segments: rest, other_stacks: stacks } = of;
  const blocks = (of: { blocks: number; bytes: number }, noun = 'block') =>
    `${plural(of.blocks, noun)} with ${bytes(of.bytes)}`;
  return [
    allocated
      ? `The counter of allocated bytes, ${bytes(of.allocated_bytes)}, is ${beyond(allocated)} ` +
        'than the blocks hold.'
      : '',
    reserved
      ? `The counter of reserved bytes, ${bytes(of.reserved_bytes)}, is ${beyond(reserved)} ` +
        'than the segments have.'
      : '',
    of.complete ? '' : 'The tape was full: blocks are missing.',
    of.misplaced.blocks
      ? `${blocks(of.misplaced)} overlap another block or the end of a segment: they are not drawn.`
      : '',
    rest.segments
      ? `${plural(rest.segments, 'smaller segment')} with ${bytes(rest.bytes)} are not drawn: ` +
        `${bytes(rest.allocated_bytes)} of them are allocated.`
      : '',
    of.merged.blocks
      ? `${blocks(of.merged, 'small block')} are merged with their neighbours.`
      : '',
    stacks.count ? `The stacks of ${blocks(stacks)} are not in the answer.` : '',
  ].filter(Boolean);
}

// The map of segments: one row for each, with its blocks and its free ranges. Pointing at a block,
// or going to it with the arrow keys, says what it is; a click or Enter pins it. Blocks that were
// allocated after the chosen step are pale.
//
// Only the rows that can be seen are drawn: a map has up to 60,000 blocks. What is pointed at is
// drawn on a second canvas, so that the first one stays as it is.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { colour, rgb, scheme } from '../theme';
import type { Segments } from '../types';
import { bytes, whole } from '../units';
import { Canvas, type Paint } from './canvas';
import {
  huesOf,
  indexAt,
  isFree,
  lineOf,
  presence,
  stepsOf,
  type Part,
  type Row,
} from './segments';

/** Pixels from one row to the next, and of a row. */
const [PITCH, ROW] = [20, 16];
const HEIGHT_MAX = 460;

export const COLOURS = ['line', 'state', 'age'] as const;
export type Colours = (typeof COLOURS)[number];

interface SegmentMapOf {
  map: Segments;
  rows: Row[];
  /** Whether rows are as long as their bytes, or all of one length. */
  isToScale: boolean;
  colours: Colours;
  /** Blocks that were allocated after the end of this step are pale. */
  at: number;
  pinned: Part | null;
  /** What a part is. */
  words: (part: Part) => string;
  onPin: (part: Part | null) => void;
}

interface Cursor {
  row: number;
  part: number;
}

export function SegmentMap(of: SegmentMapOf) {
  const { rows, pinned } = of;
  const [top, setTop] = useState(0);
  const [cursor, setCursor] = useState<Cursor | null>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const total = Math.max(1, rows.length) * PITCH;
  const height = Math.min(HEIGHT_MAX, total);
  const longest = useMemo(
    () => rows.reduce((most, { from, to }) => Math.max(most, to - from), 1),
    [rows],
  );
  useEffect(() => setCursor(null), [rows]);
  const theme = scheme.value;
  const paint = useMemo<Paint>(
    () => (context, width) => drawRows(context, { ...of, top, width, longest }, height),
    [of.map, rows, of.isToScale, of.colours, of.at, top, longest, height, theme],
  );
  const at = cursor ? (rows[cursor.row]?.parts[cursor.part] ?? null) : null;
  const marks = useMemo<Paint>(
    () => (context, width) => {
      const drawn = { ...of, top, width, longest };
      if (pinned) drawMark(context, drawn, pinned, '--link', 3);
      if (at) drawMark(context, drawn, at, '--text', 2);
    },
    [rows, of.isToScale, pinned, at, top, longest, theme],
  );
  const found = (event: MouseEvent) => cursorAt({ ...of, top, longest }, event);
  const click = (event: MouseEvent) => {
    const hit = found(event);
    of.onPin(hit ? rows[hit.row].parts[hit.part] : null);
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && at) return of.onPin(at);
    if (event.key === 'Escape') return of.onPin(null);
    const next = moved(event.key, cursor, rows);
    if (!next) return;
    event.preventDefault();
    setCursor(next);
    show(scroller.current, next.row);
  };
  const more = total > height ? `; scroll in it for all ${whole(rows.length)} rows` : '';
  const said = at
    ? of.words(at)
    : `point at the map, or use the arrow keys on it, for a block${more}`;
  return (
    <figure>
      <div
        class="chart map"
        ref={scroller}
        style={{ maxHeight: `${height}px` }}
        onScroll={event => setTop(event.currentTarget.scrollTop)}
      >
        <div style={{ height: `${total}px` }}>
          <div class="sticky">
            <Canvas
              height={height}
              paint={paint}
              class="segments"
              tabIndex={0}
              role="application"
              aria-label={
                `Map of ${rows.length} rows of segments; the table below has their bytes. ${said}`
              }
              onPointerMove={event => setCursor(found(event))}
              onPointerLeave={() => setCursor(null)}
              onClick={click}
              onKeyDown={key}
            />
            <Canvas height={height} paint={marks} class="marks" aria-hidden="true" />
          </div>
        </div>
      </div>
      <p class="readout soft" role="status">
        {said}
      </p>
    </figure>
  );
}

/** Scrolls until a row can be seen. */
function show(scroller: HTMLElement | null, row: number) {
  if (!scroller) return;
  const [top, bottom] = [row * PITCH, (row + 1) * PITCH];
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (bottom > scroller.scrollTop + scroller.clientHeight) {
    scroller.scrollTop = bottom - scroller.clientHeight;
  }
}

const leftOf = (width: number) => (width < 520 ? 66 : 132);

interface Scaled {
  rows: Row[];
  isToScale: boolean;
  longest: number;
  top: number;
}

/** Pixels of a byte of a row. */
const scaleOf = ({ isToScale, longest }: Scaled, { from, to }: Row, width: number) =>
  (width - leftOf(width)) / (isToScale ? longest : Math.max(1, to - from));

function cursorAt(of: Scaled, event: MouseEvent): Cursor | null {
  const box = (event.currentTarget as Element).getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top + of.top) / PITCH);
  const found = of.rows[row];
  const x = event.clientX - box.left - leftOf(box.width);
  if (!found || x < 0) return null;
  const byte = found.from + x / scaleOf(of, found, box.width);
  return byte < found.to && found.parts.length ? { row, part: indexAt(found.parts, byte) } : null;
}

function moved(key: string, cursor: Cursor | null, rows: Row[]): Cursor | null {
  if (rows.length === 0) return null;
  const at = cursor ?? { row: 0, part: -1 };
  const { parts } = rows[at.row];
  const toRow = (by: number): Cursor => {
    const row = Math.min(Math.max(at.row + by, 0), rows.length - 1);
    const part = parts[Math.max(0, at.part)];
    const [from, to] = [rows[at.row].from, rows[at.row].to];
    // The part at the same place of the other row.
    const share = part ? (Math.max(part.from, from) - from) / (to - from) : 0;
    const other = rows[row];
    return { row, part: indexAt(other.parts, other.from + share * (other.to - other.from)) };
  };
  switch (key) {
    case 'ArrowRight':
      return at.part + 1 < parts.length
        ? { ...at, part: at.part + 1 }
        : at.row + 1 < rows.length
          ? { row: at.row + 1, part: 0 }
          : at;
    case 'ArrowLeft':
      return at.part > 0
        ? { ...at, part: at.part - 1 }
        : at.row > 0
          ? { row: at.row - 1, part: rows[at.row - 1].parts.length - 1 }
          : { ...at, part: 0 };
    case 'ArrowUp':
      return toRow(-1);
    case 'ArrowDown':
      return cursor ? toRow(1) : { row: 0, part: 0 };
    case 'PageUp':
      return toRow(-10);
    case 'PageDown':
      return toRow(10);
    case 'Home':
      return { ...at, part: 0 };
    case 'End':
      return { ...at, part: parts.length - 1 };
    default:
      return null;
  }
}

// --- the drawing -------------------------------------------------------------

type Context = CanvasRenderingContext2D;

interface Drawn extends Scaled {
  map: Segments;
  colours: Colours;
  at: number;
  width: number;
}

/** How much of its colour a block has that was allocated later. */
const PALE = 0.16;

function drawRows(context: Context, of: Drawn, height: number) {
  const { rows, top, width } = of;
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  const tint = tinter(of);
  const last = Math.min(rows.length, Math.ceil((top + height) / PITCH));
  for (let row = Math.floor(top / PITCH); row < last; row += 1) {
    const y = row * PITCH - top;
    drawName(context, of, rows[row], y);
    context.fillStyle = colour('--free');
    context.fillRect(
      leftOf(width),
      y,
      scaleOf(of, rows[row], width) * (rows[row].to - rows[row].from),
      ROW,
    );
    drawParts(context, of, rows[row], y, tint);
  }
  context.globalAlpha = 1;
}

function drawParts(context: Context, of: Drawn, row: Row, y: number, tint: (part: Part) => string) {
  const scale = scaleOf(of, row, of.width);
  const left = leftOf(of.width);
  // Of blocks that share a pixel the largest is drawn.
  let [column, most] = [-1, 0];
  let [share, style] = [-1, ''];
  for (const part of row.parts) {
    if (isFree(part)) continue;
    const [from, to] = [Math.max(part.from, row.from), Math.min(part.to, row.to)];
    const x = left + (from - row.from) * scale;
    const wide = (to - from) * scale;
    if (wide < 1) {
      const pixel = Math.floor(x);
      if (pixel === column && wide <= most) continue;
      [column, most] = [pixel, wide];
    }
    const [now, next] = [presence(part, of.at), tint(part)];
    // Each change costs more than a block.
    if (now !== share) context.globalAlpha = PALE + (1 - PALE) * now;
    if (next !== style) context.fillStyle = next;
    [share, style] = [now, next];
    context.fillRect(x, y, wide > 3 ? wide - 1 : Math.max(1, wide), ROW);
  }
  context.globalAlpha = 1;
}

/** A segment by its size and pool; a row of a segment alone by where it begins. */
function drawName(context: Context, { map, width }: Drawn, row: Row, y: number) {
  const segment = map.segments[row.segment];
  const isWhole = row.from === 0 && row.to === segment.bytes;
  const pool =
    width < 520 ? '' : ` ${segment.private_pool ? `pool ${segment.private_pool}` : segment.pool}`;
  context.fillStyle = colour('--text');
  context.fillText(
    isWhole ? `${bytes(row.to)}${pool}` : `+${bytes(row.from)}`,
    0,
    y + ROW / 2,
    leftOf(width) - 6,
  );
}

function drawMark(
  context: Context,
  of: Omit<Drawn, 'at' | 'colours'>,
  part: Part,
  tint: string,
  line: number,
) {
  context.strokeStyle = colour(tint);
  context.lineWidth = line;
  of.rows.forEach((row, index) => {
    if (row.segment !== part.segment || part.to <= row.from || part.from >= row.to) return;
    const scale = scaleOf(of, row, of.width);
    const x = leftOf(of.width) + (Math.max(part.from, row.from) - row.from) * scale;
    const wide = (Math.min(part.to, row.to) - Math.max(part.from, row.from)) * scale;
    context.strokeRect(x, index * PITCH - of.top + 1, Math.max(3, wide - 1), ROW - 2);
  });
}

/** The colour of each part. */
function tinter({ map, colours }: Drawn): (part: Part) => string {
  const merged = colour('--peer');
  const byState = { allocated: colour('--step-min'), pending_free: colour('--peak') };
  const [old, young] = [rgb('--step-min'), rgb('--heat-more')];
  const lines = huesOf(map).map(lineTint);
  return part => {
    if (colours === 'age') return aged(part, map.last_step, old, young);
    if (part.merged) return merged;
    if (colours === 'state')
      return part.block!.state === 'pending_free' ? byState.pending_free : byState.allocated;
    const line = lineOf(map, part);
    return line === null ? merged : lines[line];
  };
}

/** The colour of a line with this hue, dark or light by the theme. */
export function lineTint(hue: number): string {
  const isDark = rgb('--back')[0] < 128;
  return `hsl(${hue} ${isDark ? '45% 52%' : '52% 58%'})`;
}

/** From blocks of the first step to those of the last. */
function aged(part: Part, last: number, old: number[], young: number[]): string {
  const [, step] = stepsOf(part) ?? [0, 0];
  const share = last > 1 ? (step - 1) / (last - 1) : 0;
  return `rgb(${old.map((value, i) => Math.round(value + (young[i] - value) * share)).join(',')})`;
}

// The heat map: ranks × steps, coloured by what an account holds. Dragging a rectangle chooses its
// ranks and steps; a click chooses one rank. Above it is a lane of what happened.
//
// A canvas, because there are up to 60,000 cells. The middle of the scale is the colour of the
// panel, so that healthy rows stay calm in both themes.

import { useMemo, useRef, useState } from 'preact/hooks';

import type { Span } from '../address';
import { colour, scheme } from '../theme';
import type { Incident } from '../types';
import { atSteps, stepTicks, whole } from '../units';
import { Canvas, hatch, type Paint } from './canvas';
import { against, gaps, has, isShown, lastOf, span, stepsOf, type Grid, type Row } from './heat';
import { GROUNDS, HeatLegend, NOT_YET, type LegendOf } from './heat_legend';
import { CASING, frame, shade } from './heat_paint';

const [LEFT, LANE, BOTTOM] = [76, 30, 34];
/** The lane has two rows, because an incident is often of the step of its capture. */
const [CAPTURES_AT, INCIDENTS_AT] = [8, 22];
const ROWS_HEIGHT = 440;
/** Rows up to this height have no room for frames within: all frames stand around the row. */
const LOW_ROW_MAX = 14;
const [INSET, OUTSET] = [3, 1];
/** Height of a name. */
const NAME = 13;
interface HeatMapOf extends LegendOf {
  /** Name of the account. */
  account: string;
  /** Less than this is drawn as calm: noise of a healthy job is no signal. */
  calm: number;
  onRank: (rank: number) => void;
  onArea: (ranks: Span, steps: Span) => void;
}

interface Cell {
  row: number;
  column: number;
}

export function HeatMap(of: HeatMapOf) {
  const { grid, ground, unit } = of;
  const values = useMemo(() => against(grid, ground), [grid, ground]);
  const top = useMemo(() => highest(values, of.calm), [values, of.calm]);
  const rowHeight = Math.max(4, Math.min(22, Math.floor(ROWS_HEIGHT / grid.rows.length)));
  const height = LANE + rowHeight * grid.rows.length + BOTTOM;
  const [cursor, setCursor] = useState<Cell | null>(null);
  const [drag, setDrag] = useState<[Cell, Cell] | null>(null);
  const pressed = useRef<Cell | null>(null);
  const at = (event: PointerEvent) => cellAt(grid, rowHeight, event);
  const area = drag ? areaOf(grid, drag) : null;
  const colours = scheme.value;
  const paint = useMemo<Paint>(
    () => (context, width) => {
      const right = width - rightOf(width);
      const made = { ...of, values, top, rowHeight, right, cell: (right - LEFT) / grid.columns };
      drawRows(context, made);
      drawFrames(context, made);
      drawLane(context, made);
      drawAxis(context, made, height);
      const chosen = area ?? (of.ranks && of.steps ? { ranks: of.ranks, steps: of.steps } : null);
      if (chosen) drawArea(context, made, chosen);
      if (cursor) drawCursor(context, made, cursor);
    },
    [of, values, top, rowHeight, cursor, drag, colours],
  );
  const down = (event: PointerEvent) => {
    pressed.current = at(event);
    if (pressed.current) (event.currentTarget as Element).setPointerCapture(event.pointerId);
  };
  const move = (event: PointerEvent) => {
    const cell = at(event);
    if (!cell) return;
    setCursor(cell);
    const from = pressed.current;
    if (from && (from.row !== cell.row || from.column !== cell.column)) setDrag([from, cell]);
  };
  const up = (event: PointerEvent) => {
    const cell = at(event) ?? drag?.[1] ?? null;
    if (area) of.onArea(area.ranks, area.steps);
    else if (cell && pressed.current) of.onRank(grid.rows[cell.row].extreme);
    pressed.current = null;
    setDrag(null);
  };
  const key = (event: KeyboardEvent) => {
    const next = moved(event.key, cursor ?? { row: 0, column: grid.columns - 1 }, grid);
    if (event.key === 'Enter' && cursor) of.onRank(grid.rows[cursor.row].extreme);
    if (!next) return;
    event.preventDefault();
    if (event.shiftKey) {
      const made = areaOf(grid, [pressed.current ?? cursor ?? next, next]);
      pressed.current ??= cursor;
      of.onArea(made.ranks, made.steps);
    } else pressed.current = null;
    setCursor(next);
  };
  const said = cursor
    ? words(of, values, cursor)
    : 'point at the map, or use the arrow keys on it, for exact numbers';
  return (
    <figure>
      <div class="chart">
        <Canvas
          height={height}
          paint={paint}
          class="heat"
          tabIndex={0}
          role="application"
          aria-label={
            `Heat map of ${of.account}, ${grid.rows.length} rows of ranks, ` +
            `${unit}s ${grid.first} to ${grid.last}. ${said}`
          }
          onPointerDown={down}
          onPointerMove={move}
          onPointerUp={up}
          onPointerLeave={() => !pressed.current && setCursor(null)}
          onKeyDown={key}
        />
      </div>
      <p class="readout soft">{said}</p>
      <HeatLegend of={of} top={top} />
    </figure>
  );
}

const rightOf = (width: number) => (width < 520 ? 74 : 100);

/** The highest difference or value; at least `calm`. */
const highest = (values: (number | null)[][], calm: number) =>
  values.reduce(
    (most, row) => row.reduce<number>((high, value) => Math.max(high, Math.abs(value ?? 0)), most),
    calm,
  );

function cellAt(grid: Grid, rowHeight: number, event: PointerEvent): Cell | null {
  const box = (event.currentTarget as Element).getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top - LANE) / rowHeight);
  const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - rightOf(box.width));
  const column = Math.floor(share * grid.columns);
  const isInside = row >= 0 && row < grid.rows.length && column >= 0 && column < grid.columns;
  return isInside ? { row, column } : null;
}

function moved(key: string, { row, column }: Cell, { rows, columns }: Grid): Cell | null {
  const within = (value: number, count: number) => Math.min(Math.max(value, 0), count - 1);
  const to: Record<string, [number, number]> = {
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    Home: [row, 0],
    End: [row, columns - 1],
    PageUp: [row - 10, column],
    PageDown: [row + 10, column],
  };
  const next = to[key];
  return next ? { row: within(next[0], rows.length), column: within(next[1], columns) } : null;
}

/** Ranks and steps between two cells. */
function areaOf(grid: Grid, [a, b]: [Cell, Cell]): { ranks: Span; steps: Span } {
  const [top, bottom] = [Math.min(a.row, b.row), Math.max(a.row, b.row)];
  const [left, right] = [Math.min(a.column, b.column), Math.max(a.column, b.column)];
  return {
    ranks: { from: grid.rows[top].first, to: grid.rows[bottom].last },
    steps: { from: stepsOf(grid, left).from, to: stepsOf(grid, right).to },
  };
}

function words(of: HeatMapOf, values: (number | null)[][], { row, column }: Cell): string {
  const { grid, unit, account, ground } = of;
  const { first, last } = grid.rows[row];
  const { from, to } = stepsOf(grid, column);
  const ranks = first === last ? `rank ${first}` : `ranks ${first} to ${last}`;
  const where = `${ranks} ${atSteps(unit, [from, to])}`;
  const value = grid.cells[row][column];
  if (value === null) {
    const isLost = gaps(grid.cells[row]).some(([from, to]) => column >= from && column < to);
    return `${where}: ${isLost ? 'no data' : NOT_YET}`;
  }
  const more =
    ground === 'level' ? '' : `, ${of.words(values[row][column], true)} ${GROUNDS[ground]}`;
  return `${where}: ${account} ${of.words(value, false)}${more}`;
}

// --- the drawing -------------------------------------------------------------

interface Drawn extends HeatMapOf {
  values: (number | null)[][];
  top: number;
  rowHeight: number;
  right: number;
  /** Width of a column. */
  cell: number;
}

type Context = CanvasRenderingContext2D;

const columnAt = ({ grid }: Drawn, step: number) => (step - grid.first) / span(grid);
const incidentIn = ({ incidents }: HeatMapOf, row: Row) =>
  incidents.find(({ rank }) => has(row, rank));
const xOf = (of: Drawn, step: number) =>
  LEFT + Math.min(Math.max(columnAt(of, step), 0), of.grid.columns) * of.cell;
const yOf = ({ rowHeight }: Drawn, row: number) => LANE + row * rowHeight;

function drawRows(context: Context, of: Drawn) {
  const { grid, values, top, rowHeight, cell } = of;
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  values.forEach((line, row) => {
    const y = yOf(of, row);
    line.forEach((value, column) => {
      if (value === null) return;
      context.fillStyle = shade(value / top);
      context.fillRect(LEFT + column * cell, y, cell + 0.6, rowHeight - (rowHeight > 6 ? 1 : 0));
    });
    for (const [from, to] of gaps(line)) {
      hatch(context, colour('--peer'), [LEFT + from * cell, y, (to - from) * cell, rowHeight]);
    }
    drawName(context, of, row, incidentIn(of, grid.rows[row]) !== undefined);
  });
}

/** The frames of rows, above the cells of all rows. */
function drawFrames(context: Context, of: Drawn) {
  const { grid, selected, right } = of;
  grid.rows.forEach((at, row) => {
    if (selected !== null && has(at, selected)) {
      frame(context, 'rank', [LEFT, ...framedRow(of, row, 0, right - LEFT)], CASING);
    }
    const incident = incidentIn(of, at);
    if (incident) drawIncident(context, of, row, incident);
  });
}

/** Top, width and height of a frame of a row, this far within it where there is room. */
function framedRow(of: Drawn, row: number, inset: number, width: number) {
  const within = of.rowHeight > LOW_ROW_MAX ? inset : -OUTSET;
  const height = of.rowHeight - 1 - 2 * within;
  return [yOf(of, row) + within, width, height] as [number, number, number];
}

function drawName(context: Context, of: Drawn, row: number, isSuspect: boolean) {
  const { grid, values, rowHeight, right, ground } = of;
  const rows = Math.ceil(NAME / rowHeight);
  const near = grid.rows.slice(Math.max(0, row - rows + 1), row + rows);
  const isFree = row % rows === 0 && !near.some(at => incidentIn(of, at));
  if (!isFree && !isSuspect) return;
  const y = yOf(of, row) + rowHeight / 2;
  const { first, last } = grid.rows[row];
  context.fillStyle = colour(isSuspect ? '--bad' : '--text');
  context.textAlign = 'left';
  const name = first === last ? `rank ${first}` : `${first}–${last}`;
  context.fillText(`${isSuspect ? '▲ ' : ''}${name}`, 2, y);
  const end = values[row][lastOf(values[row])] ?? null;
  context.fillText(end === null ? 'no data' : of.words(end, ground !== 'level'), right + 6, y);
}

/** From the onset on, within the frame of the chosen rank; a bar marks where it was detected. */
function drawIncident(context: Context, of: Drawn, row: number, incident: Incident) {
  const { rowHeight, right } = of;
  const [from, y] = [xOf(of, incident.onset_step), yOf(of, row)];
  const inset = rowHeight > LOW_ROW_MAX ? INSET : 0;
  const rect = framedRow(of, row, INSET, right - from - 2 * inset);
  frame(context, 'incident', [from + inset, ...rect], CASING);
  if (!isShown(of.grid, incident.detected_step)) return;
  const x = Math.round(xOf(of, incident.detected_step));
  context.fillStyle = colour('--back');
  context.fillRect(x - 2 - CASING, y, 4 + 2 * CASING, rowHeight - 1);
  context.fillStyle = colour('--mark');
  context.fillRect(x - 2, y, 4, rowHeight - 1);
}

function drawLane(context: Context, of: Drawn) {
  context.textAlign = 'center';
  for (const { step, symbol, tone } of of.happened) {
    if (!isShown(of.grid, step)) continue;
    context.fillStyle = colour(tone);
    context.fillText(symbol, xOf(of, step), symbol === '◎' ? CAPTURES_AT : INCIDENTS_AT);
  }
}

function drawAxis(context: Context, of: Drawn, height: number) {
  const { grid, unit, right } = of;
  const y = height - BOTTOM;
  context.fillStyle = colour('--soft');
  context.textAlign = 'center';
  for (const step of stepTicks(grid.first, grid.last, (right - LEFT) / 70)) {
    context.fillRect(xOf(of, step), y, 1, 4);
    context.fillText(whole(step), xOf(of, step), y + 12);
  }
  context.textAlign = 'right';
  context.fillText(unit, right, y + 26);
}

function drawArea(context: Context, of: Drawn, { ranks, steps }: { ranks: Span; steps: Span }) {
  const { grid } = of;
  const top = grid.rows.findIndex(row => row.last >= ranks.from);
  const bottom = grid.rows.findLastIndex(row => row.first <= ranks.to);
  if (top < 0 || bottom < top) return;
  const [left, right] = [xOf(of, steps.from), xOf(of, steps.to + 1)];
  const height = yOf(of, bottom + 1) - yOf(of, top);
  frame(context, 'area', [left, yOf(of, top), right - left, height], CASING);
}

function drawCursor(context: Context, of: Drawn, { row, column }: Cell) {
  const [x, y] = [LEFT + column * of.cell, yOf(of, row)];
  // A casing would hide the cells beside it.
  frame(context, 'cursor', [x, y, Math.max(3, of.cell), of.rowHeight], 0);
}

// What is drawn on a chart of uPlot beside its series: the forecast, the limit, and
// what happened at which step.

import type uPlot from 'uplot';

import { colour } from '../theme';
import { bytes, plural } from '../units';
import type { Fan } from './levels';

export interface Mark {
  kind: 'onset' | 'detected' | 'full' | 'ended' | 'capture';
  step: number;
  words: string;
}

/** The symbol of a line, its colour and dash. */
type Line = [symbol: string, colour: string, dash: number[]];

/** The words of each kind are on a row of their own, in this order. */
const LINES: Record<Exclude<Mark['kind'], 'capture'>, Line> = {
  onset: ['◇', '--onset', [5, 3]],
  detected: ['◆', '--mark', []],
  full: ['●', '--bad', [2, 4]],
  ended: ['✕', '--mark', []],
};
const ROW = 15;

/** The kinds of these marks that have words. */
const rowsOf = (marks: Mark[]) =>
  Object.keys(LINES).filter(kind => marks.some(mark => mark.kind === kind));

/** Room above a chart for the words of its marks, in pixels of the style sheet. */
export const roomFor = (marks: Mark[]) => 7 + rowsOf(marks).length * ROW;

/** Draws in pixels of the screen; a pixel of the style sheet is `ratio` of them. */
function painted(
  { ctx: context }: uPlot,
  draw: (context: CanvasRenderingContext2D, ratio: number) => void,
) {
  context.save();
  draw(context, devicePixelRatio || 1);
  context.restore();
}

const x = (plot: uPlot, step: number) => plot.valToPos(step, 'x', true);
const y = (plot: uPlot, level: number) => plot.valToPos(level, 'y', true);

/** From the newest level to the full one, between the early and the late end. */
export function drawFan(plot: uPlot, fan: Fan, fill: string) {
  const top = y(plot, fan.full);
  const start = [x(plot, fan.from), y(plot, fan.level)] as const;
  painted(plot, (context, ratio) => {
    const { left, width, top: above, height } = plot.bbox;
    context.beginPath();
    context.rect(left, above, width, height);
    context.clip();
    context.fillStyle = fill;
    context.globalAlpha = 0.22;
    context.beginPath();
    context.moveTo(...start);
    context.lineTo(x(plot, fan.from + fan.p10), top);
    context.lineTo(x(plot, fan.from + fan.p90), top);
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = fill;
    context.lineWidth = 1.5 * ratio;
    context.setLineDash([3 * ratio, 3 * ratio]);
    context.beginPath();
    context.moveTo(...start);
    context.lineTo(x(plot, fan.from + fan.p50), top);
    context.stroke();
  });
}

/** What the levels cannot exceed. */
export interface Limit {
  value: number;
  name: string;
}

/** The marks of a chart of these steps, and what its legend says of all others. */
export function placed(marks: Mark[], [first, last]: [number, number]): [Mark[], string[]] {
  const beside = (['before', 'after'] as const).flatMap(side => {
    const found = marks.filter(({ step }) => (side === 'before' ? step < first : step > last));
    const lines = found.filter(mark => mark.kind !== 'capture').map(mark => mark.words);
    const captures = found.length - lines.length;
    const words = captures ? [...lines, plural(captures, 'capture')] : lines;
    return words.length ? [`${side} this chart: ${words.join(', ')}`] : [];
  });
  return [marks.filter(({ step }) => step >= first && step <= last), beside];
}

export function drawMarks(plot: uPlot, marks: Mark[], limit: Limit | null) {
  painted(plot, (context, ratio) => {
    const lines = marks.filter(mark => mark.kind !== 'capture');
    const rows = rowsOf(lines);
    const rowOf = ({ kind }: Mark) => (8 + rows.indexOf(kind) * ROW) * ratio;
    if (limit) drawLimit(plot, context, ratio, limit);
    for (const mark of lines) drawLine(plot, context, ratio, mark, rowOf(mark));
    for (const mark of marks) if (mark.kind === 'capture') drawDot(plot, context, ratio, mark.step);
    // Words lie above all lines.
    context.font = `${12 * ratio}px system-ui, sans-serif`;
    if (limit) nameLimit(plot, context, ratio, limit);
    for (const mark of lines) nameLine(plot, context, ratio, mark, rowOf(mark));
  });
}

type Draw = [plot: uPlot, context: CanvasRenderingContext2D, ratio: number];

function drawLimit(...[plot, context, ratio, limit]: [...Draw, Limit]) {
  const { left, width } = plot.bbox;
  const level = y(plot, limit.value);
  context.strokeStyle = colour('--bad');
  context.lineWidth = 1.5 * ratio;
  context.setLineDash([10, 3, 2, 3].map(length => length * ratio));
  context.beginPath();
  context.moveTo(left, level);
  context.lineTo(left + width, level);
  context.stroke();
}

function nameLimit(...[plot, context, ratio, limit]: [...Draw, Limit]) {
  const { left, width } = plot.bbox;
  const text = `${limit.name}: ${bytes(limit.value)}`;
  context.textAlign = 'right';
  context.textBaseline = 'bottom';
  const level = y(plot, limit.value) - 4 * ratio;
  write(context, ratio, '--bad', text, left + width - 8 * ratio, level);
}

/** From the height of its words to the ground of the chart. */
function drawLine(...[plot, context, ratio, mark, row]: [...Draw, Mark, number]) {
  const [, name, dash] = LINES[mark.kind as keyof typeof LINES];
  const { top, height } = plot.bbox;
  const at = x(plot, mark.step);
  context.strokeStyle = colour(name);
  context.lineWidth = (mark.kind === 'ended' ? 3 : 1.6) * ratio;
  context.setLineDash(dash.map(length => length * ratio));
  context.beginPath();
  context.moveTo(at, row - 6 * ratio);
  context.lineTo(at, top + height);
  context.stroke();
}

/** The words of a line stand right of it where there is room, else left of it. */
function nameLine(...[plot, context, ratio, mark, row]: [...Draw, Mark, number]) {
  const [symbol, name] = LINES[mark.kind as keyof typeof LINES];
  const { left, width } = plot.bbox;
  const text = `${symbol} ${mark.words}`;
  const at = x(plot, mark.step);
  const isRight = at + 5 * ratio + context.measureText(text).width <= left + width;
  context.textAlign = isRight ? 'left' : 'right';
  context.textBaseline = 'middle';
  write(context, ratio, name, text, at + (isRight ? 5 : -5) * ratio, row);
}

/** Words with a rim in the colour of the page, so that no line runs through them. */
function write(
  context: CanvasRenderingContext2D,
  ratio: number,
  name: string,
  text: string,
  ...at: [number, number]
) {
  context.setLineDash([]);
  context.lineJoin = 'round';
  context.lineWidth = 4 * ratio;
  context.strokeStyle = colour('--back');
  context.strokeText(text, ...at);
  context.fillStyle = colour(name);
  context.fillText(text, ...at);
}

function drawDot(...[plot, context, ratio, step]: [...Draw, number]) {
  const { top, height } = plot.bbox;
  const at = x(plot, step);
  context.setLineDash([]);
  context.fillStyle = colour('--back');
  context.strokeStyle = colour('--link');
  context.lineWidth = 2 * ratio;
  context.beginPath();
  context.arc(at, top + height, 4.5 * ratio, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
}

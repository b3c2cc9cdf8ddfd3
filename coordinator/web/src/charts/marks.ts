// What is drawn on a chart of uPlot beside its series: the forecast, the limit, and
// what happened at which step.

import type uPlot from 'uplot';

import { colour } from '../theme';
import { bytes, plural } from '../units';
import type { Fan } from './levels';

export interface Mark {
  kind: 'onset' | 'detected' | 'ended' | 'capture';
  step: number;
  words: string;
}

/** The symbol of a line, its colour and dash, and the row that its words are on. */
type Line = [symbol: string, colour: string, dash: number[], row: number];

const LINES: Record<Exclude<Mark['kind'], 'capture'>, Line> = {
  onset: ['◇', '--onset', [5, 3], 0],
  detected: ['◆', '--mark', [], 1],
  ended: ['✕', '--mark', [], 2],
};
const ROW = 15;

/** Pixels of the style sheet that a dot at either end of the chart needs beside it. */
const BESIDE = 6;

/** Draws in pixels of the screen, of which `ratio` are one of the style sheet; what lies more than
 * `beside` pixels of the style sheet left or right of the chart is cut off. */
function within(plot: uPlot, beside: number, draw: (context: CanvasRenderingContext2D, ratio: number) => void) {
  const { ctx: context, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  context.save();
  context.beginPath();
  context.rect(bbox.left - beside * ratio, 0, bbox.width + 2 * beside * ratio, bbox.top + bbox.height + 8);
  context.clip();
  draw(context, ratio);
  context.restore();
}

const x = (plot: uPlot, step: number) => plot.valToPos(step, 'x', true);
const y = (plot: uPlot, level: number) => plot.valToPos(level, 'y', true);

/** From the newest level to the full one, between the early and the late end. */
export function drawFan(plot: uPlot, fan: Fan, fill: string) {
  const top = y(plot, fan.full);
  const start = [x(plot, fan.from), y(plot, fan.level)] as const;
  within(plot, 0, (context, ratio) => {
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
  within(plot, BESIDE, (context, ratio) => {
    context.font = `${12 * ratio}px system-ui, sans-serif`;
    if (limit) drawLimit(plot, context, ratio, limit);
    for (const mark of marks) {
      if (mark.kind === 'capture') drawDot(plot, context, ratio, mark.step);
      else drawLine(plot, context, ratio, mark);
    }
  });
}

type Draw = [plot: uPlot, context: CanvasRenderingContext2D, ratio: number];

function drawLimit(...[plot, context, ratio, limit]: [...Draw, Limit]) {
  const { left, width } = plot.bbox;
  const level = y(plot, limit.value);
  context.strokeStyle = context.fillStyle = colour('--bad');
  context.lineWidth = 1.5 * ratio;
  context.setLineDash([10, 3, 2, 3].map(length => length * ratio));
  context.beginPath();
  context.moveTo(left, level);
  context.lineTo(left + width, level);
  context.stroke();
  context.setLineDash([]);
  context.textAlign = 'right';
  context.textBaseline = 'bottom';
  context.fillText(`${limit.name}: ${bytes(limit.value)}`, left + width - 8 * ratio, level - 4 * ratio);
}

function drawLine(...[plot, context, ratio, mark]: [...Draw, Mark]) {
  const [symbol, name, dash, row] = LINES[mark.kind as keyof typeof LINES];
  const { left, width, top, height } = plot.bbox;
  const at = x(plot, mark.step);
  const line = (8 + row * ROW) * ratio;
  context.strokeStyle = context.fillStyle = colour(name);
  context.lineWidth = (mark.kind === 'ended' ? 3 : 1.6) * ratio;
  context.setLineDash(dash.map(length => length * ratio));
  context.beginPath();
  context.moveTo(at, line - 6 * ratio);
  context.lineTo(at, top + height);
  context.stroke();
  const isLate = at > left + width / 2;
  context.textAlign = isLate ? 'right' : 'left';
  context.textBaseline = 'middle';
  context.fillText(`${symbol} ${mark.words}`, at + (isLate ? -5 : 5) * ratio, line);
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

// The legend of the heat map: its scale, its frames, and the symbols of its lane.

import { useMemo } from 'preact/hooks';

import type { Span } from '../address';
import { colour, scheme } from '../theme';
import type { Incident } from '../types';
import { atSteps } from '../units';
import { Canvas, hatch, type Paint } from './canvas';
import { has, isShown, lastOf, lastSteps, type Grid, type Ground, type Happened } from './heat';
import { CASING, frame, shade, type Framed } from './heat_paint';

export interface LegendOf {
  grid: Grid;
  ground: Ground;
  incidents: Incident[];
  happened: Happened[];
  selected: number | null;
  ranks: Span | null;
  steps: Span | null;
  unit: string;
  /** The newest step of a rank. */
  newest: number;
  words: (value: number | null, signed: boolean) => string;
}

/** The symbols of the lane with their colours. */
const SIGNS = [
  ['◎', '--link', 'capture'],
  ['▲', '--bad', 'incident detected'],
  ['✕', '--bad', 'out of memory, or a rank died'],
] as const;

/** What a value is the difference from. */
export const GROUNDS: Record<Ground, string> = {
  peers: 'against the median rank',
  growth: 'since the left end',
  level: '',
};

/** Of steps after the last one of a row. */
export const NOT_YET = 'no step yet, or the rank has ended';
const endsEarly = (row: (number | null)[]) => lastOf(row) >= 0 && lastOf(row) < row.length - 1;

/** `top` is the value of the reddest cells. */
export function HeatLegend({ of, top }: { of: LegendOf; top: number }) {
  const { ground, words, incidents, grid, happened, selected } = of;
  const symbols = happened.filter(({ step }) => isShown(grid, step)).map(({ symbol }) => symbol);
  const isSigned = ground !== 'level';
  const colours = scheme.value;
  const bar = useMemo<Paint>(
    () => (context, width) => {
      for (let x = 0; x < width; x += 1) {
        context.fillStyle = shade(isSigned ? (x / width) * 2 - 1 : x / width);
        context.fillRect(x, 0, 1.5, 14);
      }
    },
    [isSigned, colours],
  );
  const ends = lastSteps(grid, grid.cells, of.newest);
  const isGrouped = grid.rows.some(row => row.first !== row.last);
  return (
    <figcaption>
      <span>{isSigned ? words(-top, true) : words(0, false)}</span>
      <Canvas height={14} paint={bar} class="legend" aria-hidden="true" />
      <span>{`${words(top, isSigned)} ${GROUNDS[ground]}`}</span>
      <span>
        <Swatch paint={MISSING} /> no data
      </span>
      {grid.cells.some(endsEarly) ? <span>{`empty: ${NOT_YET}`}</span> : null}
      {ends.length ? <span>{`numbers at the right: ${atSteps(of.unit, ends)}`}</span> : null}
      {isGrouped ? <span>a row is several ranks, and shows the highest of them</span> : null}
      {incidents.length ? (
        <span>
          <Swatch paint={INCIDENT} /> open incident, from where it began;{' '}
          <Sign tone="--mark">┃</Sign> where it was detected
        </span>
      ) : null}
      {selected !== null && grid.rows.some(row => has(row, selected)) ? (
        <span>
          <Swatch paint={RANK} /> chosen rank
        </span>
      ) : null}
      {of.ranks && of.steps ? (
        <span>
          <Swatch paint={AREA} /> {`chosen ranks and ${of.unit}s`}
        </span>
      ) : null}
      {SIGNS.map(([symbol, tone, words]) =>
        symbols.includes(symbol) ? (
          <span>
            <Sign tone={tone}>{symbol}</Sign> {words}
          </span>
        ) : null,
      )}
    </figcaption>
  );
}

/** A symbol of the map in its colour there. */
const Sign = ({ tone, children }: { tone: string; children: string }) => (
  <span style={{ color: `var(${tone})` }}>{children}</span>
);

const Swatch = ({ paint }: { paint: Paint }) => (
  <Canvas height={14} paint={paint} class="swatch" aria-hidden="true" />
);

const swatchOf = (framed: Framed): Paint => (context, width) =>
  frame(context, framed, [3, 3, width - 6, 8], CASING);
const [INCIDENT, RANK, AREA] = (['incident', 'rank', 'area'] as const).map(swatchOf);
const MISSING: Paint = (context, width) => hatch(context, colour('--peer'), [0, 0, width, 14]);

// The values of the heat map: one account of all ranks on one grid of steps. Pure.

import type { Area } from '../types';
import { median } from '../units';

/** One rank, or neighbouring ranks of which the highest is shown. */
export interface Row {
  first: number;
  last: number;
  /** The rank with the highest value. */
  extreme: number;
}

/** Something that happened: a symbol on the lane. */
export interface Happened {
  step: number;
  symbol: string;
  tone: string;
  words: string;
}

/** Ranks × steps. */
export interface Grid {
  rows: Row[];
  /** Steps of all columns, both included. */
  first: number;
  last: number;
  columns: number;
  /** Values by row and column; null where nothing is known. */
  cells: (number | null)[][];
  /** Lower median over all ranks, by column. */
  medians: (number | null)[];
}

/** The grid of an answer; null where it has no step or no rank. */
export function gridOf({
  rows,
  medians,
  base,
  scale,
  first_step: first,
  steps_per_column: steps,
}: Area): Grid | null {
  if (rows.length === 0 || medians.length === 0) return null;
  const value = (number: number | null) => (number === null ? null : base + number * scale);
  return {
    rows: rows.map(of => ({
      first: of.first_rank,
      last: of.last_rank,
      extreme: of.extreme_rank ?? of.first_rank,
    })),
    first,
    last: first + medians.length * steps - 1,
    columns: medians.length,
    cells: rows.map(of => of.cells.map(value)),
    medians: medians.map(value),
  };
}

/** What a cell is compared with. */
export type Ground = 'peers' | 'growth' | 'level';

const known = (values: (number | null)[]) => values.filter(value => value !== null);

/** Share of the columns at the left that say where a row began. */
const HEAD = 0.1;

/** The difference from the median rank, the growth since the left end, or the values themselves. */
export function against({ cells, medians, columns }: Grid, ground: Ground): (number | null)[][] {
  if (ground === 'level') return cells;
  if (ground === 'peers') return cells.map(row => minus(row, column => medians[column] ?? 0));
  return cells.map(row => {
    const head = known(row).slice(0, Math.max(1, Math.floor(columns * HEAD)));
    const start = head.length ? median(head) : 0;
    return minus(row, () => start);
  });
}

const minus = (row: (number | null)[], ground: (column: number) => number) =>
  row.map((value, column) => (value === null ? null : value - ground(column)));

/** Steps in a column, as a fraction of one where there are more columns than steps. */
export const span = ({ first, last, columns }: Grid): number => (last - first + 1) / columns;

/** The steps of a column. */
export function stepsOf(grid: Grid, column: number): { from: number; to: number } {
  const from = grid.first + Math.ceil(column * span(grid) - 1e-9);
  const to = grid.first + Math.ceil((column + 1) * span(grid) - 1e-9) - 1;
  return { from, to: Math.max(from, to) };
}

/** The last column with a value; -1 where there is none. */
export const lastOf = (row: (number | null)[]): number => row.findLastIndex(of => of !== null);

/** The steps that the last values of rows are of, none after the newest step of a rank. */
export const lastSteps = (grid: Grid, rows: (number | null)[][], newest: number): number[] =>
  rows.flatMap(row => {
    const last = lastOf(row);
    if (last < 0) return [];
    const { from, to } = stepsOf(grid, last);
    return [from, Math.max(from, Math.min(to, newest))];
  });

/** Runs of columns without data, as [from, to): none after the last value, for what is not there
 * yet is not lost. A row without a value is one gap. */
export function gaps(row: (number | null)[]): [number, number][] {
  const found: [number, number][] = [];
  const end = lastOf(row) + 1 || row.length;
  row.slice(0, end).forEach((value, column) => {
    if (value !== null) return;
    const last = found.at(-1);
    if (last?.[1] === column) last[1] += 1;
    else found.push([column, column + 1]);
  });
  return found;
}

/** Whether a step is on the map. */
export const isShown = ({ first, last }: Grid, step: number): boolean =>
  step >= first && step <= last;

export const has = ({ first, last }: Row, rank: number): boolean => rank >= first && rank <= last;

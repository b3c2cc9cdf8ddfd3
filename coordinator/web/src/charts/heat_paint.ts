// What the heat map and its legend paint alike: the colours of cells, and frames.

import { colour, rgb } from '../theme';

/** Frames have a casing in the colour of the page: those of incidents are as red as their cells. */
export const CASING = 1;

/** What is framed, with the colour and the dashes of the line. */
const FRAMES = {
  incident: ['--mark', []],
  rank: ['--link', []],
  area: ['--link', [6, 4]],
  cursor: ['--text', []],
} satisfies Record<string, [tint: string, dashes: number[]]>;
export type Framed = keyof typeof FRAMES;

/** Draws a frame; `casing` is its width in pixels, 0 without one. */
export function frame(
  context: CanvasRenderingContext2D,
  framed: Framed,
  rect: [number, number, number, number],
  casing: number,
) {
  const [tint, dashes] = FRAMES[framed];
  if (casing) {
    context.strokeStyle = colour('--back');
    context.lineWidth = 2 + 2 * casing;
    context.strokeRect(...rect);
  }
  context.strokeStyle = colour(tint);
  context.lineWidth = 2;
  context.setLineDash(dashes);
  context.strokeRect(...rect);
  context.setLineDash([]);
}

/** The colour of a share from −1 to 1. The root makes small shares visible. */
export function shade(share: number): string {
  const weight = Math.sqrt(Math.min(1, Math.abs(share)));
  const [from, to] = [rgb('--heat-calm'), rgb(share < 0 ? '--heat-less' : '--heat-more')];
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * weight)).join(',')})`;
}

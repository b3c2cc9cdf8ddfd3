// What all charts share: a frame that draws again when its width changes, and the axes.
//
// Charts are SVG with colours from the style sheet, so that a change of the theme needs no drawing.

import { make, svg } from '../elements.js';

/** Holds what `draw(width)` makes, for the width that there is. */
export function frame(height, draw) {
  const box = make('div', { class: 'chart' });
  box.style.minHeight = `${height}px`;
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width === 0 || width === drawn) return;
    drawn = width;
    box.replaceChildren(draw(width));
  }).observe(box);
  return box;
}

/** A linear scale from values to pixels. */
export function scale(low, high, from, to) {
  const factor = (to - from) / (high - low || 1);
  return value => from + (value - low) * factor;
}

export const text = (x, y, words, attributes = {}) => svg('text', { x, y, ...attributes }, words);

/** Lines across with their values at the left. */
export const yAxis = (ticks, y, left, right, words) =>
  ticks.map(tick => [
    svg('line', { class: 'grid', x1: left, x2: right, y1: y(tick), y2: y(tick) }),
    text(left - 6, y(tick) + 4, words(tick), { 'text-anchor': 'end' }),
  ]);

/** Ticks below with their values, and what they count. */
export function xAxis(ticks, x, bottom, right, words, unit) {
  const marks = ticks.map(tick => [
    svg('line', { class: 'tick', x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 }),
    text(x(tick), bottom + 17, words(tick), { 'text-anchor': 'middle' }),
  ]);
  return [...marks, text(right, bottom + 31, unit, { 'text-anchor': 'end', class: 'unit' })];
}

/** A key of the legend: a line or a field of a class, and its name. */
export const key = (kind, words) =>
  make(
    'span',
    { class: 'key' },
    svg(
      'svg',
      { width: 28, height: 12, 'aria-hidden': 'true' },
      kind.startsWith('line')
        ? svg('line', { class: kind, x1: 0, x2: 28, y1: 6, y2: 6 })
        : svg('rect', { class: kind, x: 0, y: 0, width: 28, height: 12 }),
    ),
    ` ${words}`,
  );

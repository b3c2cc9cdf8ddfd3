// What the charts in SVG share: a frame that knows its width, scales, axes and keys.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

type ChartOf = { height: number; draw: (width: number) => ComponentChildren };

/** Shows what `draw(width)` makes, for the width that there is. */
export function Chart({ height, draw }: ChartOf) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  return (
    <div class="chart" ref={box} style={{ minHeight: `${height}px` }}>
      {width > 0 ? draw(width) : null}
    </div>
  );
}

export type Scale = (value: number) => number;

/** A linear scale from values to pixels. */
export function scale(low: number, high: number, from: number, to: number): Scale {
  const factor = (to - from) / (high - low || 1);
  return value => from + (value - low) * factor;
}

/** Lines across with their values at the left. */
export const YAxis = (of: {
  ticks: number[];
  y: Scale;
  left: number;
  right: number;
  words: (value: number) => string;
}) => (
  <>
    {of.ticks.map(tick => (
      <g>
        <line class="grid" x1={of.left} x2={of.right} y1={of.y(tick)} y2={of.y(tick)} />
        <text x={of.left - 6} y={of.y(tick) + 4} text-anchor="end">
          {of.words(tick)}
        </text>
      </g>
    ))}
  </>
);

/** Ticks below with their values, and what they count. */
export const XAxis = (of: {
  ticks: number[];
  x: Scale;
  bottom: number;
  right: number;
  words: (value: number) => string;
  unit: string;
}) => (
  <>
    {of.ticks.map(tick => (
      <g>
        <line class="tick" x1={of.x(tick)} x2={of.x(tick)} y1={of.bottom} y2={of.bottom + 4} />
        <text x={of.x(tick)} y={of.bottom + 17} text-anchor="middle">
          {of.words(tick)}
        </text>
      </g>
    ))}
    <text class="unit" x={of.right} y={of.bottom + 31} text-anchor="end">
      {of.unit}
    </text>
  </>
);

/**
 * A key of a legend: a line, a dot or a field of a class, and its name. Peers are a field with
 * their median.
 */
export const Key = ({ kind, children }: { kind: string; children: ComponentChildren }) => (
  <span class="key">
    <svg width={28} height={12} aria-hidden="true">
      {kind.startsWith('line') ? (
        <line class={kind} x1={0} x2={28} y1={6} y2={6} />
      ) : kind.endsWith('dot') ? (
        <circle class={kind} cx={14} cy={6} r={4.5} />
      ) : (
        <rect class={kind} x={0} y={0} width={28} height={12} />
      )}
      {kind === 'peers' ? <line class="line peer" x1={0} x2={28} y1={6} y2={6} /> : null}
    </svg>{' '}
    {children}
  </span>
);

// A uPlot chart over steps: made again when what it shows or its width changes, and never under the
// pointer or the keyboard. Dragging, or Shift with the arrow keys, chooses a range of steps.

import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';

import type { Span } from '../address';
import { scheme } from '../theme';

interface PlotOf {
  /** Steps in the first column. */
  data: uPlot.AlignedData;
  options: Omit<uPlot.Options, 'width' | 'height'>;
  height: number;
  /** What the chart shows, for a screen reader. */
  label: string;
  /** The values at an index of the data, in words. */
  words: (index: number) => string;
  selected: Span | null;
  onSelect: (steps: Span | null) => void;
}

export function Plot(of: PlotOf) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isPending = useRef(false);
  const [readout, setReadout] = useState('');
  const [width, setWidth] = useState(0);
  const latest = useRef(of);
  latest.current = of;

  const make = () => {
    isPending.current = false;
    const { data, options, height } = latest.current;
    plot.current?.destroy();
    plot.current = null;
    if (!box.current || width === 0) return;
    // Before it is ready a chart knows no places of steps.
    const ready = [(made: uPlot) => mark(made, latest.current.selected)];
    const hooks = { ...options.hooks, setSelect: [chosen], setCursor: [pointed], ready };
    plot.current = new uPlot({ ...options, width, height, hooks }, data, box.current);
  };
  const pointed = ({ cursor: { idx } }: uPlot) => {
    if (isKnownIndex(idx)) setReadout(latest.current.words(idx));
  };
  const chosen = (made: uPlot) => {
    // A click chooses nothing, and takes no range away.
    if (made.select.width < 2) return mark(made, latest.current.selected);
    const at = (x: number) => made.posToVal(x, 'x');
    const { left, width: long } = made.select;
    const from = Math.max(1, Math.ceil(at(left)));
    latest.current.onSelect({ from, to: Math.max(from, Math.floor(at(left + long))) });
  };

  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current!);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => {
    const isHeld = plot.current && plot.current.width === width && isInUse(box.current!);
    if (isHeld) isPending.current = true;
    else make();
  }, [of.data, of.options, of.height, width, scheme.value]);
  useEffect(() => {
    if (plot.current) mark(plot.current, of.selected);
  }, [of.selected?.from, of.selected?.to]);

  const release = () => isPending.current && make();
  const pressed = (event: KeyboardEvent) => {
    const made = plot.current;
    if (!made) return;
    const steps = made.data[0];
    const now = made.cursor.idx ?? steps.length - 1;
    const next = moved(event.key, now, steps.length);
    if (next === null) {
      if (event.key === 'Escape') latest.current.onSelect(null);
      return;
    }
    event.preventDefault();
    made.setCursor({ left: made.valToPos(steps[next], 'x'), top: made.rect.height / 2 });
    if (event.shiftKey)
      latest.current.onSelect(extended(latest.current.selected, steps[now], steps[next]));
  };
  const last = of.data[0].length - 1;
  const words = readout || of.words(last);
  return (
    <>
      <div
        ref={box}
        class="chart plot"
        style={{ minHeight: `${of.height}px` }}
        tabIndex={0}
        role="slider"
        aria-label={of.label}
        aria-valuemin={of.data[0][0]}
        aria-valuemax={of.data[0][last]}
        aria-valuenow={of.data[0][plot.current?.cursor.idx ?? last]}
        aria-valuetext={words}
        onKeyDown={pressed}
        onDblClick={() => latest.current.onSelect(null)}
        onPointerLeave={release}
        onBlur={release}
      />
      <p class="readout soft">{words}</p>
    </>
  );
}

const isKnownIndex = (index: number | null | undefined): index is number =>
  index !== null && index !== undefined;

const isInUse = (box: HTMLElement) => box.matches(':hover') || box.matches(':focus-visible');

/** Shows which steps are chosen. */
function mark(plot: uPlot, steps: Span | null) {
  const [left, right] = steps
    ? [plot.valToPos(steps.from, 'x'), plot.valToPos(steps.to, 'x')]
    : [0, 0];
  const height = plot.over.clientHeight;
  plot.setSelect({ left, top: 0, width: steps ? Math.max(2, right - left) : 0, height }, false);
}

/** The index that a key leads to; null where the key leads nowhere. */
export function moved(key: string, index: number, count: number): number | null {
  const far = Math.max(1, Math.round(count / 20));
  const steps: Record<string, number> = {
    ArrowLeft: index - 1,
    ArrowRight: index + 1,
    PageDown: index - far,
    PageUp: index + far,
    Home: 0,
    End: count - 1,
  };
  const next = steps[key];
  return next === undefined ? null : Math.min(Math.max(next, 0), count - 1);
}

/** The chosen range, whose end at the cursor moves along. */
export function extended(steps: Span | null, at: number, next: number): Span {
  const anchor = !steps ? at : steps.to === at ? steps.from : steps.from === at ? steps.to : at;
  return { from: Math.min(anchor, next), to: Math.max(anchor, next) };
}

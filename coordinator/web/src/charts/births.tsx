// In which steps the culprit's live blocks were allocated: a bar for each span of steps. The steps
// that are looked at are marked, and said in bytes. Dragging, or Shift with the arrow keys, chooses
// the steps of bars.

import { useRef, useState } from 'preact/hooks';

import { look, rangeAs, stepsIn, type Span } from '../address';
import { report } from '../api';
import type { Incident } from '../types';
import { bytes, byteTicks, plural, stepTicks, whole } from '../units';
import { extended, moved } from './plot';
import { Chart, scale, XAxis, YAxis, type Scale } from './svg';

type Bucket = Incident['age_buckets'][number];

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [150, 62, 12, 10, 38];
/** Pointer movements shorter than this many pixels are clicks. */
const DRAG_MIN = 2;

// What the shape of the ages says of the blocks.
const PROFILES: Record<string, string> = {
  once: 'all were allocated in one step',
  few: 'too few steps to conclude anything',
  passing: 'only those of the newest steps are alive: older ones are freed',
  backlog:
    'only those of the newest steps are alive, and their bytes grow: ' +
    'fewer are freed than allocated',
  replaced: 'only those of the newest steps are alive: each took the place of a smaller one',
  ended: 'those of many steps are alive, but none of the latest: the growth has ended',
  filling: 'those of many steps are alive, most bytes from early ones: the growth slows down',
  steady: 'those of all steps since the growth began are alive: nothing is freed',
};

export function BirthsChart({ incident, unit }: { incident: Incident; unit: string }) {
  const { age_buckets: buckets, age_profile: profile } = incident;
  const [cursor, moveTo] = useState(buckets.length - 1);
  if (buckets.length === 0) return null;
  // A new answer may have fewer bars.
  const now = Math.min(cursor, buckets.length - 1);
  const steps = stepsIn();
  const bars = { buckets, unit, steps, now, moveTo };
  const shape = (PROFILES[profile] ?? 'no pattern').replaceAll('step', unit);
  return (
    <figure>
      <Chart height={HEIGHT} draw={width => <Bars {...bars} width={width} />} />
      <p class="readout soft">{words(buckets[now], unit)}</p>
      <figcaption>
        <span>{`bytes of live blocks, by the ${unit} that allocated them; ${shape}`}</span>
        {steps ? <LookedAt buckets={buckets} steps={steps} unit={unit} /> : null}
        {report ? null : <span>{`drag over ${unit}s to see what they allocated and kept`}</span>}
      </figcaption>
    </figure>
  );
}

interface BarsOf {
  buckets: Bucket[];
  width: number;
  unit: string;
  steps: Span | null;
  /** Index of the bar at the cursor. */
  now: number;
  moveTo: (bar: number) => void;
}

function Bars(of: BarsOf) {
  const { buckets, width, unit, steps, now } = of;
  const [right, bottom] = [width - RIGHT, HEIGHT - BOTTOM];
  const [first, last] = [buckets[0].first_step, buckets.at(-1)!.last_step + 1];
  const most = buckets.reduce((high, bucket) => Math.max(high, bucket.bytes), 1);
  const x = scale(first, last, LEFT, right);
  const y = scale(0, most, bottom, TOP);
  const listeners = useChoice(of, x);
  const said = buckets.map(bucket => words(bucket, unit)).join('; ');
  return (
    <svg
      class="births"
      width={width}
      height={HEIGHT}
      viewBox={`0 0 ${width} ${HEIGHT}`}
      // Attributes of SVG are as they are written.
      tabindex={0}
      role="slider"
      aria-label={`Bytes alive by the ${unit} that allocated them. ${said}`}
      aria-valuemin={first}
      aria-valuemax={last - 1}
      aria-valuenow={buckets[now].first_step}
      aria-valuetext={words(buckets[now], unit)}
      {...listeners}
    >
      <YAxis ticks={byteTicks(most, 3)} y={y} left={LEFT} right={right} words={bytes} />
      <XAxis
        ticks={stepTicks(first, last - 1, width / 70)}
        x={x}
        bottom={bottom}
        right={right}
        words={whole}
        unit={unit}
      />
      {buckets.map((bucket, at) => (
        <rect
          class={classOf(at === now, steps !== null && isWithin(bucket, steps))}
          x={x(bucket.first_step) + 0.5}
          y={y(bucket.bytes)}
          width={Math.max(1, x(bucket.last_step + 1) - x(bucket.first_step) - 1)}
          height={Math.max(0, bottom - y(bucket.bytes))}
        >
          <title>{words(bucket, unit)}</title>
        </rect>
      ))}
    </svg>
  );
}

const classOf = (isNow: boolean, isLookedAt: boolean): string =>
  `birth${isNow ? ' now' : ''}${isLookedAt ? ' looked-at' : ''}`;

/** The event listeners that move the cursor and choose steps. */
function useChoice({ buckets, steps, now, moveTo }: BarsOf, x: Scale) {
  const pressed = useRef<number | null>(null);
  const choose = ({ from, to }: Span) =>
    look({ steps: rangeAs({ from: buckets[from].first_step, to: buckets[to].last_step }) });
  /** The nearest bar. */
  const barAt = (left: number) => {
    const away = buckets.map(of => Math.max(x(of.first_step) - left, left - x(of.last_step + 1)));
    return away.indexOf(Math.min(...away));
  };
  const leftOf = (event: PointerEvent) =>
    event.clientX - (event.currentTarget as Element).getBoundingClientRect().left;
  const down = (event: PointerEvent) => {
    pressed.current = leftOf(event);
    (event.currentTarget as Element).setPointerCapture(event.pointerId);
  };
  const up = (event: PointerEvent) => {
    const [from, to] = [pressed.current, leftOf(event)];
    pressed.current = null;
    if (from === null || Math.abs(to - from) < DRAG_MIN) return;
    choose({ from: barAt(Math.min(from, to)), to: barAt(Math.max(from, to)) });
  };
  const press = (event: KeyboardEvent) => {
    const next = moved(event.key, now, buckets.length);
    if (next === null) {
      if (event.key === 'Escape') look({ steps: null });
      return;
    }
    event.preventDefault();
    moveTo(next);
    if (event.shiftKey) choose(extended(chosenBars(buckets, steps), now, next));
  };
  return {
    onPointerDown: down,
    onPointerUp: up,
    onDblClick: () => look({ steps: null }),
    onKeyDown: press,
  };
}

/** Indices of the first and last bar in the chosen steps; null where there are none. */
function chosenBars(buckets: Bucket[], steps: Span | null): Span | null {
  if (!steps) return null;
  const from = buckets.findIndex(bucket => isWithin(bucket, steps));
  const to = buckets.findLastIndex(bucket => isWithin(bucket, steps));
  return from < 0 ? null : { from, to };
}

/** What the steps that are looked at left alive. Spans are whole: a part of one is not known. */
function LookedAt({ buckets, steps, unit }: Pick<BarsOf, 'buckets' | 'unit'> & { steps: Span }) {
  const found = buckets.filter(bucket => isWithin(bucket, steps));
  const sum = (value: (bucket: Bucket) => number) =>
    found.reduce((total, bucket) => total + value(bucket), 0);
  const text = found.length
    ? words(
        {
          first_step: found[0].first_step,
          last_step: found.at(-1)!.last_step,
          bytes: sum(bucket => bucket.bytes),
          blocks: sum(bucket => bucket.blocks),
        },
        unit,
      )
    : `nothing of ${unit}s ${whole(steps.from)} to ${whole(steps.to)} is alive`;
  return (
    <span>
      looked at: <b>{text}</b>
    </span>
  );
}

const isWithin = ({ first_step: first, last_step: last }: Bucket, { from, to }: Span): boolean =>
  last >= from && first <= to;

function words({ first_step: from, last_step: to, bytes: size, blocks }: Bucket, unit: string) {
  const when = from === to ? `${unit} ${whole(from)}` : `${unit}s ${whole(from)} to ${whole(to)}`;
  return `${when}: ${bytes(size)} in ${plural(blocks, 'block')}`;
}

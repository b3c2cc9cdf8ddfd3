// In which steps the culprit's live blocks were allocated: a bar for each span of steps. The steps
// that are looked at are marked, and said in bytes.

import { stepsIn, type Span } from '../address';
import type { Incident } from '../types';
import { bytes, byteTicks, plural, stepTicks, whole } from '../units';
import { Chart, scale, XAxis, YAxis } from './svg';

type Bucket = Incident['age_buckets'][number];

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [150, 62, 12, 10, 38];

// What the shape of the ages says of the blocks.
const PROFILES: Record<string, string> = {
  once: 'all were allocated in one step',
  few: 'too few steps to conclude anything',
  passing: 'only those of the newest steps are alive: older ones are freed',
  backlog: 'only those of the newest steps are alive, and their bytes grow: fewer are freed than allocated',
  replaced: 'only those of the newest steps are alive: each took the place of a smaller one',
  ended: 'those of many steps are alive, but none of the latest: the growth has ended',
  filling: 'those of many steps are alive, most bytes from early ones: the growth slows down',
  steady: 'those of all steps since the growth began are alive: nothing is freed',
};

export function BirthsChart({ incident, unit }: { incident: Incident; unit: string }) {
  const { age_buckets: buckets, age_profile: profile } = incident;
  if (buckets.length === 0) return null;
  const steps = stepsIn();
  const shape = (PROFILES[profile] ?? 'no pattern').replaceAll('step', unit);
  return (
    <figure>
      <Chart
        height={HEIGHT}
        draw={width => <Bars buckets={buckets} width={width} unit={unit} steps={steps} />}
      />
      <figcaption>
        <span>{`bytes of live blocks, by the ${unit} that allocated them; ${shape}`}</span>
        {steps ? <LookedAt buckets={buckets} steps={steps} unit={unit} /> : null}
      </figcaption>
    </figure>
  );
}

interface BarsOf {
  buckets: Bucket[];
  width: number;
  unit: string;
  steps: Span | null;
}

function Bars({ buckets, width, unit, steps }: BarsOf) {
  const [right, bottom] = [width - RIGHT, HEIGHT - BOTTOM];
  const [first, last] = [buckets[0].first_step, buckets.at(-1)!.last_step + 1];
  const most = buckets.reduce((high, bucket) => Math.max(high, bucket.bytes), 1);
  const x = scale(first, last, LEFT, right);
  const y = scale(0, most, bottom, TOP);
  const said = buckets.map(bucket => words(bucket, unit)).join('; ');
  return (
    <svg
      width={width}
      height={HEIGHT}
      viewBox={`0 0 ${width} ${HEIGHT}`}
      role="img"
      aria-label={`Bytes alive by the ${unit} that allocated them. ${said}`}
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
      {buckets.map(bucket => (
        <rect
          class={steps && isWithin(bucket, steps) ? 'birth looked-at' : 'birth'}
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

/** What the steps that are looked at left alive. Spans are whole: a part of one is not known. */
function LookedAt({ buckets, steps, unit }: Omit<BarsOf, 'width'> & { steps: Span }) {
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

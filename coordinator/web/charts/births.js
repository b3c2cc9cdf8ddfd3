// In which steps the culprit's live blocks were allocated: a bar for each span of steps.

import { make, svg } from '../elements.js';
import { bytes, byteTicks, plural, stepTicks, whole } from '../units.js';
import { frame, scale, xAxis, yAxis } from './frame.js';

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [150, 62, 12, 10, 38];

// What the shape of the ages says.
const PROFILES = {
  once: 'all were allocated in one step',
  few: 'too few steps to conclude anything',
  passing: 'only of the newest steps: older ones are freed',
  backlog: 'of the newest steps, more of them all the time: fewer are freed than allocated',
  replaced: 'only of the newest steps: each took the place of a smaller one',
  ended: 'of many steps, but of no late ones: it has ended',
  filling: 'of many steps, most bytes early: it comes to its end',
  steady: 'of every step from the beginning on: nothing is freed',
};

export function birthsChart({ age_buckets: buckets, age_profile: profile }, unit) {
  if (buckets.length === 0)
    return make('p', { class: 'soft' }, 'not known: no capture explains it yet');
  return make(
    'figure',
    {},
    frame(HEIGHT, width => drawn(buckets, width, unit)),
    make(
      'figcaption',
      {},
      make(
        'span',
        {},
        `bytes alive, by the ${unit} that allocated them: ` +
          `${(PROFILES[profile] ?? 'no pattern').replaceAll('step', unit)}`,
      ),
    ),
  );
}

function drawn(buckets, width, unit) {
  const [right, bottom] = [width - RIGHT, HEIGHT - BOTTOM];
  const [first, last] = [buckets[0].first_step, buckets.at(-1).last_step + 1];
  const most = buckets.reduce((high, bucket) => Math.max(high, bucket.bytes), 1);
  const x = scale(first, last, LEFT, right);
  const y = scale(0, most, bottom, TOP);
  const label =
    `Bytes alive by the ${unit} that allocated them. ` + buckets.map(words(unit)).join('; ');
  return svg(
    'svg',
    { width, height: HEIGHT, role: 'img', 'aria-label': label },
    yAxis(byteTicks(most, 3), y, LEFT, right, value => bytes(value)),
    xAxis(stepTicks(first, last - 1, width / 70), x, bottom, right, whole, unit),
    buckets.map(bucket =>
      svg(
        'rect',
        {
          class: 'birth',
          x: x(bucket.first_step) + 0.5,
          y: y(bucket.bytes),
          width: Math.max(1, x(bucket.last_step + 1) - x(bucket.first_step) - 1),
          height: Math.max(0, bottom - y(bucket.bytes)),
        },
        svg('title', {}, words(unit)(bucket)),
      ),
    ),
  );
}

const words =
  unit =>
  ({ first_step: from, last_step: to, bytes: size, blocks }) =>
    `${from === to ? `${unit} ${whole(from)}` : `${unit}s ${whole(from)} to ${whole(to)}`}: ` +
    `${bytes(size)} in ${plural(blocks, 'block')}`;

// Memory of one rank over steps: its levels, its peers, the size of the device, the forecast as a
// fan from P10 to P90, and what happened at which step.
//
// The forecast is drawn up to one and a half times as many steps ahead as there are behind; further
// ends are words. A device that is more than eight times as large as all levels would flatten them:
// its size is words, too.

import { make, svg } from '../elements.js';
import { bytes, byteTicks, isKnown, median, stepTicks, whole } from '../units.js';
import { trigger } from '../words.js';
import { frame, key, scale, text, xAxis, yAxis } from './frame.js';

const HEIGHT = 290;
const [LEFT, RIGHT, TOP, BOTTOM] = [62, 12, 60, 38];
const CAPACITY_FACTOR_MAX = 8;
const AHEAD_MAX = 1.5;

// Lines differ by dash as well as by colour.
const LINES = [
  ['reserved_bytes', 'line reserved', 'reserved'],
  ['peak_bytes', 'line peak', 'peak'],
  ['step_min_bytes', 'line step-min', 'minimum'],
];

/**
 * The figure. `peers` are series of other ranks, `end` is the step after which the process ended,
 * `captures` are those of the attempt.
 */
export function memoryChart(of) {
  const { rank, data, peers = [], unit } = of;
  if (!data?.steps?.length) return make('p', { class: 'soft' }, `no finished ${unit}s yet`);
  const readout = make(
    'p',
    { class: 'readout soft' },
    'point at the chart, or use ← and → on it, for exact numbers',
  );
  const others = peers.filter(peer => peer?.steps?.length);
  const seen = extent(of, others);
  return make(
    'figure',
    {},
    frame(HEIGHT, width => drawn(of, others, seen, width, readout)),
    readout,
    make(
      'figcaption',
      {},
      LINES.map(([, kind, name]) => key(kind, name === 'minimum' ? `minimum of a ${unit}` : name)),
      others.length
        ? key(
            'line peer',
            `minimum of ${others.length === 1 ? 'a peer' : `${others.length} peers`}`,
          )
        : null,
      seen.fan ? key('fan', 'forecast, P10 to P90') : null,
      seen.isHigh
        ? make('span', {}, `the device, ${bytes(of.capacity)}, is above the chart`)
        : null,
      isKnown(of.capacity) ? null : make('span', {}, 'the size of the device is not known'),
      make('span', {}, `rank ${rank}`),
    ),
  );
}

/** What is seen: the ranges of both axes, and the forecast where there is one. */
function extent({ data, capacity, incident, end }, others) {
  const [first, last] = [data.steps[0], data.steps.at(-1)];
  const levels = [data, ...others].flatMap(series =>
    LINES.flatMap(([name]) => (series === data || name === 'step_min_bytes' ? series[name] : [])),
  );
  const most = levels.reduce((high, value) => Math.max(high, value), 1);
  const isShown = isKnown(capacity) && most * CAPACITY_FACTOR_MAX >= capacity;
  const fan = forecastOf(incident, end, last);
  const ahead = fan ? Math.min(fan.p90, AHEAD_MAX * (last - first)) : 0;
  return {
    first,
    last: Math.max(last, last + ahead),
    top: Math.max(most, isShown ? capacity : 0) * 1.06,
    isShown,
    isHigh: isKnown(capacity) && !isShown,
    fan,
  };
}

/** The forecast, which counts from the newest step. */
function forecastOf(incident, end, newest) {
  const isOver = !incident || incident.state !== 'open' || isKnown(end);
  if (isOver || !isKnown(incident.steps_to_oom)) return null;
  const p50 = incident.steps_to_oom;
  return {
    from: newest,
    p50,
    p10: incident.steps_to_oom_p10 ?? p50,
    p90: incident.steps_to_oom_p90 ?? p50,
  };
}

function drawn(of, others, seen, width, readout) {
  const { rank, data, capacity, unit } = of;
  const [right, bottom] = [width - RIGHT, HEIGHT - BOTTOM];
  const x = scale(seen.first, seen.last, LEFT, right);
  const y = scale(0, seen.top, bottom, TOP);
  const path = (series, name) =>
    svg('polyline', {
      points: series.steps
        .map((step, i) => `${x(step).toFixed(1)},${y(series[name]?.[i] ?? 0).toFixed(1)}`)
        .join(' '),
    });
  const line = (series, [name, kind]) => svg('g', { class: kind }, path(series, name));
  const clip = `plot-${rank}-${width}`;
  const cursor = svg('line', { class: 'cursor', y1: TOP, y2: bottom, visibility: 'hidden' });
  const chart = svg(
    'svg',
    {
      width,
      height: HEIGHT,
      tabindex: 0,
      role: 'slider',
      'aria-label': summary(of),
      'aria-valuemin': data.steps[0],
      'aria-valuemax': data.steps.at(-1),
      'aria-valuenow': data.steps.at(-1),
      'aria-valuetext': words(of, others, data.steps.length - 1),
    },
    svg(
      'clipPath',
      { id: clip },
      svg('rect', { x: LEFT, y: TOP, width: right - LEFT, height: bottom - TOP }),
    ),
    yAxis(byteTicks(seen.top, 5), y, LEFT, right, value => bytes(value)),
    xAxis(stepTicks(seen.first, seen.last, width / 70), x, bottom, right, whole, unit),
    seen.isShown ? capacityLine(capacity, y, right) : null,
    svg(
      'g',
      { 'clip-path': `url(#${clip})` },
      seen.fan ? fanOf(of, seen, x, y) : null,
      others.map(peer => line(peer, ['step_min_bytes', 'line peer'])),
      LINES.map(kind => line(data, kind)),
    ),
    marks(of, seen, x, bottom),
    cursor,
  );
  return withCursor(chart, cursor, data.steps.map(x), index => {
    readout.textContent = words(of, others, index);
    chart.setAttribute('aria-valuenow', data.steps[index]);
    chart.setAttribute('aria-valuetext', readout.textContent);
  });
}

const capacityLine = (capacity, y, right) => [
  svg('line', { class: 'capacity', x1: LEFT, x2: right, y1: y(capacity), y2: y(capacity) }),
  text(right - 8, y(capacity) - 5, `the device: ${bytes(capacity)}`, {
    class: 'capacity-name',
    'text-anchor': 'end',
  }),
];

/** From the newest peak to the size of the device; a band where the size is not known. */
function fanOf({ data, capacity }, { fan, top }, x, y) {
  const at = steps => x(fan.from + steps);
  const full = isKnown(capacity) ? capacity : top;
  const start = `${x(data.steps.at(-1))},${y(data.peak_bytes?.at(-1) ?? data.step_min_bytes.at(-1))}`;
  const end = steps => `${at(steps)},${y(full)}`;
  return [
    svg('polygon', { class: 'fan', points: `${start} ${end(fan.p10)} ${end(fan.p90)}` }),
    svg('polyline', { class: 'fan-middle', points: `${start} ${end(fan.p50)}` }),
  ];
}

/** Onset and detection each with a line of its own kind and a name on a row of its own. */
function marks({ incident, captures = [], end, unit }, { first, last }, x, bottom) {
  const named = [
    ['onset', '◇ began', incident?.onset_step, 14],
    ['detected', '◆ detected', incident?.detected_step, 29],
    ['ended', '✕ ended', end, 44],
  ];
  const isSeen = step => isKnown(step) && step >= first && step <= last;
  const lines = named
    .filter(([, , step]) => isSeen(step))
    .map(([kind, name, step, row]) => {
      const isLate = x(step) > (x(first) + x(last)) / 2;
      return [
        svg('line', { class: `mark ${kind}`, x1: x(step), x2: x(step), y1: row - 8, y2: bottom }),
        text(x(step) + (isLate ? -5 : 5), row, `${name}: ${unit} ${whole(step)}`, {
          class: `mark-name ${kind}`,
          'text-anchor': isLate ? 'end' : 'start',
        }),
      ];
    });
  const dots = captures
    .filter(of => isSeen(of.step))
    .map(of =>
      svg(
        'a',
        { href: `#/capture/${encodeURIComponent(of.id)}`, tabindex: -1, 'aria-hidden': 'true' },
        svg('circle', { class: 'capture-dot', cx: x(of.step), cy: bottom, r: 5 }),
        svg('title', {}, `capture at ${unit} ${whole(of.step)}: ${trigger(of)}`),
      ),
    );
  return [...lines, ...dots];
}

function words({ rank, data, unit }, others, index) {
  const step = data.steps[index];
  const said = [
    `rank ${rank}, ${unit} ${whole(step)}: minimum ${bytes(data.step_min_bytes[index])}`,
  ];
  if (data.peak_bytes?.length) said.push(`peak ${bytes(data.peak_bytes[index])}`);
  if (data.reserved_bytes?.length) said.push(`reserved ${bytes(data.reserved_bytes[index])}`);
  const levels = others.map(peer => levelAt(peer, step)).filter(isKnown);
  if (levels.length) said.push(`median minimum of the peers ${bytes(median(levels))}`);
  return said.join(', ');
}

/** The minimum at a step: that of the next point, which stands for the steps before it. */
function levelAt({ steps, step_min_bytes: levels }, step) {
  const index = steps.findIndex(of => of >= step);
  return index < 0 ? null : levels[index];
}

function summary({ rank, data, unit }) {
  const levels = data.step_min_bytes;
  return (
    `Memory of rank ${rank} over ${unit}s: its minimum goes from ${bytes(levels[0])} at ${unit} ` +
    `${whole(data.steps[0])} to ${bytes(levels.at(-1))} at ${unit} ${whole(data.steps.at(-1))}`
  );
}

/** Calls `pick(index)` for the point under the pointer, or the next by the arrow keys. */
function withCursor(chart, cursor, points, pick) {
  let index = points.length - 1;
  const show = next => {
    index = Math.min(Math.max(next, 0), points.length - 1);
    cursor.setAttribute('x1', points[index]);
    cursor.setAttribute('x2', points[index]);
    cursor.setAttribute('visibility', 'visible');
    pick(index);
  };
  chart.addEventListener('pointermove', event => {
    const at = event.clientX - chart.getBoundingClientRect().left;
    const after = points.findIndex(point => point >= at);
    const near = after > 0 && at - points[after - 1] < points[after] - at ? after - 1 : after;
    show(after < 0 ? points.length - 1 : near);
  });
  chart.addEventListener('keydown', event => {
    const far = Math.max(1, Math.round(points.length / 20));
    const next = {
      ArrowLeft: index - 1,
      ArrowRight: index + 1,
      PageDown: index - far,
      PageUp: index + far,
      Home: 0,
      End: points.length - 1,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(next);
  });
  return chart;
}

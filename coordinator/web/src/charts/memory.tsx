// Memory of one rank over steps: its levels, the band of its peers, the limit, the forecast as a
// fan from P10 to P90, and what happened at which step.
//
// The levels are those of the device, or those of the one account that the series has. The forecast
// rises from the level that it is about, and the axis goes on to its end, unless that is so far
// that the levels would have no room: then it is words. A limit that is more than eight times as
// high as all levels would flatten them: it is words, too, and the chart is as high as the forecast
// at its end.

import { useMemo } from 'preact/hooks';
import type uPlot from 'uplot';

import { look, rangeAs, stepsIn, type Span } from '../address';
import { report } from '../api';
import { Soft } from '../parts/basics';
import { colour, scheme } from '../theme';
import type { Series, Capture, Incident } from '../types';
import { atSteps, bytes, byteTicks, isKnown, plural, stepTicks, ticks, whole } from '../units';
import {
  fanOf,
  levelAhead,
  levelsOf,
  peersAt,
  stepsAhead,
  type Fan,
  type Level,
  type Levels,
  type PeerBand,
} from './levels';
import { drawFan, drawMarks, placed, roomFor, type Mark } from './marks';
import { Plot } from './plot';
import { Key } from './svg';

const HEIGHT = 290;
const LIMIT_FACTOR_MAX = 8;
/** Room above the highest level. */
const HEADROOM = 1.06;

export interface MemoryOf {
  rank: number;
  data: Series | null;
  /** The account that peers and the baseline are compared by. */
  account: string;
  /** The steps that were asked for; without them all were. */
  steps?: Span | null;
  /** Series of ranks of the same role. */
  peers?: (Series | null)[];
  /** The same rank in the run that is the baseline. */
  baseline?: Series | null;
  unit: string;
  incident?: Incident | null;
  captures?: Capture[];
  /** What the levels cannot exceed, and its name. */
  limit: { bytes: number | null; name: string };
  /** The step after which the process ended. */
  end?: number | null;
  /** The word for that end. */
  ended?: string;
}

export function MemoryChart(of: MemoryOf) {
  const { data, unit, limit } = of;
  const colours = scheme.value;
  const shown = useMemo(() => (data?.steps.length ? drawn(of, data) : null), [
    data,
    of.account,
    of.steps?.from,
    of.steps?.to,
    of.peers,
    of.baseline,
    of.incident,
    of.captures,
    limit.bytes,
    of.end,
    of.ended,
    colours,
  ]);
  if (!shown) return <Soft>{data?.account?.unknown ?? `no finished ${unit}s yet`}</Soft>;
  const { levels, columns, peers, options, fan, isHigh, marks, beside } = shown;
  const count = of.peers?.filter(peer => peer?.steps.length).length ?? 0;
  const compared = levels.compared.name;
  return (
    <figure>
      <Plot
        data={columns}
        options={options}
        height={HEIGHT}
        label={summary(of, levels)}
        words={index => words(of, levels, peers, index)}
        selected={stepsIn()}
        onSelect={steps => look({ steps: rangeAs(steps) })}
      />
      <figcaption>
        {levels.levels.map(({ kind, name }) => (
          <Key kind={kind}>{name === 'minimum' ? `minimum of a ${unit}` : name}</Key>
        ))}
        {count ? <Key kind="peers">{`${plural(count, 'peer')}: ${compared}`}</Key> : null}
        {of.baseline?.steps.length ? (
          <Key kind="line baseline">{`baseline: ${compared}`}</Key>
        ) : null}
        {fan ? <Key kind="fan">forecast, P10 to P90</Key> : null}
        {marks.some(mark => mark.kind === 'capture') ? <Key kind="capture-dot">capture</Key> : null}
        {beside.map(words => (
          <span>{words}</span>
        ))}
        {isHigh ? <span>{`${limit.name}, ${bytes(limit.bytes)}, is above the chart`}</span> : null}
        {isKnown(limit.bytes) || !isBytes(data!) ? null : (
          <span>{`${limit.name} is not known`}</span>
        )}
        {report ? null : <span>{`drag over ${unit}s to see what they allocated and kept`}</span>}
      </figcaption>
    </figure>
  );
}

const isBytes = ({ account }: Series) => !account || account.unit === 'bytes';

interface Drawn {
  levels: Levels;
  columns: uPlot.AlignedData;
  peers: PeerBand;
  options: Omit<uPlot.Options, 'width' | 'height'>;
  fan: Fan | null;
  isHigh: boolean;
  marks: Mark[];
  /** What happened before or after the steps of the chart. */
  beside: string[];
}

/** What is drawn, and the ranges of both axes. */
function drawn(of: MemoryOf, data: Series): Drawn {
  const levels = levelsOf(data, of.account, of.steps?.from);
  const { steps } = levels;
  const peers = peersAt(steps, of.peers ?? [], of.account);
  const baseline = peersAt(steps, [of.baseline ?? null], of.account).median;
  const [first, last] = [steps[0], steps.at(-1)!];
  const highest = (values: (number | null)[]) =>
    values.reduce<number>((high, value) => Math.max(high, value ?? 0), 1);
  const most = Math.max(
    highest(peers.high),
    highest(baseline),
    ...levels.levels.map(level => highest(level.values)),
  );
  const limit = isBytes(data) ? of.limit.bytes : null;
  const isNear = isKnown(limit) && most * LIMIT_FACTOR_MAX >= limit;
  const fan = forecast(of, data, isKnown(limit) ? limit : most * HEADROOM);
  const ahead = fan ? stepsAhead(fan, last - first) : 0;
  const range: [number, number] = [first, Math.max(last + ahead, first + 1)];
  const highestAhead = fan ? levelAhead(fan, ahead) : 0;
  const top = Math.max(most, isNear ? limit : highestAhead) * HEADROOM;
  // A forecast may reach a limit that is far above all that was measured.
  const isShown = isKnown(limit) && limit <= top;
  const [marks, beside] = placed(marksOf(of, fan), range);
  return {
    levels,
    columns: [
      steps,
      peers.low,
      peers.high,
      peers.median,
      baseline,
      ...levels.levels.map(level => level.values),
    ],
    peers,
    options: options(of, data, levels, range, top, isShown ? limit : null, fan, marks),
    fan,
    isHigh: isKnown(limit) && !isShown,
    marks,
    beside,
  };
}

/** The forecast of the incident; none of a rank that has ended, and none beside earlier steps. */
function forecast({ incident, end, steps }: MemoryOf, data: Series, full: number): Fan | null {
  if (!incident || isKnown(end) || (steps && steps.to < incident.last_step)) return null;
  return fanOf(data, incident, full);
}

function options(
  of: MemoryOf,
  data: Series,
  { levels, words }: Levels,
  range: [number, number],
  top: number,
  limit: number | null,
  fan: Fan | null,
  marks: Mark[],
): Drawn['options'] {
  const axis = { stroke: colour('--soft'), font: '12px system-ui, sans-serif' };
  return {
    legend: { show: false },
    // At the right, half of a step's number.
    padding: [roomFor(marks), 24, 0, 0],
    cursor: { drag: { x: true, y: false, setScale: false }, y: false },
    scales: { x: { time: false, range: () => range }, y: { range: () => [0, top] } },
    axes: [
      {
        ...axis,
        grid: { show: false },
        ticks: { stroke: colour('--line') },
        splits: (plot, _, low, high) => stepTicks(low, high, plot.width / 80),
        values: (_, steps) => steps.map(step => whole(step)),
        size: 34,
        label: of.unit,
        labelSize: 14,
        labelGap: 0,
        labelFont: axis.font,
      },
      {
        ...axis,
        size: 66,
        grid: { stroke: colour('--line'), width: 1 },
        ticks: { show: false },
        splits: () => (isBytes(data) ? byteTicks(top, 5) : ticks(0, top, 5)),
        values: (_, values) => values.map(value => words(value)),
      },
    ],
    series: [
      {},
      ...[0, 0, 1.6].map(width => line({ colour: '--peer', dash: [], width })),
      line({ colour: '--link', dash: [6, 3], width: 1.6 }),
      ...levels.map(line),
    ],
    bands: [{ series: [2, 1], fill: faint('--peer', 0.35) }],
    hooks: {
      drawAxes: [plot => fan && drawFan(plot, fan, colour('--bad'))],
      draw: [
        plot =>
          drawMarks(plot, marks, limit === null ? null : { value: limit, name: of.limit.name }),
      ],
    },
  };
}

const line = (of: Pick<Level, 'colour' | 'dash' | 'width'>): uPlot.Series => ({
  stroke: colour(of.colour),
  width: of.width,
  dash: of.dash,
  spanGaps: true,
  points: { show: false },
});

/** A colour of the style sheet, seen through. */
const faint = (name: string, alpha: number) =>
  colour(name).replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);

/** What happened at a step: lines with words, and captures as dots. */
function marksOf(of: MemoryOf, fan: Fan | null): Mark[] {
  const { incident, captures = [], end, unit } = of;
  const named = (kind: Mark['kind'], words: string, step: number | null | undefined): Mark[] =>
    isKnown(step) ? [{ kind, step, words: `${words} ${unit} ${whole(step)}` }] : [];
  return [
    ...named('onset', 'began at', incident?.onset_step),
    ...named('detected', 'detected at', incident?.detected_step),
    ...(fan ? [{ kind: 'full' as const, step: fan.from + fan.p50, words: fullAfter(of) }] : []),
    ...named('ended', `${of.ended} after`, end),
    ...captures.flatMap(of =>
      of.step ? [{ kind: 'capture' as const, step: of.step, words: '' }] : [],
    ),
  ];
}

/** The median of the forecast, as in the sentence of the incident. */
function fullAfter({ incident, unit }: MemoryOf): string {
  const steps = Number(incident?.steps_to_oom?.toPrecision(2));
  if (steps === 0) return 'memory is full';
  return `full about ${plural(steps, unit)} after ${unit} ${whole(incident?.last_step)}`;
}

/** The level that is compared comes first, beside that of the peers. */
function words({ rank, unit }: MemoryOf, of: Levels, peers: PeerBand, index: number): string {
  const { steps, levels, compared, words: text } = of;
  const value = ({ name, values }: Level) => `${name} ${text(values[index])}`;
  const others = levels.toReversed().filter(level => level !== compared).map(value);
  // The newest steps of the peers can be known later than those of the rank.
  const at = peers.median.findLastIndex((median, other) => other <= index && isKnown(median));
  const where = at === index ? '' : ` ${atSteps(unit, [steps[at]])}`;
  const beside = at < 0 ? '' : ` (median of the peers ${text(peers.median[at])}${where})`;
  const values = [value(compared) + beside, ...others].join(', ');
  return `rank ${rank} ${atSteps(unit, [steps[index]])}: ${values}`;
}

function summary({ rank, unit }: MemoryOf, { steps, compared, words: text }: Levels): string {
  const { name, values } = compared;
  return (
    `Memory of rank ${rank} over ${unit}s: ${name} goes from ${text(values[0])} at ${unit} ` +
    `${whole(steps[0])} to ${text(values.at(-1))} at ${unit} ${whole(steps.at(-1))}`
  );
}

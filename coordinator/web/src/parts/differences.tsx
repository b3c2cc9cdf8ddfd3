// What sets ranks apart: the ranks of a rectangle from all others, or a run from the baseline. The
// coordinator ranks the differences by how much they explain; this file only shows them.

import type { Span } from '../address';
import { useAnswer } from '../answers';
import { ACCOUNTS, valueIn } from '../account';
import { paths, report, type DifferencesOf } from '../api';
import { isBaseline, textOf, type Baseline } from '../baseline';
import { memtape } from '../terminal';
import type { Difference, Differences, Group } from '../types';
import { atSteps, bytes, isKnown, percent, plural, rangeWords, whole } from '../units';
import { spaced } from '../words';
import { Command, Section, Soft, Stack } from './basics';
import { Table } from './table';

const EVERY_MS = 10_000;

interface DiffersOf {
  job: string;
  attempt: number;
  ranks: Span;
  steps: Span | null;
  unit: string;
}

/** What sets the ranks of the rectangle apart from all others. */
export function WhatDiffers({ job, attempt, ranks, steps, unit }: DiffersOf) {
  const path = paths.differences({ job, attempt, ranks, steps });
  return (
    <Section title={`What sets ${rangeWords('rank', ranks)} apart`}>
      <Found path={path} sides={['these ranks', 'others']} unit={unit} />
    </Section>
  );
}

interface BesideOf {
  job: string;
  attempt: number;
  baseline: Baseline;
  steps: Span | null;
  unit: string;
}

/** What a run has more or less of than the baseline; nothing where it is the baseline. */
export function BesideBaseline({ job, attempt, baseline, steps, unit }: BesideOf) {
  if (report || baseline.kind !== 'run') return null;
  if (isBaseline(baseline, job, attempt)) return null;
  const of: DifferencesOf = { job, attempt, ranks: null, steps, baseline };
  const range = steps ? ['--from', steps.from, '--to', steps.to] : [];
  const runs = [textOf(baseline), textOf({ kind: 'run', job, attempt })];
  return (
    <Section title={`Beside the baseline, ${baseline.job}, attempt ${baseline.attempt}`}>
      <Found path={paths.differences(of)} sides={['this run', 'baseline']} unit={unit} />
      <Command line={memtape('diff', '--run', ...runs, ...range)} />
    </Section>
  );
}

interface FoundOf {
  path: string;
  /** Names of both groups. */
  sides: [string, string];
  unit: string;
}

function Found({ path, sides, unit }: FoundOf) {
  const { data, error } = useAnswer<Differences>(path, EVERY_MS);
  if (error) return <p class="soft">{error.message}</p>;
  if (!data) return <Soft>comparing…</Soft>;
  const groups = [data.chosen, data.baseline].map((of, i) => groupWords(sides[i], of, unit));
  return (
    <>
      <Soft>{groups.join('; ')}</Soft>
      <DifferenceTable rows={data.differences} sides={sides} />
      <Notes of={data} unit={unit} />
    </>
  );
}

function groupWords(name: string, of: Group, unit: string): string {
  const steps =
    of.first_step === null
      ? `no ${unit} is kept`
      : `${unit}s ${whole(of.first_step)} to ${whole(of.last_step)}`;
  const cut = of.is_cut ? ', older ones left out' : '';
  return `${name}: ${plural(of.ranks, 'rank')}, ${steps}${cut}`;
}

/** Lines are counted at other steps than those that are compared. */
function countedWords({ chosen, baseline }: Differences, unit: string): string {
  if (chosen.counted_ranks === 0 || baseline.counted_ranks === 0)
    return 'lines are not compared: no rank of a group was counted';
  const steps = [chosen, baseline].flatMap(of => [of.counted_first_step, of.counted_last_step]);
  return (
    `lines counted ${atSteps(unit, steps.filter(isKnown))}: ` +
    `a line may be larger than all that was allocated in the compared ${unit}s`
  );
}

function Notes({ of, unit }: { of: Differences; unit: string }) {
  const notes = [
    of.lines_left_out
      ? `not shown: ${plural(of.lines_left_out, 'line')} with smaller differences`
      : '',
    of.traits_left_out
      ? `not shown: ${plural(of.traits_left_out, 'property', 'properties')} with smaller parts`
      : '',
    countedWords(of, unit),
  ].filter(Boolean);
  return notes.length ? <Soft>{notes.join('; ')}</Soft> : null;
}

interface TableOf {
  rows: Difference[];
  sides: FoundOf['sides'];
}

function DifferenceTable({ rows, sides: [chosen, baseline] }: TableOf) {
  return (
    <Table
      name="differences"
      caption="What differs, the differences that explain most first"
      empty="no difference"
      rows={rows}
      columns={[
        {
          title: 'explains',
          cell: of => <Explains of={of} />,
          number: true,
          sort: of => of.explains_permille,
        },
        { title: 'what', cell: kindOf },
        { title: 'which', cell: of => <Which of={of} /> },
        {
          title: `${chosen}, median`,
          cell: of => median(of, 'chosen'),
          number: true,
          sort: of => of.chosen.median,
        },
        {
          title: `${baseline}, median`,
          cell: of => median(of, 'baseline'),
          number: true,
          sort: of => of.baseline.median,
        },
        {
          title: 'difference of medians',
          cell: difference,
          number: true,
          sort: of => of.chosen.median - of.baseline.median,
        },
        {
          title: `${chosen}, highest`,
          cell: of => highest(of, 'chosen'),
          number: true,
          sort: of => of.chosen.highest,
        },
        {
          title: `${baseline}, highest`,
          cell: of => highest(of, 'baseline'),
          number: true,
          sort: of => of.baseline.highest,
        },
      ]}
    />
  );
}

/** Lines are counted at another step than the accounts. */
const kindOf = ({ kind }: Difference) => (kind === 'line' ? 'line, newest count' : spaced(kind));

const Explains = ({ of }: { of: Difference }) => {
  const share = of.explains_permille / 1000;
  return (
    <>
      <meter min={0} max={1} value={share} aria-label={`explains ${percent(share)}`} />{' '}
      {percent(share)}
    </>
  );
};

function Which({ of }: { of: Difference }) {
  if (of.kind === 'account') return <>{ACCOUNTS[of.name] ?? of.name}</>;
  if (of.kind === 'device_size') return <>{bytes(Number(of.name))}</>;
  if (of.kind !== 'line') return <>{of.name}</>;
  return <Stack of={of.frames.slice(0, 1)} />;
}

const words = (of: Difference, value: number) => valueIn(of.unit)(value);

/** The median of a group; of a trait the ranks that have it. */
function median(of: Difference, side: 'chosen' | 'baseline'): string {
  const level = of[side];
  if (of.unit === 'ranks') return plural(level.ranks, 'rank');
  return level.ranks ? words(of, level.median) : '–';
}

function difference(of: Difference): string {
  if (of.unit === 'ranks') return '–';
  const more = of.chosen.median - of.baseline.median;
  return of.unit === 'bytes'
    ? bytes(more, true)
    : `${more < 0 ? '−' : '+'}${words(of, Math.abs(more))}`;
}

/** The highest value of a group, and the rank that has it. */
function highest(of: Difference, side: 'chosen' | 'baseline'): string {
  const level = of[side];
  if (level.highest_rank === null) return '–';
  return `${words(of, level.highest)}, rank ${level.highest_rank}`;
}

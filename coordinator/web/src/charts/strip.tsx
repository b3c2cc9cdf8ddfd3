// A job in a line of a table: its median rank and its highest one over all steps, by the account of
// its open incident. Where a rank has ended, the line of the highest one is that of a single rank:
// the highest of those that go on would look as if memory had been freed.

import { useMemo } from 'preact/hooks';

import { ACCOUNTS, accountFor, valueIn } from '../account';
import { useAnswer } from '../answers';
import { paths } from '../api';
import type { Area, Incident, Job } from '../types';
import { atSteps, isKnown, unitOf } from '../units';
import { gridOf, lastSteps, stepsOf, type Grid } from './heat';
import { scale } from './svg';

const [WIDTH, HEIGHT] = [140, 26];
const COLUMNS = 70;
const EVERY_MS = 10_000;

interface StripOf {
  job: Job;
  incident: Incident | undefined;
}

export function Strip({ job: of, incident }: StripOf) {
  const { job, attempt, ranks, ranks_alive: alive, step_max: last } = of;
  const account = accountFor(incident);
  const wanted = { job, attempt, account, steps: null, rows: 1, columns: COLUMNS };
  const { data } = useAnswer<Area>(paths.area({ ...wanted, ranks: null }), EVERY_MS);
  const grid = useMemo(() => data && gridOf(data), [data]);
  const rank = alive < ranks ? grid?.rows[0].extreme : undefined;
  const alone =
    rank === undefined ? null : paths.area({ ...wanted, ranks: { from: rank, to: rank } });
  const own = useAnswer<Area>(alone, EVERY_MS).data;
  if (!grid || !data) return <>–</>;
  const worst = alone === null ? grid : own && gridOf(own);
  const values = worst?.cells[0] ?? [];
  const top = [...values, ...grid.medians].reduce<number>((most, of) => Math.max(most, of ?? 0), 1);
  const x = scale(stepsOf(grid, 0).to, grid.last, 1, WIDTH - 1);
  const y = scale(0, top, HEIGHT - 2, 2);
  // A rank that has ended has fewer steps, and so it may have other columns.
  const points = (of: Grid, values: (number | null)[]) =>
    values
      .flatMap((value, at) =>
        isKnown(value) ? [`${x(stepsOf(of, at).to).toFixed(1)},${y(value).toFixed(1)}`] : [],
      )
      .join(' ');
  const text = valueIn(data.unit);
  const newest = (values: (number | null)[]) => text(values.findLast(isKnown));
  const name = ACCOUNTS[account];
  const hasEnded = worst && stepsOf(worst, values.findLastIndex(isKnown)).to < grid.last;
  const ofRank = hasEnded ? ` on rank ${worst.rows[0].extreme}, its last value` : '';
  const highest = worst ? `, highest ${newest(values)}${ofRank}` : '';
  const at = atSteps(unitOf(of), lastSteps(grid, [grid.medians], last));
  const words = `${name}, ${at}: median rank ${newest(grid.medians)}${highest}`;
  return (
    <div>
      <svg class="strip" width={WIDTH} height={HEIGHT} role="img" aria-label={words}>
        <title>{words}</title>
        <polyline class="line peer" points={points(grid, grid.medians)} />
        {worst ? <polyline class="line step-min" points={points(worst, values)} /> : null}
      </svg>
      {incident ? <div class="soft small">{name}</div> : null}
    </div>
  );
}

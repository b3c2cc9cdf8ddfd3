// A job in a line of a table: its median rank and its highest one over all steps, by the account of
// its open incident.

import { useMemo } from 'preact/hooks';

import { ACCOUNTS, accountFor, valueIn } from '../account';
import { useAnswer } from '../answers';
import { paths } from '../api';
import type { Area, Incident, Job } from '../types';
import { isKnown } from '../units';
import { gridOf } from './heat';
import { scale } from './svg';

const [WIDTH, HEIGHT] = [140, 26];
const COLUMNS = 70;
const EVERY_MS = 10_000;

interface StripOf {
  job: Job;
  incident: Incident | undefined;
}

export function Strip({ job: { job, attempt }, incident }: StripOf) {
  const account = accountFor(incident);
  const wanted = { job, attempt, account, steps: null, ranks: null };
  const { data } = useAnswer<Area>(paths.area({ ...wanted, rows: 1, columns: COLUMNS }), EVERY_MS);
  const grid = useMemo(() => data && gridOf(data), [data]);
  if (!grid || !data) return <>–</>;
  const worst = grid.cells[0];
  const top = worst.reduce<number>((most, value) => Math.max(most, value ?? 0), 1);
  const [x, y] = [scale(0, grid.columns - 1, 1, WIDTH - 1), scale(0, top, HEIGHT - 2, 2)];
  const points = (values: (number | null)[]) =>
    values.flatMap((value, at) => (isKnown(value) ? [`${x(at).toFixed(1)},${y(value).toFixed(1)}`] : [])).join(' ');
  const text = valueIn(data.unit);
  const newest = (values: (number | null)[]) => text(values.findLast(isKnown));
  const name = ACCOUNTS[account];
  const words = `${name}: median rank ${newest(grid.medians)}, highest ${newest(worst)}`;
  return (
    <div>
      <svg class="strip" width={WIDTH} height={HEIGHT} role="img" aria-label={words}>
        <title>{words}</title>
        <polyline class="line peer" points={points(grid.medians)} />
        <polyline class="line step-min" points={points(worst)} />
      </svg>
      {incident ? <div class="soft small">{name}</div> : null}
    </div>
  );
}

// Where the bytes of devices and hosts are, a stacked bar each. A click on a part shows its rank
// and its account over steps.

import { here } from '../address';
import { hasSteps, report } from '../api';
import { Soft } from '../parts/basics';
import type { Rank } from '../types';
import { atSteps, bytes, unitOf } from '../units';
import { budgetsOf, legendOf, type Budget } from './budgets';
import { Chart, Key, scale } from './svg';

const [ROW, BAR, LEFT] = [26, 18, 84];
const ROWS_MAX = 64;
/** Below this width the size of the device is left out. */
const NARROW = 520;

export function BudgetChart({ ranks }: { ranks: Rank[] }) {
  const all = ranks.flatMap(budgetsOf).filter(of => of.parts.length > 0);
  if (all.length === 0) return <Soft>no device has reported its layers</Soft>;
  const shown = all.slice(0, ROWS_MAX);
  const known = ranks.filter(of => shown.some(row => row.rank === of.rank));
  const unknown = [...new Set(shown.flatMap(of => of.unknown))].join(', ');
  return (
    <figure>
      <Chart height={shown.length * ROW} draw={width => <Bars rows={shown} width={width} />} />
      <figcaption>
        {legendOf(shown).map(([kind, names]) => (
          <Key kind={kind}>{names}</Key>
        ))}
        <span>{atSteps(unitOf(known[0]), known.map(of => of.step))}</span>
        {unknown ? <span>{`not measured on some ranks: ${unknown}`}</span> : null}
        {known.some(of => of.end) ? <span>■ this rank has ended: its last known bytes</span> : null}
        {all.length > shown.length ? (
          <span>{`the first ${shown.length} of ${all.length}`}</span>
        ) : null}
      </figcaption>
    </figure>
  );
}

function Bars({ rows, width }: { rows: Budget[]; width: number }) {
  const most = rows.reduce((high, row) => Math.max(high, row.size ?? 0, row.sum), 1);
  const isNarrow = width < NARROW;
  const right = width - (isNarrow ? 70 : 150);
  const x = scale(0, most, LEFT, right);
  return (
    <svg
      width={width}
      height={rows.length * ROW}
      viewBox={`0 0 ${width} ${rows.length * ROW}`}
      role="group"
      aria-label="Where the bytes are"
    >
      {rows.map((row, index) => {
        const y = index * ROW;
        const total = row.size && !isNarrow ? ` of ${bytes(row.size)}` : '';
        return (
          <g>
            <text x={2} y={y + 17}>
              {row.name}
            </text>
            <Parts of={row} y={y} x={x} />
            <text x={right + 6} y={y + 17}>{`${bytes(row.used)}${total}`}</text>
          </g>
        );
      })}
    </svg>
  );
}

function Parts({ of, y, x }: { of: Budget; y: number; x: (bytes: number) => number }) {
  let at = 0;
  return of.parts.map(({ name, bytes: size, kind, account }) => {
    const from = x(at);
    at += size;
    const words = `${of.name}: ${name} ${bytes(size)}`;
    const bar = (
      <rect class={kind} x={from} y={y + 3} height={BAR} width={Math.max(0.5, x(at) - from)}>
        <title>{words}</title>
      </rect>
    );
    if (!hasSteps(of.rank)) {
      return (
        <g role="img" aria-label={words}>
          {bar}
        </g>
      );
    }
    // A report has the steps of one account.
    const chosen = { rank: of.rank, account: report ? null : account };
    return (
      <a href={here(chosen)} aria-label={words}>
        {bar}
      </a>
    );
  });
}

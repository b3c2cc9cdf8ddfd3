// The values of the heat map: per-step minimums of all ranks on one grid of steps. Pure.

import { median } from '../units.js';

const COLUMNS_MAX = 240;

/** Per-step minimum of all ranks; null where a rank has no data, no map where none has any. */
export function grid(rows) {
  const withData = rows.filter(row => row.data?.steps?.length);
  if (withData.length === 0) return null;
  const first = Math.min(...withData.map(row => row.data.steps[0]));
  const last = Math.max(...withData.map(row => row.data.steps.at(-1)));
  const columns = Math.min(COLUMNS_MAX, last - first + 1);
  const span = (last - first + 1) / columns;
  const column = step => Math.min(columns - 1, Math.floor((step - first) / span));
  const cells = rows.map(({ data }) => {
    const row = new Array(columns).fill(null);
    if (!data?.steps?.length) return row;
    data.steps.forEach((step, i) => {
      const minimum = data.step_min_bytes[i];
      const at = column(step);
      row[at] = row[at] === null ? minimum : Math.min(row[at], minimum);
    });
    // Between two points of a thinned-out series the minimum is the one before.
    for (let i = 1; i <= column(data.steps.at(-1)); i += 1) row[i] ??= row[i - 1];
    return row;
  });
  return { first, last, columns, span, cells };
}

/** Growth since the left end; with `isAgainstPeers` its difference from the median rank. */
export function growthOf({ cells, columns }, isAgainstPeers) {
  const head = Math.max(1, Math.floor(columns / 10));
  const growth = cells.map(line => {
    const known = line.filter(value => value !== null).slice(0, head);
    const start = known.length ? median(known) : 0;
    return line.map(value => (value === null ? null : value - start));
  });
  if (!isAgainstPeers) return growth;
  const middle = Array.from({ length: columns }, (_, column) =>
    median(growth.map(line => line[column]).filter(value => value !== null)),
  );
  return growth.map(line =>
    line.map((value, column) => (value === null ? null : value - middle[column])),
  );
}

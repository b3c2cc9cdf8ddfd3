// A table; on a narrow screen each row is a card.
//
// A table with a name can be sorted, and keeps how in the address. Of a long one the first rows are
// shown, and more of them at a click.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';

import { address, arrange } from '../address';
import { whole } from '../units';
import { Soft } from './basics';

export interface Column<Row> {
  title: string;
  /** What the title means. */
  help?: string;
  cell: (row: Row) => ComponentChildren;
  number?: boolean;
  sort?: (row: Row) => string | number | null | undefined;
}

interface Options<Row> {
  columns: Column<Row>[];
  rows: Row[];
  caption: string;
  empty: string;
  name?: string;
  rowClass?: (row: Row) => string;
  /** Rows that are shown at first. */
  first?: number;
  /** Whether the cells of a card stand beside each other: a card has fewer lines then. */
  isDense?: boolean;
}

/** Rows that are shown at first unless another number is given, and with each click. */
const ROWS_SHOWN = 100;

type Order = 'up' | 'down';
const ARROWS = { down: ' ↓', up: ' ↑' };
const SORTS = { down: 'descending', up: 'ascending' } as const;

export function Table<Row>({
  columns,
  rows,
  caption,
  empty,
  name,
  rowClass,
  first = ROWS_SHOWN,
  isDense,
}: Options<Row>) {
  const [most, setMost] = useState(first);
  if (rows.length === 0) return <Soft>{empty}</Soft>;
  const [title, order] = (name ? (address.value.query.get(name) ?? '') : '').split('.');
  const sorter = columns.find(column => column.title === title && column.sort);
  const sorted = sorter ? [...rows].sort(comparing(sorter.sort!, order === 'down')) : rows;
  // Roles are said: as cards the rows are no table to a browser.
  return (
    <div
      class={isDense ? 'scroll dense' : 'scroll'}
      tabIndex={0}
      role="region"
      aria-label={caption}
    >
      <table role="table">
        <thead role="rowgroup">
          <tr role="row">
            {columns.map(column => (
              <Heading
                column={column}
                name={name}
                order={column === sorter ? (order as Order) : null}
              />
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {sorted.slice(0, most).map(row => (
            <tr role="row" class={rowClass?.(row)}>
              {columns.map(column => (
                <Cell column={column} row={row} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > most ? (
        <button type="button" onClick={() => setMost(most + ROWS_SHOWN)}>
          {`${whole(most)} of ${whole(sorted.length)} shown: show more`}
        </button>
      ) : null}
    </div>
  );
}

function Cell<Row>({ column, row }: { column: Column<Row>; row: Row }) {
  const value = column.cell(row);
  const kind = `${column.number ? 'number' : ''} ${value === '–' ? 'nothing' : ''}`.trim();
  return (
    <td role="cell" data-title={column.title} class={kind}>
      <div>{value}</div>
    </td>
  );
}

interface HeadingOf<Row> {
  column: Column<Row>;
  name: string | undefined;
  order: Order | null;
}

function Heading<Row>({ column: { title, help, number, sort }, name, order }: HeadingOf<Row>) {
  const words = help ? <abbr title={help}>{title}</abbr> : title;
  const turn = () => arrange({ [name!]: `${title}.${order === 'down' ? 'up' : 'down'}` });
  return (
    <th
      role="columnheader"
      scope="col"
      class={number ? 'number' : ''}
      aria-sort={order ? SORTS[order] : undefined}
    >
      {name && sort ? (
        <button type="button" onClick={turn}>
          {words}
          {order ? ARROWS[order] : ''}
        </button>
      ) : (
        words
      )}
    </th>
  );
}

function comparing<Row>(key: NonNullable<Column<Row>['sort']>, isDown: boolean) {
  const sign = isDown ? -1 : 1;
  return (a: Row, b: Row) => {
    const [x, y] = [key(a) ?? -Infinity, key(b) ?? -Infinity];
    return (x < y ? -1 : x > y ? 1 : 0) * sign;
  };
}

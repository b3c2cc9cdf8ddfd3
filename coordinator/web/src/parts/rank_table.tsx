// The table of ranks: what each holds now.

import type { Incident, Rank } from '../types';
import { whole } from '../units';
import { standing } from '../words';
import { Chip, Size } from './basics';
import { Link } from './link';
import { Table, type Column } from './table';

interface RankTableOf {
  job: string;
  attempt: number;
  ranks: Rank[];
  open: Incident[];
  selected: number | null;
  unit: string;
}

type Sum =
  | 'allocated_bytes'
  | 'reserved_bytes'
  | 'peak_allocated_bytes'
  | 'device_bytes'
  | 'blocks'
  | 'ooms'
  | 'malloc_failures';
const sum = (row: Rank, name: Sum) =>
  row.devices.reduce((total, device) => total + (device[name] ?? 0), 0);

export function RankTable({ job, attempt, ranks, open, selected, unit }: RankTableOf) {
  const isSuspect = (row: Rank) => open.some(found => found.rank === row.rank);
  return (
    <Table
      name="sort"
      isDense
      caption="Ranks"
      empty="no rank is known"
      rows={ranks}
      columns={columns(job, attempt, unit)}
      rowClass={row =>
        `${isSuspect(row) ? 'suspect' : ''} ${row.rank === selected ? 'selected' : ''}`.trim()
      }
    />
  );
}

function columns(job: string, attempt: number, unit: string): Column<Rank>[] {
  const inBytes = (title: string, value: (row: Rank) => number | null): Column<Rank> => ({
    title,
    cell: row => <Size of={value(row)} />,
    number: true,
    sort: row => value(row) ?? -1,
  });
  const inNumbers = (title: string, value: (row: Rank) => number): Column<Rank> => ({
    title,
    cell: row => whole(value(row)),
    number: true,
    sort: value,
  });
  return [
    {
      title: 'rank',
      cell: ({ rank }) => (
        <Link view="job" id={job} values={{ attempt, rank }}>{String(rank)}</Link>
      ),
      sort: row => row.rank,
    },
    {
      title: 'state',
      cell: row => [<Chip name={standing(row)} />, row.end_detail ? ` ${row.end_detail}` : ''],
      sort: standing,
    },
    {
      title: 'node',
      cell: row => `${row.node}${row.pid ? `, pid\u00a0${row.pid}` : ''}`,
      sort: row => row.node,
    },
    {
      title: 'step',
      cell: row => `${row.clock === 'turns' ? 'turn ' : ''}${whole(row.step)}`,
      number: true,
      sort: row => row.step,
    },
    {
      title: `growth/${unit}`,
      // A rank that has ended has none.
      cell: row =>
        row.growth_bytes_per_step === null ? '–' : <Size of={row.growth_bytes_per_step} signed />,
      number: true,
      sort: row => row.growth_bytes_per_step,
    },
    inBytes('allocated', row => sum(row, 'allocated_bytes')),
    inBytes('reserved', row => sum(row, 'reserved_bytes')),
    inBytes('highest peak', row => sum(row, 'peak_allocated_bytes')),
    inBytes('device', row => sum(row, 'device_bytes') || null),
    inNumbers('blocks', row => sum(row, 'blocks')),
    inNumbers('OOMs', row => sum(row, 'ooms')),
    inNumbers('retries', row => sum(row, 'malloc_failures')),
    inBytes('host RSS', row => row.rss_bytes),
    inNumbers('lost events', row => row.lost_events),
    { title: 'limitations', cell: row => row.limitations.join('; ') || '–' },
  ];
}

// Decisions about jobs and nodes, and what came of them.

import { link } from '../address';
import type { Action } from '../types';
import { plural } from '../units';
import { decision, hook, joined, outcome, type Joined } from '../words';
import { Time } from './basics';
import { Table, type Column } from './table';

const COLUMNS: Column<Joined>[] = [
  {
    title: 'when',
    cell: row => (
      <>
        <Time at={row.wall_ns} />
        {row.times > 1 ? (
          <div class="soft">
            {`${plural(row.times, 'time')}, since `}
            <Time at={row.first_wall_ns} />
          </div>
        ) : null}
      </>
    ),
  },
  { title: 'decision', cell: decision },
  { title: 'target', cell: row => hook(row.kind) },
  { title: 'outcome', cell: outcome },
  {
    title: 'job or node',
    cell: row => (row.job ? <a href={link('job', row.job)}>{row.job}</a> : row.node),
  },
  {
    title: 'incident',
    cell: row =>
      row.incident_id ? <a href={link('incident', row.incident_id)}>{row.incident_id}</a> : '–',
  },
];

export const ActionTable = ({ actions }: { actions: Action[] }) => (
  <Table
    columns={COLUMNS}
    rows={joined(actions)}
    empty="no action was considered"
    caption="Decisions about jobs and nodes"
  />
);

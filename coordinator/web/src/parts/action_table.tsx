// Decisions about jobs and nodes, and what came of them.

import type { Action } from '../types';
import { plural } from '../units';
import { decision, hook, joined, outcome, type Joined } from '../words';
import { Time } from './basics';
import { Link } from './link';
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
  // The column "when" has the count.
  { title: 'decision', cell: row => decision({ ...row, times: 1 }) },
  { title: 'target', cell: row => hook(row.kind) },
  { title: 'outcome', cell: outcome },
];
const JOB: Column<Joined> = {
  title: 'job or node',
  cell: ({ job, attempt, node }) =>
    job ? <Link view="job" id={job} values={{ attempt }}>{job}</Link> : node,
};
const INCIDENT: Column<Joined> = {
  title: 'incident',
  cell: row =>
    row.incident_id ? <Link view="incident" id={row.incident_id}>{row.incident_id}</Link> : '–',
};

/** `of` is the one thing that all of them are about. */
export const ActionTable = ({ actions, of }: { actions: Action[]; of?: 'job' | 'incident' }) => (
  <Table
    columns={[...COLUMNS, ...(of ? [] : [JOB]), ...(of === 'incident' ? [] : [INCIDENT])]}
    rows={joined(actions)}
    empty="no action was considered"
    caption="Decisions about jobs and nodes"
  />
);

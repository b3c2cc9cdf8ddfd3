// Captures in a table.

import type { Capture } from '../types';
import { whole } from '../units';
import { spaced, trigger } from '../words';
import { Chip, Time } from './basics';
import { Link } from './link';
import { Table } from './table';

export const CaptureTable = ({ captures }: { captures: Capture[] }) => (
  <Table
    caption="Captures"
    empty="no capture yet"
    rows={captures}
    columns={[
      { title: 'capture', cell: of => <Link view="capture" id={of.id}>{of.id}</Link> },
      { title: 'state', cell: of => <Chip name={of.state} /> },
      { title: 'trigger', cell: trigger },
      { title: 'step', cell: of => (of.step ? whole(of.step) : '–'), number: true },
      {
        title: 'aligned',
        cell: of => `${whole(of.aligned)} of ${whole(of.ranks)}`,
        number: true,
      },
      { title: 'not aligned', cell: notAligned },
      { title: 'requested', cell: of => <Time at={of.requested_wall_ns} /> },
    ]}
  />
);

function notAligned({ missing: ranks, parts_left_out: isCut }: Capture): string {
  if (isCut) return 'the capture lists them';
  return ranks.map(of => `rank ${of.rank}: ${spaced(of.outcome)}`).join(', ') || 'none';
}

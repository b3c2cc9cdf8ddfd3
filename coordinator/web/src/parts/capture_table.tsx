// Captures in a table.

import { rankIn } from '../ranks';
import type { Capture, Ranks } from '../types';
import { whole } from '../units';
import { fateOf, stateOf, trigger } from '../words';
import { Chip, Time } from './basics';
import { Link } from './link';
import { Table } from './table';

/** Captures of the job of these ranks. */
export const CaptureTable = ({ captures, ranks }: { captures: Capture[]; ranks: Ranks }) => (
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
      { title: 'not aligned', cell: of => notAligned(of, ranks) },
      { title: 'requested', cell: of => <Time at={of.requested_wall_ns} /> },
    ]}
  />
);

function notAligned({ missing, parts_left_out: isCut }: Capture, ranks: Ranks): string {
  if (isCut) return 'the capture lists them';
  const fate = (of: (typeof missing)[number]) => stateOf(fateOf(of, rankIn(ranks, of.rank)))[2];
  return missing.map(of => `rank ${of.rank}: ${fate(of)}`).join(', ') || 'none';
}

// The segments of a rank, and the blocks of one of them, as tables: what a map shows, in text.

import { look } from '../address';
import { addressOf, lineOf, stepsOf, type Part } from '../charts/segments';
import { poolWords } from '../segments';
import type { MapSegment, Segments } from '../types';
import { whole } from '../units';
import { Size, Stack } from './basics';
import { Table } from './table';

export const SegmentTable = ({ map }: { map: Segments }) => (
  <Table
    name="segments"
    caption="Segments"
    empty="no segment"
    rows={map.segments}
    columns={[
      {
        title: 'address',
        cell: of => (
          <button type="button" onClick={() => look({ segment: of.address })}>
            {of.address}
          </button>
        ),
      },
      { title: 'size', cell: of => <Size of={of.bytes} />, number: true, sort: of => of.bytes },
      {
        title: 'pool',
        cell: of => `${poolWords(of)}${of.expandable ? ', expandable' : ''}`,
        sort: poolWords,
      },
      { title: 'stream', cell: of => of.stream ?? '–' },
      {
        title: 'blocks',
        cell: of => whole(of.block_count),
        number: true,
        sort: of => of.block_count,
      },
      {
        title: 'allocated',
        cell: of => <Size of={of.allocated_bytes} />,
        number: true,
        sort: of => of.allocated_bytes,
      },
      {
        title: 'pending free',
        cell: of => (of.pending_bytes ? <Size of={of.pending_bytes} /> : '–'),
        number: true,
        sort: of => of.pending_bytes,
      },
      {
        title: 'free',
        cell: of => <Size of={of.free_bytes} />,
        number: true,
        sort: of => of.free_bytes,
      },
      {
        title: 'largest free',
        cell: of => <Size of={of.largest_free_bytes} />,
        number: true,
        sort: of => of.largest_free_bytes,
      },
    ]}
  />
);

interface BlockTableOf {
  map: Segments;
  segment: MapSegment;
  parts: Part[];
  unit: string;
}

export const BlockTable = ({ map, segment, parts, unit }: BlockTableOf) => (
  <Table
    name="blocks"
    caption="Blocks of the segment"
    empty="no block"
    rows={parts}
    columns={[
      {
        title: 'address',
        cell: of => <code>{addressOf(segment, of.from)}</code>,
        sort: of => of.from,
      },
      {
        title: 'size',
        cell: of => <Size of={of.to - of.from} />,
        number: true,
        sort: of => of.to - of.from,
      },
      { title: 'state', cell: stateWords, sort: stateWords },
      {
        title: 'requested',
        cell: of =>
          of.block?.requested_bytes == null ? '–' : <Size of={of.block.requested_bytes} />,
        number: true,
        sort: of => of.block?.requested_bytes,
      },
      {
        title: unit,
        cell: of => whole(stepsOf(of)?.[0]),
        number: true,
        sort: of => stepsOf(of)?.[0],
      },
      { title: 'line', cell: of => lineCell(map, of) },
    ]}
  />
);

const stateWords = ({ block, merged }: Part): string =>
  merged
    ? `${whole(merged.blocks)} merged`
    : block!.state === 'inactive'
      ? 'free'
      : block!.state.replaceAll('_', ' ');

function lineCell(map: Segments, part: Part) {
  const line = lineOf(map, part);
  return line === null ? '–' : <Stack of={[map.frames[line]]} />;
}

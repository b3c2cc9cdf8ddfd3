// What holds the memory of a job, by line: since when, growing or not, on which ranks.

import { useAnswer } from '../answers';
import { paths } from '../api';
import type { Line, Lines } from '../types';
import { atSteps, isKnown, plural, whole } from '../units';
import { Section, Size, Soft, Stack } from './basics';
import { SourceOnDemand } from './source';
import { Table } from './table';

const EVERY_MS = 5000;

interface LinesOf {
  job: string;
  attempt: number;
  rank: number | null;
  unit: string;
}

export function LinesNow({ job, attempt, rank, unit }: LinesOf) {
  const { data } = useAnswer<Lines>(paths.lines(job, attempt, rank), EVERY_MS);
  if (!data) return null;
  const most = (line: Line) => line.holders[0];
  const ofRank = rank === null ? '' : ` of rank ${rank}`;
  const counted = data.lines.flatMap(line => most(line)?.step ?? []);
  const at = counted.length ? `, counted ${atSteps(unit, counted)}` : '';
  return (
    <Section title={`Lines that hold memory${ofRank}${at}`}>
      {data.missing ? (
        <Soft>{data.missing}</Soft>
      ) : (
        <Soft>
          {`Without memory that each ${unit} frees: a capture shows what was held at the peak.`}
        </Soft>
      )}
      <Table
        name="lines"
        caption="Lines that hold memory"
        empty="no line is known"
        rows={data.lines}
        columns={[
          {
            title: 'line',
            cell: line => (
              <>
                <Stack of={line.frames} />
                {line.frames[0] ? (
                  <SourceOnDemand job={job} attempt={attempt} frame={line.frames[0]} />
                ) : null}
              </>
            ),
          },
          { title: 'rank', cell: line => whole(most(line)?.rank), number: true },
          {
            title: 'bytes',
            cell: line => <Size of={most(line)?.bytes} />,
            number: true,
            sort: line => most(line)?.bytes,
          },
          {
            title: 'median rank',
            cell: line => (isKnown(line.median_bytes) ? <Size of={line.median_bytes} /> : '–'),
            number: true,
            sort: line => line.median_bytes,
          },
          { title: 'blocks', cell: line => whole(most(line)?.blocks), number: true },
          { title: `since ${unit}`, cell: line => whole(most(line)?.oldest_step), number: true },
          {
            title: `growth/${unit}`,
            cell: line =>
              most(line)?.growth_bytes_per_step ? (
                <Size of={most(line).growth_bytes_per_step} signed />
              ) : (
                '–'
              ),
            number: true,
            sort: line => most(line)?.growth_bytes_per_step,
          },
          {
            title: 'ranks',
            cell: line => whole(line.ranks),
            number: true,
            sort: line => line.ranks,
          },
        ]}
      />
      {data.lines_left_out || data.other_bytes ? (
        <Soft>
          <Size of={data.other_bytes} />{' '}
          {`in ${plural(data.other_blocks, 'block')} of further lines`}
          {data.lines_left_out ? `; ${plural(data.lines_left_out, 'line')} not shown` : ''}
        </Soft>
      ) : null}
    </Section>
  );
}

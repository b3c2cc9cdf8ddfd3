// The line of code in its file, with its neighbours, as the coordinator reads it for operators.

import { useSignal } from '@preact/signals';

import { useAnswer } from '../answers';
import { paths, report } from '../api';
import type { Frame, SourceLines } from '../types';
import { shortLineOf } from '../words';
import { Frame as Line, Section, Soft } from './basics';

interface SourceOf {
  job: string;
  attempt: number;
  frame: Frame;
}

/** The coordinator shows Python files alone, by their absolute names. */
const mayBeShown = ({ file }: Frame): boolean => file.startsWith('/') && file.endsWith('.py');

/** The line that an incident names; nothing where it is not shown. */
export function SourceOfIncident({ job, attempt, frame }: SourceOf) {
  const path = mayBeShown(frame) ? paths.source(job, attempt, frame) : null;
  const { data } = useAnswer<SourceLines>(path, 0);
  return data?.lines.length ? (
    <Section title="The line in its file">
      <Excerpt of={data} frame={frame} />
    </Section>
  ) : null;
}

/**
 * A line in a table: its source on demand, or why it is not shown. A report has none but its own.
 */
export function SourceOnDemand(of: SourceOf) {
  const isOpen = useSignal(false);
  if (report || !mayBeShown(of.frame)) return null;
  return (
    <details class="source" onToggle={event => (isOpen.value = event.currentTarget.open)}>
      <summary>{`source of ${shortLineOf(of.frame)}`}</summary>
      {isOpen.value ? <Shown {...of} /> : null}
    </details>
  );
}

function Shown({ job, attempt, frame }: SourceOf) {
  const { data, error } = useAnswer<SourceLines>(paths.source(job, attempt, frame), 0);
  if (data?.lines.length) return <Excerpt of={data} frame={frame} />;
  return <Soft>{data?.not_shown ?? error?.message ?? 'reading the file'}</Soft>;
}

const READERS = report
  ? 'everybody who has this report can read it'
  : 'only operators of the job see it';

const Excerpt = ({ of, frame }: { of: SourceLines; frame: Frame }) => (
  <figure>
    <figcaption>
      <Line of={frame} />
      <span>{READERS}</span>
    </figcaption>
    {of.is_newer ? (
      <p class="error">This file was changed after the job began: the line may be another.</p>
    ) : null}
    <pre tabIndex={0}>
      {of.lines.map((text, index) => {
        const number = of.first_line + index;
        const isIt = number === of.line;
        return (
          <span class={isIt ? 'culprit' : ''}>{`${isIt ? '▶' : ' '} ${number}  ${text}\n`}</span>
        );
      })}
    </pre>
  </figure>
);

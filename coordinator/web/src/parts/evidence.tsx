// Why an incident is what it is: the stack, what speaks for and against it, other classes, when the
// memory was allocated, and the lines that grew. What there is nothing of is left out.

import { BirthsChart } from '../charts/births';
import type { Alternative, Incident } from '../types';
import { unitOf, whole } from '../units';
import { lineOf, spaced } from '../words';
import { Chip, Frame, List, Section, Size, Soft } from './basics';
import { Table } from './table';

interface EvidenceOf {
  incident: Incident;
  unit: string;
  /** When the figures of the capture are from. */
  seen: string;
}

export function Evidence({ incident, unit, seen }: EvidenceOf) {
  return (
    <>
      <Stack of={incident} />
      <div class="columns">
        <Sentences
          title={`${incident.answers?.evidence_title ?? 'Evidence'}${seen}`}
          of={incident.evidence}
        />
        <Sentences title={`Evidence against it${seen}`} of={incident.against} />
      </div>
      {incident.alternatives.length ? (
        <Section title="Other classes">
          <Alternatives alternatives={incident.alternatives} />
        </Section>
      ) : null}
      {incident.age_buckets.length ? (
        <Section title={`When the live blocks were allocated${seen}`}>
          <BirthsChart incident={incident} unit={unit} />
        </Section>
      ) : null}
      <Suspects of={incident} title={`Lines that may be the cause${seen}`} />
    </>
  );
}

function Stack({ of: { stack, class: kind } }: { of: Incident }) {
  if (stack.length === 0) return null;
  const request = kind === 'out_of_memory' ? ' of the request that failed' : '';
  return (
    <Section title={`Stack${request}, innermost frame first`}>
      <pre tabIndex={0}>{stack.map(frame => `${lineOf(frame)}  ${frame.function}`).join('\n')}</pre>
    </Section>
  );
}

const Sentences = ({ title, of }: { title: string; of: string[] }) =>
  of.length ? (
    <Section title={title}>
      <List of={of} empty="none" />
    </Section>
  ) : null;

/** What else it may be. */
export function Alternatives({ alternatives }: { alternatives: Alternative[] }) {
  if (alternatives.length === 0) return <Soft>none</Soft>;
  return (
    <>
      {alternatives.map(of => (
        <details key={of.class} open={of.standing !== 'ruled_out'}>
          <summary>
            <Chip name={of.standing} /> {spaced(of.class)}
          </summary>
          <div class="columns">
            <Side title="For it" of={of.evidence} />
            <Side title="Against it" of={of.against} />
          </div>
        </details>
      ))}
    </>
  );
}

const Side = ({ title, of }: { title: string; of: string[] }) =>
  of.length ? (
    <div>
      <h3>{title}</h3>
      <List of={of} empty="nothing" />
    </div>
  ) : null;

function Suspects({ of: { suspects, culprit, clock }, title }: { of: Incident; title: string }) {
  if (suspects.length === 0) return null;
  const named = culprit && lineOf(culprit);
  return (
    <Section title={title}>
      <Table
        columns={[
          { title: 'line', cell: row => <Frame of={row.frame} /> },
          { title: 'grown', cell: row => <Size of={row.grown_bytes} signed />, number: true },
          { title: 'on the peers', cell: row => <Size of={row.peer_bytes} signed />, number: true },
          { title: 'blocks', cell: row => whole(row.blocks), number: true },
          {
            title: `allocated in distinct ${unitOf({ clock })}s`,
            cell: row => whole(row.allocation_steps),
            number: true,
          },
        ]}
        rows={suspects}
        empty=""
        caption="Suspects"
        rowClass={row => (lineOf(row.frame) === named ? 'suspect' : '')}
      />
    </Section>
  );
}

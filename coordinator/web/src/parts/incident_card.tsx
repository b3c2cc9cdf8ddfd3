// An incident in a list: what, where, how long, since when; and the heading of its own view.

import type { ComponentChildren } from 'preact';

import { jobValues } from '../account';
import { isSilenced, marks } from '../thread';
import { useTitle } from '../title';
import type { Incident, Rank } from '../types';
import { unitOf } from '../units';
import { endOf, hasDied } from '../words';
import { Age, Chip, Frame, Soft } from './basics';
import { Link } from './link';
import { Text } from './six_answers';

interface CardOf {
  incident: Incident;
  /** The rank of the incident, where it is known. */
  rank: Rank | null;
  /** What all cards of the view are about. */
  of?: 'job';
}

export function IncidentCard({ incident, rank, of }: CardOf) {
  const { id, job, attempt, state, urgency, sentence, culprit, answers } = incident;
  const reason = incident.closed_reason;
  const end = endSince(incident, rank);
  const at = answers?.growth[0]?.detail;
  const tone = state !== 'open' ? 'closed' : isSilenced(incident) ? 'silenced' : urgency;
  return (
    <article class={`alert ${tone}`}>
      <p class="sentence">
        <Link view="incident" id={id}>{end ?? sentence}</Link>
      </p>
      {end ? <p>{`Before its end: ${sentence}`}</p> : null}
      <p class="line-of-facts">
        <Chip name={state} />
        {state === 'open' ? <Chip name={urgency} /> : null}
        <Chip name={incident.class} />
        {isSilenced(incident) ? <Chip name="silenced" /> : null}
        {of === 'job' ? null : (
          <Fact name="job">
            <Link view="job" id={job} values={{ attempt }}>{job}</Link>
          </Fact>
        )}
        <Fact name="rank">
          <Link view="job" id={job} values={jobValues(incident)}>{incident.rank}</Link>
        </Fact>
        {culprit ? (
          <Fact name="line">
            <Frame of={culprit} />
          </Fact>
        ) : null}
        {answers?.growth.map(of => <Fact name={of.title}>{of.text}</Fact>)}
        {at ? <span class="fact">{at}</span> : null}
        {state === 'open' ? (
          <Open incident={incident} hasEnded={end !== null} />
        ) : (
          <Fact name="closed">
            <Age at={incident.closed_wall_ns} />
          </Fact>
        )}
        <Marks of={incident} />
      </p>
      {reason ? <Soft>{`Closed: ${reason}`}</Soft> : null}
    </article>
  );
}

function Open({ incident, hasEnded }: { incident: Incident; hasEnded: boolean }) {
  const { answers, opened_wall_ns: opened } = incident;
  // The sentence and the class say all of a failure.
  const isFailure = incident.layer === 'process';
  return (
    <>
      {isFailure || hasEnded || !answers ? null : (
        <Fact name={answers.time.title.toLowerCase()}>
          <Text of={answers.time} />
        </Fact>
      )}
      {isFailure ? null : <span class="fact">{answers?.kind.text}</span>}
      <Fact name="opened">
        <Age at={opened} />
      </Fact>
    </>
  );
}

/** Who acknowledged and silenced an incident, and whom it is assigned to. */
export const Marks = ({ of }: { of: Incident }) => (
  <>
    {marks(of, unitOf(of)).map(([name, value]) => (
      <Fact name={name}>{value}</Fact>
    ))}
  </>
);

const Fact = ({ name, children }: { name: string; children: ComponentChildren }) => (
  <span class="fact">
    <b>{name}</b> {children}
  </span>
);

/**
 * The heading of an incident, and the title of the tab: once its rank has ended, that comes first.
 */
export function Headline({ incident, rank }: { incident: Incident; rank: Rank | null }) {
  const end = endSince(incident, rank);
  const sentence = end ?? incident.sentence;
  useTitle(sentence);
  // A status around the heading is read aloud when the sentence changes.
  return (
    <>
      <div role="status">
        <h1 class={end && hasDied(rank) ? 'bad' : undefined}>{sentence}</h1>
      </div>
      {end ? <p>{`Before its end: ${incident.sentence}`}</p> : null}
    </>
  );
}

/** How the rank of an open incident ended, unless the incident is about that. */
const endSince = (incident: Incident, rank: Rank | null): string | null =>
  incident.state === 'open' && incident.layer !== 'process' ? endOf(rank) : null;

// An incident in a list: what, where, how long, since when; and the heading of its own view.

import type { ComponentChildren } from 'preact';

import { link } from '../address';
import { rankLink } from '../ranks';
import { isSilenced, marks } from '../thread';
import { useTitle } from '../title';
import type { Incident, Rank } from '../types';
import { unitOf } from '../units';
import { howLong, isLineless, noLine, whatItIs } from '../verdict';
import { endOf, growth, hasDied } from '../words';
import { Age, Chip, Frame, Soft } from './basics';

/** `rank` is the rank of the incident, where it is known. */
export function IncidentCard({ incident, rank }: { incident: Incident; rank: Rank | null }) {
  const { id, job, state, urgency, sentence, closed_reason: reason } = incident;
  const end = endSince(incident, rank);
  const tone = state !== 'open' ? 'closed' : isSilenced(incident) ? 'silenced' : urgency;
  return (
    <article class={`alert ${tone}`}>
      <p class="sentence">
        <a href={link('incident', id)}>{end ?? sentence}</a>
      </p>
      {end ? <p>{`Before its end: ${sentence}`}</p> : null}
      <p class="line-of-facts">
        <Chip name={state} />
        <Chip name={incident.class} />
        {isSilenced(incident) ? <Chip name="silenced" /> : null}
        <Fact name="job">
          <a href={link('job', job)}>{job}</a>
        </Fact>
        <Fact name="rank">
          <a href={rankLink(job, incident.rank)}>{incident.rank}</a>
        </Fact>
        {isLineless(incident) ? null : (
          <Fact name="line">
            {incident.culprit ? <Frame of={incident.culprit} /> : noLine(incident).text}
          </Fact>
        )}
        {growth(incident).map(([name, value]) => (
          <Fact name={name}>{value}</Fact>
        ))}
        {state === 'open' ? (
          <Open incident={incident} rank={rank} hasEnded={end !== null} />
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

function Open({ incident, rank, hasEnded }: { incident: Incident; rank: Rank | null; hasEnded: boolean }) {
  const { title, text, since } = howLong(incident, rank);
  const isOver = hasEnded || incident.layer === 'process';
  return (
    <>
      {isOver ? null : (
        <Fact name={title.toLowerCase()}>
          {text} {since ? <Age at={since} /> : null}
        </Fact>
      )}
      <span class="fact">{whatItIs(incident).text}</span>
      <Fact name="opened">
        <Age at={incident.opened_wall_ns} />
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

/** The heading of an incident, and the title of the tab: once its rank has ended, that comes first. */
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

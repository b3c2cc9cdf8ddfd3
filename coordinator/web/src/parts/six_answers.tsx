// The answers that an incident is opened for: which rank, how long, which line, leak or just big,
// whether a restart helps, what to try first.

import type { ComponentChildren } from 'preact';

import { link } from '../address';
import { report } from '../api';
import { rankLink } from '../ranks';
import type { Incident, Rank } from '../types';
import { aboutLine, howLong, noLine, restart, saving, whatItIs } from '../verdict';
import { deviceOf, spaced } from '../words';
import { Age, Chip, Frame } from './basics';

interface AnswersOf {
  incident: Incident;
  /** The rank of the incident, where it is known. */
  rank: Rank | null;
  /** Incidents that led to this one, or that it led to. */
  related: Incident[];
  /** When the figures of a capture are from: ` (at step 12)`. */
  seen: string;
}

export function SixAnswers({ incident, rank, related, seen }: AnswersOf) {
  const { text, detail, title, since } = howLong(incident, rank);
  const before = related.find(of => of.layer !== 'process') ?? null;
  const kind = whatItIs(incident, before);
  const again = restart(incident, seen);
  return (
    <dl class="answers">
      <WhichRank incident={incident} rank={rank} />
      <Box name={title} detail={detail}>
        {text} {since ? <Age at={since} /> : null}
      </Box>
      <WhichLine incident={incident} rank={rank} />
      <Box name="Leak or just big" detail={kind.detail}>
        {kind.text}
      </Box>
      <Box name="A restart helps" detail={again.detail}>
        {again.text}
      </Box>
      <Box name="Try first" detail={saving(incident, seen)} kind="wide long">
        {incident.advice ? (
          <WithLinks text={incident.advice} ids={related.map(of => of.id)} />
        ) : (
          noAdvice(incident)
        )}
      </Box>
    </dl>
  );
}

const noAdvice = ({ state }: Incident): string =>
  state === 'open' ? 'not known yet: it comes with the diagnosis' : 'not known';

function WhichRank({ incident, rank }: { incident: Incident; rank: Rank | null }) {
  const { scope, layer } = incident;
  const own = `rank ${incident.rank}`;
  // Of a job that stands still the rank is the one that the others wait for.
  const isAlone = scope === 'one_rank' || layer === 'progress' || layer === 'process';
  const stands = layer === 'progress' && scope === 'all_ranks' ? 'all ranks stand still' : '';
  const where = [deviceOf(incident), rank?.node, stands].filter(Boolean).join(', ');
  return (
    <Box
      name="Which rank"
      detail={
        <>
          {where} {rank ? <Chip name={rank.end ?? rank.state} /> : null}
        </>
      }
    >
      <a href={rankLink(incident.job, incident.rank)}>
        {isAlone ? own : `${spaced(scope)}, such as ${own}`}
      </a>
    </Box>
  );
}

function WhichLine({ incident, rank }: { incident: Incident; rank: Rank | null }) {
  const { culprit } = incident;
  if (culprit) {
    return (
      <Box name="Which line" detail={aboutLine(incident)} kind="wide">
        <Frame of={culprit} tone="culprit" />
      </Box>
    );
  }
  const { text, detail } = noLine(incident);
  // What the recorder could not record may be why.
  const limits = incident.class === 'unknown' || incident.class === 'telemetry' ? rank?.limitations : [];
  return (
    <Box name="Which line" detail={[detail, ...(limits ?? [])].join('; ')} kind="wide">
      {text}
    </Box>
  );
}

interface BoxOf {
  name: string;
  detail: ComponentChildren;
  kind?: string;
  children: ComponentChildren;
}

const Box = ({ name, detail, kind = '', children }: BoxOf) => (
  <div class={`answer ${kind}`}>
    <dt>{name}</dt>
    <dd>
      <div class="text">{children}</div>
      {detail ? <div class="soft">{detail}</div> : null}
    </dd>
  </div>
);

/** A text of the coordinator in which the ids of these incidents are links. */
export function WithLinks({ text, ids }: { text: string; ids: string[] }) {
  const id = ids.find(name => text.includes(name));
  if (!id) return <>{text}</>;
  const [before, ...after] = text.split(id);
  return (
    <>
      {before}
      <IncidentLink id={id} />
      <WithLinks text={after.join(id)} ids={ids} />
    </>
  );
}

/** An incident by its id. A report holds one incident only, and names the others. */
export const IncidentLink = ({ id }: { id: string }) =>
  report ? <code>{id}</code> : <a href={link('incident', id)}>{id}</a>;

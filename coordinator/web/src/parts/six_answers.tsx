// The answers that an incident is opened for: which rank, how long, which line, leak or just big,
// whether a restart helps, what to try first.

import type { ComponentChildren } from 'preact';

import { jobValues } from '../account';
import type { Answer, Incident, Rank } from '../types';
import { standing } from '../words';
import { Age, Chip, Frame } from './basics';
import { Link } from './link';

interface AnswersOf {
  incident: Incident;
  /** The rank of the incident, where it is known. */
  rank: Rank | null;
  /** Incidents that led to this one, or that it led to. */
  related: Incident[];
}

export function SixAnswers({ incident, rank, related }: AnswersOf) {
  const { answers, culprit, job } = incident;
  // An older coordinator has none.
  if (!answers) return null;
  const ids = related.map(of => of.id);
  return (
    <dl class="answers">
      <Box of={answers.rank} ids={ids} more={rank ? <Chip name={standing(rank)} /> : null}>
        <Link view="job" id={job} values={jobValues(incident)}>
          {answers.rank.text}
        </Link>
      </Box>
      <Box of={answers.time} ids={ids}>
        <Text of={answers.time} />
      </Box>
      <Box of={answers.line} ids={ids} kind="wide">
        {culprit ? <Frame of={culprit} tone="culprit" /> : answers.line.text}
      </Box>
      <Box of={answers.kind} ids={ids}>{answers.kind.text}</Box>
      <Box of={answers.restart} ids={ids}>{answers.restart.text}</Box>
      <Box of={answers.remedy} ids={ids} kind="wide long">
        <WithLinks text={answers.remedy.text} ids={ids} />
      </Box>
    </dl>
  );
}

/** The text of an answer, with the time that ends it. */
export const Text = ({ of: { text, since_wall_ns: since } }: { of: Answer }) => (
  <>
    {text} {since ? <Age at={since} /> : null}
  </>
);

interface BoxOf {
  of: Answer;
  /** Incidents whose ids are links in the detail. */
  ids: string[];
  /** What follows the detail. */
  more?: ComponentChildren;
  kind?: string;
  children: ComponentChildren;
}

const Box = ({ of: { title, detail }, ids, more, kind = '', children }: BoxOf) => (
  <div class={`answer ${kind}`}>
    <dt>{title}</dt>
    <dd>
      <div class="text">{children}</div>
      {detail || more ? (
        <div class="soft">
          <WithLinks text={detail} ids={ids} /> {more}
        </div>
      ) : null}
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

export const IncidentLink = ({ id }: { id: string }) => (
  <Link view="incident" id={id}>
    <code>{id}</code>
  </Link>
);

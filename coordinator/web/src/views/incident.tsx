// One incident: first the answers (which rank, how long, which line, leak or just big, restart,
// remedy), then the chart, the evidence, and all that belongs to it: its thread, with what people
// may do about it and everything that happened in one list.
//
// Figures of the growth are of the last judged step; evidence is of the capture's step. What does
// not apply to the class of the incident is left out.

import type { ComponentChildren } from 'preact';
import { useMemo } from 'preact/hooks';

import { ACCOUNTS } from '../account';
import { stepsIn } from '../address';
import { useAnswer } from '../answers';
import { paths, report } from '../api';
import { ActionTable } from '../parts/action_table';
import { Age, Chip, Facts, Section, Size, Soft, Time } from '../parts/basics';
import { Manifest } from '../parts/capture_manifest';
import { Evidence } from '../parts/evidence';
import { Headline, Marks } from '../parts/incident_card';
import { KeptInRange } from '../parts/kept';
import { Link } from '../parts/link';
import { Missing } from '../parts/missing';
import { RankChart } from '../parts/rank_chart';
import { IncidentLink, SixAnswers, WithLinks } from '../parts/six_answers';
import { SourceOfIncident } from '../parts/source';
import { InTerminal } from '../parts/terminal';
import { ThreadForm } from '../parts/thread_form';
import { Timeline } from '../parts/timeline';
import { rankIn } from '../ranks';
import { linesOfIncident } from '../terminal';
import { isSilenced } from '../thread';
import type {
  Actions,
  Capture,
  Captures,
  Collectives,
  Incident,
  Incidents,
  Rank,
  Ranks,
} from '../types';
import { plural, unitOf, whole } from '../units';
import { isGrowth, spaced } from '../words';

export { Alternatives } from '../parts/evidence';

export function IncidentView({ id }: { id: string }) {
  const { data, error } = useAnswer<Incident>(paths.incident(id));
  return data ? <Known incident={data} /> : <Missing view="incident" id={id} error={error} />;
}

function Known({ incident }: { incident: Incident }) {
  const { job, attempt } = incident;
  const ranks = useAnswer<Ranks>(paths.ranksNear(job, attempt, incident.rank)).data;
  const incidents = useAnswer<Incidents>(paths.incidents(job)).data?.incidents ?? [];
  const found = useAnswer<Captures>(paths.captures(job)).data;
  const captures = useMemo(
    () => (found?.captures ?? []).filter(of => of.attempt === attempt),
    [found, attempt],
  );
  const related = relatedTo(incident, incidents);
  const reported = incidents.filter(of => of.reported_in === incident.id);
  const rank = rankIn(ranks, incident.rank);
  const unit = unitOf(incident);
  const steps = stepsIn();
  // What a capture showed is of its step.
  const seen = incident.capture_step ? ` (at ${unit} ${whole(incident.capture_step)})` : '';
  return (
    <div class="incident">
      <div class="incident-answers">
        <Head incident={incident} rank={rank} related={related} reported={reported} />
        <SixAnswers incident={incident} rank={rank} related={related} />
        <RankChart
          job={job}
          attempt={attempt}
          rank={incident.rank}
          device={incident.names_device ? incident.device : null}
          incident={incident}
          captures={captures}
          unit={unit}
        />
        {steps ? (
          <KeptInRange
            job={job}
            attempt={attempt}
            rank={incident.rank}
            steps={steps}
            captures={captures}
            unit={unit}
          />
        ) : null}
        {incident.culprit ? (
          <SourceOfIncident job={job} attempt={attempt} frame={incident.culprit} />
        ) : null}
      </div>
      <div class="incident-evidence">
        <Evidence incident={incident} unit={unit} seen={seen} />
      </div>
      <div class="incident-history">
        <Figures of={incident} />
        <Happened incident={incident} rank={rank} related={related} captures={captures} />
      </div>
      <div class="incident-capture">
        <CaptureOf incident={incident} />
        <InTerminal of={linesOfIncident(incident)} />
      </div>
    </div>
  );
}

/** Incidents that led to this one, or that it led to. */
const relatedTo = ({ id, related_id: other }: Incident, incidents: Incident[]): Incident[] =>
  incidents.filter(of => of.id === other || of.related_id === id);

interface HeadOf {
  incident: Incident;
  rank: Rank | null;
  related: Incident[];
  /** Incidents of the same cause that this one reports. */
  reported: Incident[];
}

function Head({ incident, rank, related, reported }: HeadOf) {
  const { job, attempt, related_id: other, reported_in: reporter } = incident;
  const reason = incident.closed_reason;
  const ids = [...new Set([...(other ? [other] : []), ...related.map(of => of.id)])];
  return (
    <>
      <p class="line-of-facts">
        <Chip name={incident.state} />
        {incident.state === 'open' ? <Chip name={incident.urgency} /> : null}
        <Chip name={incident.class} />
        {isSilenced(incident) ? <Chip name="silenced" /> : null}
        <span>
          job <Link view="job" id={job} values={{ attempt }}>{job}</Link>
        </span>
        <span>
          opened <Age at={incident.opened_wall_ns} />
        </span>
        <Marks of={incident} />
        {incident.stored ? null : <span class="soft">not on disk yet</span>}
      </p>
      <Headline incident={incident} rank={rank} />
      {ids.map(id => (
        <p class="related">
          <b>{incident.layer === 'process' ? 'Before it: ' : 'It ended in: '}</b>
          <IncidentLink id={id} /> {related.find(of => of.id === id)?.sentence}
        </p>
      ))}
      {reporter ? (
        <p class="related">
          <b>The same cause is reported in: </b>
          <IncidentLink id={reporter} />
        </p>
      ) : null}
      {reported.map(of => (
        <p class="related">
          <b>It also reports: </b>
          <IncidentLink id={of.id} /> {of.sentence}
        </p>
      ))}
      {reason ? (
        <p class="banner">
          Closed: <WithLinks text={reason} ids={ids} />
        </p>
      ) : null}
    </>
  );
}

// --- the figures --------------------------------------------------------------

/** The figures of what grows or holds. Its sentence and its thread say all of a failure. */
function Figures({ of }: { of: Incident }) {
  if (of.layer === 'process') return null;
  const unit = unitOf(of);
  const at = (step: number) => `${unit} ${whole(step)}`;
  const grows = isGrowth(of);
  const isInPart = of.explained_bytes > 0 && of.unexplained_bytes > 0;
  const part = (name: string, bytes: number): [string, ComponentChildren] | null =>
    isInPart ? [name, <><Size of={bytes} />{`, at ${at(of.last_step)}`}</>] : null;
  const facts: ([string, ComponentChildren] | null)[] = [
    ...(of.answers?.growth ?? []).map(
      ({ title, text, detail }): [string, string] => [title, `${text}, ${detail}`],
    ),
    grows ? ['what grows', ACCOUNTS[of.layer] ?? spaced(of.layer)] : null,
    part('of it explained', of.explained_bytes),
    part('not explained', of.unexplained_bytes),
    ['began', at(of.onset_step)],
    ['detected', at(of.detected_step)],
    of.peers > 0 ? ['compared with', plural(of.peers, 'peer')] : null,
    grows && of.ranks > 1 ? ['grow alike', plural(of.ranks, 'rank')] : null,
    ['opened', <Time at={of.opened_wall_ns} />],
    of.closed_wall_ns ? ['closed', <Time at={of.closed_wall_ns} />] : null,
  ];
  const known = facts.filter(fact => fact !== null);
  const half = Math.ceil(known.length / 2);
  return (
    <Section title={grows ? 'Growth' : 'Figures'}>
      <div class="columns">
        <Facts of={known.slice(0, half)} />
        <Facts of={known.slice(half)} />
      </div>
    </Section>
  );
}

// --- what belongs to it -------------------------------------------------------

interface HappenedOf {
  incident: Incident;
  rank: Rank | null;
  related: Incident[];
  captures: Capture[];
}

function Happened({ incident, rank, related, captures }: HappenedOf) {
  const all = useAnswer<Actions>(paths.actions).data?.actions ?? [];
  const actions = all.filter(of => of.incident_id === incident.id);
  const incidents = [incident, ...related];
  return (
    <>
      <Section title="Thread">
        {report ? null : <ThreadForm incident={incident} />}
        <Timeline
          of={{ incidents, captures, ranks: rank ? [rank] : [], actions, inView: incident.id }}
          unit={unitOf(incident)}
        />
        <LeftOut count={incident.thread.entries_left_out} />
      </Section>
      {actions.length ? (
        <Section title="Actions">
          <ActionTable actions={actions} of="incident" />
        </Section>
      ) : null}
    </>
  );
}

/** Entries that the coordinator no longer lists. */
const LeftOut = ({ count }: { count: number }) =>
  count > 0 ? (
    <Soft>
      {plural(count, 'earlier entry', 'earlier entries')}
      {' of the thread not shown; the audit has them'}
    </Soft>
  ) : null;

function CaptureOf({ incident }: { incident: Incident }) {
  const { capture_id: id } = incident;
  const { data: capture, error } = useAnswer<Capture>(id ? paths.capture(id) : null);
  // The comparison of a closed capture does not change.
  const isClosed = capture !== null && capture.state !== 'collecting';
  const collectives = useAnswer<Collectives>(
    isClosed ? paths.collectives(capture.id) : null,
    0,
  ).data;
  if (!id) return null;
  return (
    <Section title="Capture">
      {capture ? (
        <>
          <p>
            <Link view="capture" id={id} values={{ rank: incident.rank }}>
              {report ? 'Lines' : 'Segments, blocks and lines'}
              {` of rank ${incident.rank} in this capture`}
            </Link>
          </p>
          <Manifest capture={capture} collectives={collectives} unit={unitOf(incident)} />
        </>
      ) : (
        <Soft>{error ? `${id}: ${error.message}` : `asking for ${id}…`}</Soft>
      )}
    </Section>
  );
}

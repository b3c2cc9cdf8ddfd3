// One capture: what it holds, the incidents that rest on it, and what a terminal shows of it.

import { look, numberIn, stepsIn, type Span } from '../address';
import { useAnswer } from '../answers';
import { isHere, paths, report } from '../api';
import { besides } from '../captures';
import { SetBaseline } from '../parts/baseline';
import { Section, Soft } from '../parts/basics';
import { Manifest } from '../parts/capture_manifest';
import { IncidentCard } from '../parts/incident_card';
import { KeptIn } from '../parts/kept';
import { Link } from '../parts/link';
import { Missing } from '../parts/missing';
import { SegmentsOfRank } from '../parts/segments';
import { IncidentLink } from '../parts/six_answers';
import { InTerminal } from '../parts/terminal';
import { linesOfCapture } from '../terminal';
import { useTitle } from '../title';
import type { Capture, Captures, Collectives, Incident, Incidents } from '../types';
import { plural, unitOf, whole } from '../units';

export function CaptureView({ id }: { id: string }) {
  const { data: capture, error } = useAnswer<Capture>(paths.capture(id));
  // Once a capture is closed, what its ranks did stays the same.
  const isClosed = capture !== null && capture.state !== 'collecting';
  const collectives = useAnswer<Collectives>(isClosed ? paths.collectives(id) : null, 0).data;
  const job = capture?.job ?? null;
  const incidents = useAnswer<Incidents>(job === null ? null : paths.incidents(job)).data;
  const others = useAnswer<Captures>(job === null ? null : paths.captures(job)).data;
  useTitle(capture ? sentence(capture) : id);
  if (!capture) return <Missing view="capture" id={id} error={error} />;
  const resting = incidents?.incidents.filter(of => of.capture_id === id) ?? [];
  const here = others?.captures.filter(of => isHere(paths.capture(of.id))) ?? [];
  const { before, after } = besides(here, id);
  const unit = unitOf(resting[0]);
  return (
    <div class="capture">
      <div class="capture-head">
        <h1>{`Capture ${capture.id}`}</h1>
        <p class="line-of-facts">
          <span>
            {'of job '}
            <Link view="job" id={capture.job} values={{ attempt: capture.attempt }}>
              {capture.job}
            </Link>
            {`, attempt ${capture.attempt}`}
          </span>
          <Besides before={before} after={after} />
          {report ? null : <SetBaseline of={{ kind: 'capture', id }} />}
        </p>
      </div>
      <Later capture={capture} incidents={incidents?.incidents ?? []} />
      <div class="capture-about">
        <Manifest capture={capture} collectives={collectives} unit={unit} />
      </div>
      <div class="capture-memory">
        {isClosed ? (
          <MemoryOf capture={capture} first={resting[0]?.rank ?? null} unit={unit} />
        ) : null}
      </div>
      <div class="capture-rest">
        <Section title="Incidents that use this capture">
          {resting.map(of => (
            <IncidentCard key={of.id} incident={of} rank={null} of="job" />
          ))}
          {resting.length === 0 ? (
            <NoIncident capture={capture} incidents={incidents?.incidents ?? []} />
          ) : null}
        </Section>
        <InTerminal of={linesOfCapture(capture, before)} />
      </div>
    </div>
  );
}

/** Incidents that are named beside a baseline. */
const LATER_MAX = 4;

interface LaterOf {
  capture: Capture;
  incidents: Incident[];
}

/** That a baseline is within what was found later: it does not show a healthy state. */
function Later({ capture: { trigger, attempt, step }, incidents }: LaterOf) {
  const isWithin = (of: Incident) =>
    of.attempt === attempt && step !== null && of.onset_step <= step && step <= of.last_step;
  const found = trigger === 'baseline' ? incidents.filter(isWithin) : [];
  if (found.length === 0) return null;
  const more = found.length - LATER_MAX;
  return (
    <p>
      {found.slice(0, LATER_MAX).map(of => (
        <>
          {`This baseline is not a healthy state of rank ${whole(of.rank)}: `}
          <IncidentLink id={of.id} />
          {`, found later, began at ${unitOf(of)} ${whole(of.onset_step)}. `}
        </>
      ))}
      {more > 0 ? `And ${plural(more, 'more incident')}.` : ''}
    </p>
  );
}

/** Why no incident uses a capture: another one of the same rank can have taken its place. */
function NoIncident({ capture, incidents }: { capture: Capture; incidents: Incident[] }) {
  const { attempt, trigger_rank: rank } = capture;
  const isOfRank = (of: Incident) => of.attempt === attempt && of.rank === rank;
  // Ids grow with the time of the request.
  const other = incidents.find(of => isOfRank(of) && of.capture_id && of.capture_id > capture.id);
  if (!other?.capture_id) return <Soft>none</Soft>;
  return (
    <Soft>
      No incident uses this capture now: <IncidentLink id={other.id} /> of rank {rank} uses{' '}
      <Link view="capture" id={other.capture_id}>{other.capture_id}</Link>.
    </Soft>
  );
}

interface MemoryOf {
  capture: Capture;
  /** The rank of an incident. */
  first: number | null;
  unit: string;
}

/** The memory of a rank of the capture, as a map and by line. A report has one rank alone. */
function MemoryOf({ capture, first, unit }: MemoryOf) {
  const isKept = (rank: number | null) =>
    rank !== null && isHere(paths.kept(capture.id, rank, null));
  const held = capture.parts
    .filter(part => part.bytes > 0 && isKept(part.rank))
    .map(part => part.rank);
  const rank = numberIn('rank') ?? [first, capture.trigger_rank, ...held].find(isKept) ?? null;
  if (rank === null) return null;
  const choose = (event: Event) =>
    look({
      rank: (event.currentTarget as HTMLSelectElement).value,
      held: null,
      device: null,
      segment: null,
      block: null,
    });
  const last = capture.step ?? Infinity;
  const at = numberIn('at');
  const steps = upTo(at === null ? null : Math.min(at, last), stepsIn());
  const range = steps ? `, of ${unit}s ${steps.from} to ${steps.to}` : '';
  return (
    <>
      {held.some(number => number !== rank) ? (
        <p class="pills">
          <label>
            {'rank '}
            <select value={String(rank)} onChange={choose}>
              {held.map(number => (
                <option value={String(number)}>{number}</option>
              ))}
            </select>
          </label>
        </p>
      ) : null}
      <SegmentsOfRank capture={capture} rank={rank} device={numberIn('device')} unit={unit} />
      <Section title={`What rank ${rank} holds, by line${range}`}>
        <KeptIn capture={capture} rank={rank} steps={steps} unit={unit} />
      </Section>
    </>
  );
}

/** The chosen steps, as far as they are over at the step of the slider. */
function upTo(at: number | null, steps: Span | null): Span | null {
  if (at === null) return steps;
  const to = Math.max(1, at);
  return { from: Math.min(steps?.from ?? 1, to), to: Math.min(steps?.to ?? to, to) };
}

const sentence = ({ aligned, ranks, step, job }: Capture): string =>
  step
    ? `Capture of ${whole(aligned)} of ${plural(ranks, 'rank')} of ${job} at step ${whole(step)}`
    : `Capture of ${plural(ranks, 'rank')} of ${job}`;

/** The neighbours in time. */
function Besides({ before, after }: { before: Capture | null; after: Capture | null }) {
  const values = { rank: numberIn('rank') };
  return (
    <>
      {before ? (
        <Link view="capture" id={before.id} values={values} rel="prev" title="key [" keys="[">
          ← capture before
        </Link>
      ) : null}
      {after ? (
        <Link view="capture" id={after.id} values={values} rel="next" title="key ]" keys="]">
          capture after →
        </Link>
      ) : null}
    </>
  );
}

// One job: ranks × steps, the chosen rank over time, what it kept of the chosen steps, where the
// bytes of the devices are, the lines that hold memory, and the table of ranks.

import { useState } from 'preact/hooks';

import { accountFor } from '../account';
import { link, look, numberIn, rangeIn, stepsIn } from '../address';
import { useAnswer } from '../answers';
import { hasSteps, paths, report, requestCapture } from '../api';
import { BudgetChart } from '../charts/budget';
import { ActionTable } from '../parts/action_table';
import { baselineIn } from '../baseline';
import { AreaPart } from '../parts/area';
import { Section, Soft } from '../parts/basics';
import { CaptureTable } from '../parts/capture_table';
import { SetBaseline } from '../parts/baseline';
import { BesideBaseline, WhatDiffers } from '../parts/differences';
import { IncidentCard } from '../parts/incident_card';
import { KeptInRange } from '../parts/kept';
import { LinesNow } from '../parts/lines_now';
import { Missing } from '../parts/missing';
import { RankChart } from '../parts/rank_chart';
import { RankTable } from '../parts/rank_table';
import { Timeline } from '../parts/timeline';
import { rankIn } from '../ranks';
import { useTitle } from '../title';
import type { Actions, Capture, Captures, Incident, Incidents, Jobs, Rank, Ranks } from '../types';
import { plural, unitOf, whole } from '../units';
import { ATTEMPT } from '../words';

export function JobView({ id }: { id: string }) {
  const attempt = numberIn('attempt');
  const { data, error } = useAnswer<Ranks>(paths.ranks(id, attempt));
  const incidents = useAnswer<Incidents>(paths.incidents(id)).data?.incidents ?? [];
  const captures = useAnswer<Captures>(paths.captures(id)).data?.captures ?? [];
  const actions = useAnswer<Actions>(paths.actions).data?.actions ?? [];
  if (!data) return <Missing view="job" id={id} error={error} />;
  const isHere = (of: { attempt: number }) => of.attempt === data.attempt;
  return (
    <Job
      ranks={data}
      incidents={incidents.filter(isHere)}
      earlier={incidents.filter(of => !isHere(of))}
      captures={captures.filter(isHere)}
      actions={actions.filter(of => of.job === data.job)}
    />
  );
}

interface JobOf {
  ranks: Ranks;
  incidents: Incident[];
  /** Incidents of other attempts. */
  earlier: Incident[];
  captures: Capture[];
  actions: Actions['actions'];
}

function Job({ ranks, incidents, earlier, captures, actions }: JobOf) {
  const { job, attempt } = ranks;
  const open = incidents.filter(found => found.state === 'open');
  const closed = [...incidents.filter(found => found.state !== 'open'), ...earlier];
  const first = [...open, ...incidents, ...ranks.ranks].find(of => hasSteps(of.rank));
  const selected = numberIn('rank') ?? first?.rank ?? null;
  const own = open.find(found => found.rank === selected) ?? null;
  const isTurns = ranks.ranks.length > 0 && ranks.ranks.every(row => row.clock === 'turns');
  const unit = unitOf({ clock: isTurns ? 'turns' : 'steps' });
  const steps = stepsIn();
  const chosen = rangeIn('ranks');
  const baseline = baselineIn();
  useTitle(open[0]?.sentence ?? `Job ${job}`);
  return (
    <div class="job">
      <div class="job-whole">
        <h1>{`Job ${job}`}</h1>
        <p class="line-of-facts">
          <span>
            <abbr title={ATTEMPT}>attempt</abbr>
            {` ${attempt}, ${plural(ranks.count, 'rank')}, ${whole(ranks.alive)} alive`}
          </span>
          <Attempts job={job} attempt={attempt} />
          {report || ranks.alive === 0 ? null : <AskForCapture job={job} />}
          {report ? null : <SetBaseline of={{ kind: 'run', job, attempt }} />}
        </p>
        {open.map(incident => (
          <IncidentCard incident={incident} rank={rankIn(ranks, incident.rank)} of="job" />
        ))}
      </div>
      <div>
        <AreaPart
          ranks={ranks}
          incidents={incidents}
          captures={captures}
          selected={selected}
          unit={unit}
        />
        {!chosen || report ? null : chosen.from === 0 && chosen.to >= ranks.count - 1 ? (
          <Soft>All ranks are chosen: choose fewer to see what sets them apart.</Soft>
        ) : (
          <WhatDiffers job={job} attempt={attempt} ranks={chosen} steps={steps} unit={unit} />
        )}
        {baseline ? (
          <BesideBaseline
            job={job}
            attempt={attempt}
            baseline={baseline}
            steps={steps}
            unit={unit}
          />
        ) : null}
      </div>
      {selected === null ? null : (
        <div>
          <Section title={`Rank ${selected}`}>
            <RankChart
              job={job}
              attempt={attempt}
              rank={selected}
              incident={own}
              account={accountFor(own, ...open, ...incidents)}
              captures={captures}
              unit={unit}
            />
          </Section>
          {steps ? (
            <KeptInRange
              job={job}
              attempt={attempt}
              rank={selected}
              steps={steps}
              captures={captures}
              unit={unit}
            />
          ) : null}
        </div>
      )}
      <Section title="Where the bytes are">
        <BudgetChart ranks={firstOf(ranks.ranks, selected)} />
      </Section>
      <LinesNow job={job} attempt={attempt} rank={numberIn('rank')} unit={unit} />
      <div class="job-whole">
        <Section title="Ranks">
          {ranks.count > ranks.ranks.length ? (
            <Soft>
              {`the ${whole(ranks.ranks.length)} of ${plural(ranks.count, 'rank')} `}
              {'whose memory grows fastest'}
            </Soft>
          ) : null}
          <RankTable
            job={job}
            attempt={attempt}
            ranks={ranks.ranks}
            open={open}
            selected={selected}
            unit={unit}
          />
        </Section>
      </div>
      <Section title="Captures">
        <CaptureTable captures={captures} ranks={ranks} />
      </Section>
      <Section title="Timeline">
        <Timeline of={{ incidents, captures, ranks: ranks.ranks, actions }} unit={unit} />
      </Section>
      {actions.length ? (
        <Section title="Actions">
          <ActionTable actions={actions} of="job" />
        </Section>
      ) : null}
      {closed.length ? (
        <Section title="Closed incidents">
          {closed.map(incident => (
            <IncidentCard incident={incident} rank={null} of="job" />
          ))}
        </Section>
      ) : null}
    </div>
  );
}

/** The chosen rank first. */
const firstOf = (ranks: Rank[], selected: number | null): Rank[] => [
  ...ranks.filter(of => of.rank === selected),
  ...ranks.filter(of => of.rank !== selected),
];

/** The attempts of the job, to choose one. */
function Attempts({ job, attempt }: { job: string; attempt: number }) {
  const { data } = useAnswer<Jobs>(report ? null : paths.jobs);
  const last =
    data?.jobs.filter(of => of.job === job).reduce((most, of) => Math.max(most, of.attempt), 0) ??
    0;
  if (last === 0 && attempt === 0) return null;
  const all = Array.from({ length: Math.max(last, attempt) + 1 }, (_, index) => index);
  return (
    <label>
      {'attempt '}
      <select
        value={String(attempt)}
        onChange={event => look({ attempt: event.currentTarget.value, steps: null })}
      >
        {all.map(number => (
          <option value={String(number)}>{String(number)}</option>
        ))}
      </select>
    </label>
  );
}

function AskForCapture({ job }: { job: string }) {
  const [said, setSaid] = useState('');
  const ask = () => {
    setSaid('requesting…');
    requestCapture(job).then(
      id => {
        location.hash = link('capture', id);
      },
      (error: Error) => setSaid(error.message),
    );
  };
  return (
    <span>
      <button type="button" onClick={ask}>
        Capture all ranks now
      </button>{' '}
      <span role="status">{said}</span>
    </span>
  );
}

// The first view: open incidents, those with the least time left first, then the jobs.

import { useAnswer, useAnswers } from '../answers';
import { paths } from '../api';
import { Strip } from '../charts/strip';
import { Age, Chip, Section, Soft } from '../parts/basics';
import { Filter, filtered } from '../parts/filter';
import { IncidentCard } from '../parts/incident_card';
import { Link } from '../parts/link';
import { Missing } from '../parts/missing';
import { Table } from '../parts/table';
import { rankIn } from '../ranks';
import { useTitle } from '../title';
import type { Incident, Incidents, Job, Jobs, Node, Nodes, Rank, Ranks } from '../types';
import { isKnown, plural, whole } from '../units';
import { ATTEMPT, spaced, stateOf, urgencyRank } from '../words';
import { NewCoordinator } from './new_coordinator';
import { goneOf } from './nodes';

/** Ranks are asked for the cards of open incidents only. */
const RANKS_ASKED_MAX = 8;
const CLOSED_SHOWN_MAX = 20;
const NODES_NAMED_MAX = 4;
/** Jobs whose steps are asked for. */
const STRIPS_MAX = 24;

export function HomeView() {
  const jobs = useAnswer<Jobs>(paths.jobs);
  const incidents = useAnswer<Incidents>(paths.incidents());
  const nodes = useAnswer<Nodes>(paths.nodes).data?.nodes ?? [];
  const all = incidents.data?.incidents ?? [];
  const rankOf = useRanksOf(all);
  const open = all.filter(of => of.state === 'open').sort(byTimeLeft(rankOf));
  const closed = all.filter(of => of.state !== 'open');
  const heading = open.length ? plural(open.length, 'open incident') : 'No open incidents';
  useTitle(incidents.data ? heading : '');
  if (!jobs.data || !incidents.data) {
    return <Missing view="jobs" id="" error={jobs.error ?? incidents.error} />;
  }
  if (jobs.data.jobs.length === 0 && all.length === 0) return <NewCoordinator nodes={nodes} />;
  return (
    <div class="home">
      <section class="home-open" aria-labelledby="open-incidents">
        <div role="status">
          <h1 id="open-incidents">{heading}</h1>
        </div>
        <AgentsGone nodes={nodes} />
        {open.map(of => (
          <IncidentCard key={of.id} incident={of} rank={rankOf(of)} />
        ))}
      </section>
      <div class="home-jobs">
        <Section title="Jobs">
          <JobTable jobs={jobs.data.jobs} open={open} />
        </Section>
      </div>
      <div class="home-closed">{closed.length ? <Closed incidents={closed} /> : null}</div>
    </div>
  );
}

/** The rank of an incident; null where it was not asked for or is not known. */
type RankOf = (incident: Incident) => Rank | null;

function useRanksOf(incidents: Incident[]): RankOf {
  const wanted = incidents.filter(of => of.state === 'open').map(pathOf);
  const asked = [...new Set(wanted)].slice(0, RANKS_ASKED_MAX);
  const answers = useAnswers<Ranks>(asked);
  const found = new Map(asked.map((path, i) => [path, answers[i].data]));
  return of => rankIn(found.get(pathOf(of)) ?? null, of.rank);
}

const pathOf = (of: Incident): string => paths.ranksNear(of.job, of.attempt, of.rank);

/** The soonest end first; without a forecast, and once the rank has ended, by urgency. */
const byTimeLeft = (rankOf: RankOf) => {
  const left = (of: Incident) =>
    isKnown(of.seconds_to_oom) && !rankOf(of)?.end ? of.seconds_to_oom : Number.MAX_VALUE;
  return (a: Incident, b: Incident): number =>
    left(a) - left(b) ||
    urgencyRank(b) - urgencyRank(a) ||
    b.opened_wall_ns - a.opened_wall_ns;
};

/** Nodes whose agents do not report: their jobs are not watched. */
function AgentsGone({ nodes }: { nodes: Node[] }) {
  const gone = goneOf(nodes);
  if (gone.length === 0) return null;
  return (
    <p class="banner">
      <Chip name="disconnected" />{' '}
      <Link view="nodes">
        {`${whole(gone.length)} of ${plural(nodes.length, 'agent')}`}
        {gone.length === 1 ? ' does not report' : ' do not report'}
      </Link>
      {`: ${someOf(gone.map(node => node.node))}`}
    </p>
  );
}

/** The first names, and how many there are besides. */
function someOf(names: string[]): string {
  const more = names.length - NODES_NAMED_MAX;
  const shown = names.slice(0, NODES_NAMED_MAX).join(', ');
  return more > 0 ? `${shown} and ${whole(more)} more` : shown;
}

function Closed({ incidents }: { incidents: Incident[] }) {
  return (
    <Section title="Closed incidents">
      {incidents.slice(0, CLOSED_SHOWN_MAX).map(of => (
        <IncidentCard key={of.id} incident={of} rank={null} />
      ))}
      {incidents.length > CLOSED_SHOWN_MAX ? (
        <Soft>
          {`${CLOSED_SHOWN_MAX} of ${whole(incidents.length)}; memtape incidents lists all`}
        </Soft>
      ) : null}
    </Section>
  );
}

// --- jobs --------------------------------------------------------------------

// The worst first.
const STATES: Job['state'][] = [
  'failed',
  'incident',
  'behind',
  'stalled',
  'silent',
  'disconnected',
  'watching',
  'warming',
  'healthy',
  'ended',
];
const place = ({ state }: Job): number =>
  STATES.includes(state) ? STATES.indexOf(state) : STATES.length;

function JobTable({ jobs, open }: { jobs: Job[]; open: Incident[] }) {
  const sorted = [...jobs].sort(
    (a, b) => place(a) - place(b) || b.started_wall_ns - a.started_wall_ns,
  );
  const shown = filtered(sorted, of => [of.job, ...of.nodes, ...stateWords(of)]);
  // The first is the one with the least time left.
  const incidentOf = ({ job, attempt }: Job) =>
    open.find(of => of.job === job && of.attempt === attempt);
  const drawn = new Set(shown.slice(0, STRIPS_MAX).map(of => of.job));
  return (
    <>
      <Filter
        name="Filter by job, node or state"
        shown={shown.length}
        total={jobs.length}
      />
      <Table
        name="sort"
        caption="Jobs"
        rows={shown}
        empty={jobs.length ? 'no job matches the filter' : 'no job that you may see'}
        columns={[
          {
            title: 'state',
            cell: of => <Chip name={of.state} kind={of.class ?? undefined} />,
            sort: place,
          },
          {
            title: 'job',
            cell: of => (
              <Link view="job" id={of.job}>
                {of.job}
              </Link>
            ),
            sort: of => of.job,
          },
          {
            title: 'median and highest rank',
            cell: of => (drawn.has(of.job) ? <Strip job={of} incident={incidentOf(of)} /> : '–'),
          },
          { title: 'attempt', help: ATTEMPT, cell: of => of.attempt, number: true },
          {
            title: 'ranks alive',
            cell: of => `${whole(of.ranks_alive)} of ${whole(of.world_size || of.ranks)}`,
            number: true,
            sort: of => of.ranks_alive,
          },
          { title: 'steps', cell: steps, number: true, sort: of => of.step_max },
          {
            title: 'open incidents',
            cell: of => whole(of.incidents_open),
            number: true,
            sort: of => of.incidents_open,
          },
          { title: 'nodes', cell: of => someOf(of.nodes) },
          {
            title: 'started',
            cell: of => <Age at={of.started_wall_ns} />,
            sort: of => of.started_wall_ns,
          },
        ]}
      />
    </>
  );
}

/** What a state is called in the API and on the page. */
const stateWords = (of: Job): string[] => [
  spaced(of.state),
  stateOf(of.state)[2],
  of.class ? spaced(of.class) : '',
];

function steps(of: Job): string {
  const first = of.step_min === of.step_max ? '' : `${whole(of.step_min)} – `;
  return `${first}${whole(of.step_max)}${of.clock === 'turns' ? ' turns' : ''}`;
}

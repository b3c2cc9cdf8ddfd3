// What a capture holds: its cause, how complete it is, the snapshot of each rank to download, and
// how its ranks stand in their collectives.

import { useAnswer } from '../answers';
import { paths, picklePath, report, snapshotPath } from '../api';
import { rankIn } from '../ranks';
import type { Capture, Collectives, Part, Ranks } from '../types';
import { bytes, duration, isKnown, whole } from '../units';
import { fateOf, stateOf, trigger } from '../words';
import { Chip, Facts, List, Soft, Time } from './basics';
import { Link } from './link';
import { Table } from './table';

interface ManifestOf {
  capture: Capture;
  /** Null where they are not known. */
  collectives: Collectives | null;
  /** What its steps are called. */
  unit?: string;
}

export function Manifest({ capture, collectives, unit = 'step' }: ManifestOf) {
  const { before_step: before, requested_wall_ns: requested } = capture;
  const fate = useFate(capture);
  const total = capture.parts.reduce((sum, part) => sum + part.bytes, 0);
  return (
    <>
      <p>
        <Chip name={capture.state} /> <Link view="capture" id={capture.id}>{capture.id}</Link>
        {`: ${capture.shown}`}
        {before ? `, compared with ${unit} ${whole(before)}` : ''}
      </p>
      <div class="columns">
        <Facts
          of={[
            ['trigger', trigger(capture)],
            ['requested', <Time at={requested} />],
            ['took', took(capture)],
          ]}
        />
        <Facts
          of={[
            ['size', bytes(total)],
            ['spread', spread(capture.parts)],
          ]}
        />
      </div>
      <MissingRanks of={capture} fate={fate} />
      <Parts capture={capture} unit={unit} fate={fate} />
      {collectives ? <Standing of={collectives} /> : null}
    </>
  );
}

/** Says what became of a part, by the name of a state. */
type Fate = (of: Pick<Part, 'rank' | 'outcome'>) => string;

/** The ranks are asked for where one is dead. */
function useFate({ job, attempt, parts }: Capture): Fate {
  const hasDead = parts.some(of => of.dead || of.outcome === 'dead');
  const ranks = useAnswer<Ranks>(hasDead ? paths.ranks(job, attempt) : null).data;
  return of => fateOf(of, rankIn(ranks, of.rank));
}

function took({ closed_wall_ns: closed, requested_wall_ns: requested }: Capture): string {
  if (!isKnown(closed)) return 'being collected';
  const seconds = (closed - requested) / 1e9;
  return seconds < 1 ? 'less than 1 s' : duration(seconds);
}

/** Between the first and the last rank that ended the step. */
function spread(parts: Part[]): string {
  const ends = parts.filter(part => part.outcome === 'aligned').map(part => part.wall_ns);
  if (ends.length < 2) return 'not known';
  const ms = (Math.max(...ends) - Math.min(...ends)) / 1e6;
  return `${ms.toFixed(2)} ms between the first and the last rank`;
}

/** Ranks without a snapshot: that another is of a later step stands in its row. */
function MissingRanks({ of: { missing, parts }, fate }: { of: Capture; fate: Fate }) {
  const held = new Set(parts.filter(of => of.bytes > 0).map(of => of.rank));
  const ranks = missing
    .filter(of => !held.has(of.rank))
    .map(of => `rank ${of.rank} (${stateOf(fate(of))[2]}${of.detail ? `: ${of.detail}` : ''})`);
  if (ranks.length === 0) return null;
  return <p class="error">{`Missing: ${ranks.join(', ')}`}</p>;
}

// --- ranks -------------------------------------------------------------------

/** Ranks that are listed at first. */
const PARTS_SHOWN = 16;

const Parts = ({ capture, unit, fate }: { capture: Capture; unit: string; fate: Fate }) => (
  <Table
    name="parts"
    first={PARTS_SHOWN}
    isDense
    caption="Ranks of the capture"
    empty="no part has come in yet"
    rows={capture.parts}
    columns={[
      { title: 'rank', cell: of => String(of.rank), sort: of => of.rank },
      { title: 'node', cell: of => of.node, sort: of => of.node },
      { title: 'outcome', cell: of => <Outcome of={of} fate={fate} />, sort: of => of.outcome },
      { title: unit, cell: of => whole(of.step), number: true, sort: of => of.step },
      { title: 'ended', cell: of => <Time at={of.wall_ns} />, sort: of => of.wall_ns },
      ...(capture.parts.some(of => of.wall_error_ns > 0)
        ? [
            {
              title: '± µs',
              cell: (of: Part) => whole(Number((of.wall_error_ns / 1e3).toPrecision(2))),
              number: true,
              sort: (of: Part) => of.wall_error_ns,
            },
          ]
        : []),
      // A report holds no files.
      ...(report
        ? []
        : [
            {
              title: 'download',
              cell: (of: Part) => downloads(capture.id, of),
              sort: (of: Part) => of.bytes,
            },
          ]),
      { title: 'detail', cell: of => of.detail || '–' },
    ]}
  />
);

const Outcome = ({ of, fate }: { of: Part; fate: Fate }) => (
  <>
    <Chip name={fate(of)} />
    {of.dead && of.outcome !== 'dead' ? <Chip name={fate({ ...of, outcome: 'dead' })} /> : null}
  </>
);

/** The files of a rank. */
function downloads(capture: string, { rank, bytes: size }: Part) {
  if (size === 0) return '–';
  const about = {
    pickle: 'opens in pytorch.org/memory_viz and in memtape analyze',
    snapshot: 'as it is stored: protobuf, compressed with zstd; opens in memtape show',
  };
  return (
    <>
      <a
        href={picklePath(capture, rank)}
        download
        title={about.pickle}
        aria-label={`PyTorch pickle of rank ${rank}`}
      >
        PyTorch pickle
      </a>
      {' · '}
      <a
        href={snapshotPath(capture, rank)}
        download
        title={about.snapshot}
        aria-label={`snapshot, ${bytes(size)}, of rank ${rank}`}
      >
        {`snapshot, ${bytes(size)}`}
      </a>
    </>
  );
}

// --- collectives -------------------------------------------------------------

function Standing({ of: { sentences, groups, unknown } }: { of: Collectives }) {
  const isSaid = (verdict: string) => sentences.some(sentence => sentence.endsWith(verdict));
  const unsaid = groups.filter(of => !isSaid(of.sentence));
  const why = unknown
    .filter(of => !isSaid(of.why))
    .map(of => `${of.ranks.length === 1 ? 'rank' : 'ranks'} ${of.ranks.join(', ')}: ${of.why}`);
  return (
    <details id="collectives" open={sentences.length > 0}>
      <summary>Collectives</summary>
      <List
        of={sentences}
        empty={
          groups.length ? 'all ranks stand at the same collectives' : 'no process group is known'
        }
      />
      {unsaid.length ? (
        <Table
          caption="Process groups"
          empty=""
          rows={unsaid}
          columns={[
            { title: 'group', cell: of => of.desc || of.name },
            { title: 'ranks', cell: of => whole(of.ranks.length), number: true },
            { title: 'verdict', cell: of => of.sentence },
            { title: 'furthest', cell: of => whole(of.furthest), number: true },
          ]}
        />
      ) : null}
      {why.length ? <Soft>{`Not known: ${why.join('; ')}`}</Soft> : null}
    </details>
  );
}

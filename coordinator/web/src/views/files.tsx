// Snapshot files in a report: what `memtape analyze --json` prints, job by job.

import { useMemo } from 'preact/hooks';

import { useAnswer } from '../answers';
import { MemoryChart } from '../charts/memory';
import { Chip, Facts, Frame, List, Section, Size, Soft } from '../parts/basics';
import { Alternatives } from '../parts/evidence';
import { Missing } from '../parts/missing';
import { Table, type Column } from '../parts/table';
import { useTitle } from '../title';
import type { Alternative, Frame as FrameOf, Series } from '../types';
import { isKnown, percent, whole } from '../units';
import { lineOf, spaced } from '../words';

const ROWS_SHOWN_MAX = 64;
const PEERS_DRAWN_MAX = 63;

// --- what `memtape analyze --json` prints ------------------------------------

interface Files {
  /** One for each job. */
  sentences: string[];
  analyses: (Analysis | { jobs: Analysis[] }) & { left_out: { path: string; why: string }[] };
}

interface Analysis {
  /** Where there are several. */
  job?: string;
  rank: number;
  verdict: Verdict | null;
  lines: HeldLine[];
  peak: { rank: number; lines: HeldLine[] } | null;
  /** Of each file, in the order of `files`. */
  ranks: RankOfFile[];
  files: { path: string; rank: number }[];
  settings: Record<string, string>;
  notes: string[];
}

/** Files that allow no verdict have only the first two. */
interface Verdict {
  class: string;
  advice: string;
  confidence?: number;
  rank?: number;
  device?: number;
  scope?: string;
  culprit?: FrameOf | null;
  bytes?: number;
  blocks?: number;
  bytes_per_step?: number | null;
  saves_bytes?: number | null;
  evidence?: string[];
  against?: string[];
  alternatives?: Alternative[];
  stack?: FrameOf[];
}

interface HeldLine {
  frame: FrameOf;
  kind: string;
  bytes: number;
  others_bytes: number | null;
  blocks: number;
  grown: number | null;
}

interface RankOfFile {
  rank: number;
  allocated: number;
  peak: number | null;
  reserved: number;
  fragmentation?: { split_free: number };
  trace?: {
    steps_ended: number;
    is_whole: boolean;
    floors: number[];
    peaks: number[];
    reserved: number[];
  };
}

// --- the view ----------------------------------------------------------------

export function FilesView() {
  const { data, error } = useAnswer<Files>('analyses', 0);
  useTitle(data?.sentences[0] ?? '');
  if (!data) return <Missing view="files" id="" error={error} />;
  const { sentences, analyses } = data;
  const jobs = 'jobs' in analyses ? analyses.jobs : [analyses];
  return (
    <>
      {jobs.map((of, index) => (
        <Job of={of} sentence={sentences[index]} />
      ))}
      <Section title="Left out">
        <List of={analyses.left_out.map(file => file.why)} empty="no file" />
      </Section>
    </>
  );
}

function Job({ of, sentence }: { of: Analysis; sentence: string }) {
  const { job, rank, verdict, lines, peak } = of;
  const settings = Object.entries(of.settings).map(([name, value]) => `${name} = ${value}`);
  return (
    <article>
      {job ? <p>{`job ${job}`}</p> : null}
      <h1>{sentence}</h1>
      {verdict ? <Answers of={verdict} /> : null}
      <Steps of={of} />
      {verdict ? <Reasons of={verdict} /> : null}
      <Section title={`Lines that hold the memory of rank ${rank}`}>
        <HeldLines caption={`Lines of rank ${rank}`} lines={lines} />
      </Section>
      {peak ? (
        <Section title={`Lines at the peak of rank ${peak.rank}`}>
          <HeldLines caption={`Lines at the peak of rank ${peak.rank}`} lines={peak.lines} />
        </Section>
      ) : null}
      <Section title="Files">
        <FileTable of={of} />
      </Section>
      <Section title="Notes">
        <List of={[...of.notes, ...settings]} empty="none" />
      </Section>
    </article>
  );
}

function Answers({ of }: { of: Verdict }) {
  const { confidence = 0, rank, culprit, bytes, blocks, bytes_per_step: growth } = of;
  // A confidence that would be shown as 0 % is not shown.
  const sure = confidence >= 0.005 ? ` ${percent(confidence)} sure` : '';
  return (
    <Facts
      of={[
        [
          'class',
          <>
            <Chip name={of.class} />
            {sure}
          </>,
        ],
        rank === undefined
          ? null
          : ['rank', `${rank}, device ${of.device} (${spaced(of.scope ?? '')})`],
        culprit ? ['line', <Frame of={culprit} tone="culprit" />] : null,
        culprit ? ['holds', <><Size of={bytes} />{` in ${whole(blocks)} blocks`}</>] : null,
        growth ? ['growth', <><Size of={growth} signed /> a step</>] : null,
        of.advice ? ['try first', of.advice] : null,
        of.saves_bytes ? ['saves', <Size of={of.saves_bytes} />] : null,
      ]}
    />
  );
}

function Reasons({ of: { stack, evidence, against, alternatives } }: { of: Verdict }) {
  return (
    <>
      {stack?.length ? (
        <Section title="Stack, innermost frame first">
          <pre tabIndex={0}>
            {stack.map(frame => `${where(frame)}  ${frame.function}`).join('\n')}
          </pre>
        </Section>
      ) : null}
      {evidence ? (
        <>
          <Section title="Evidence for it">
            <List of={evidence} empty="none" />
          </Section>
          <Section title="Evidence against it">
            <List of={against} empty="none" />
          </Section>
        </>
      ) : null}
      {alternatives?.length ? (
        <Section title="Other classes">
          <Alternatives alternatives={alternatives} />
        </Section>
      ) : null}
    </>
  );
}

const where = (frame: FrameOf): string =>
  lineOf({ ...frame, file: frame.file || '?' }).replace(/:0$/, ':?');

// --- levels of the steps -----------------------------------------------------

function Steps({ of }: { of: Analysis }) {
  const { data, peers } = useMemo(() => levelsOf(of), [of]);
  if (!data || data.steps.length < 2) return null;
  return (
    <MemoryChart
      rank={of.rank}
      data={data}
      account="allocated"
      peers={peers}
      unit="step"
      captures={[]}
      limit={{ bytes: null, name: 'the device' }}
      end={null}
    />
  );
}

/** The levels of the rank and of its peers, each by its newest file. */
function levelsOf({ rank, ranks }: Analysis): { data: Series | null; peers: Series[] } {
  const newest = new Map(ranks.map(of => [of.rank, of]));
  const own = newest.get(rank);
  const peers = [...newest.values()].filter(of => of !== own).slice(0, PEERS_DRAWN_MAX);
  return { data: own ? levels(own) : null, peers: peers.map(levels) };
}

function levels({ trace }: RankOfFile): Series {
  // A trace that began after the process shows only a part of its first step.
  const first = trace?.is_whole ? 0 : 1;
  const from = (values: number[] | undefined) => values?.slice(first) ?? [];
  const floors = from(trace?.floors);
  return {
    steps: floors.map((_, index) => first + index + 1),
    step_min_bytes: floors,
    peak_bytes: from(trace?.peaks),
    reserved_bytes: from(trace?.reserved),
    steps_left_out: 0,
    account: null,
  };
}

// --- tables ------------------------------------------------------------------

function HeldLines({ caption, lines }: { caption: string; lines: HeldLine[] }) {
  const others: Column<HeldLine> = {
    title: 'on the others',
    cell: of => <Size of={of.others_bytes} />,
    number: true,
  };
  return (
    <>
      <Table
        caption={caption}
        empty="none is known"
        rows={lines.slice(0, ROWS_SHOWN_MAX)}
        columns={[
          { title: 'bytes', cell: of => <Size of={of.bytes} />, number: true },
          ...(lines.some(of => isKnown(of.others_bytes)) ? [others] : []),
          { title: 'blocks', cell: of => whole(of.blocks), number: true },
          { title: 'grown', cell: of => <Size of={of.grown} signed />, number: true },
          { title: 'line', cell: line },
        ]}
      />
      <Cut total={lines.length} />
    </>
  );
}

/** Memory without a frame has a kind. */
const line = ({ frame, kind }: HeldLine) =>
  frame.file || frame.function ? <Frame of={frame} /> : spaced(kind);

function FileTable({ of: { files, ranks } }: { of: Analysis }) {
  const rows = files.map((file, index) => ({ ...file, of: ranks[index] }));
  return (
    <>
      <Table
        caption="Files"
        empty="none"
        rows={rows.slice(0, ROWS_SHOWN_MAX)}
        columns={[
          { title: 'rank', cell: row => row.rank, number: true },
          { title: 'allocated', cell: row => <Size of={row.of.allocated} />, number: true },
          { title: 'peak', cell: row => <Size of={row.of.peak} />, number: true },
          { title: 'reserved', cell: row => <Size of={row.of.reserved} />, number: true },
          {
            title: 'inactive split',
            cell: row => <Size of={row.of.fragmentation?.split_free} />,
            number: true,
          },
          { title: 'steps', cell: row => whole(row.of.trace?.steps_ended), number: true },
          { title: 'file', cell: row => row.path },
        ]}
      />
      <Cut total={files.length} />
    </>
  );
}

const Cut = ({ total }: { total: number }) =>
  total > ROWS_SHOWN_MAX ? (
    <Soft>{`${ROWS_SHOWN_MAX} of ${whole(total)}; memtape analyze --all lists all`}</Soft>
  ) : null;

// Kept in a range of steps: what a rank allocated in it and had at its end, by line and as a flame
// graph, beside the median of its peers.
//
// A capture has all blocks that are alive at the end of its step, each with the step that allocated
// it. So the answer is exact for a capture at the end of the range. With a later capture it is what
// is still alive then; the panel says so, and can ask for a capture at the end of the range.

import { useMemo, useRef, useState } from 'preact/hooks';

import { look, type Span } from '../address';
import { useAnswer } from '../answers';
import { NotFound, paths, report, requestCapture } from '../api';
import { baselineIn } from '../baseline';
import { mayCapture } from '../captures';
import { FlameGraph } from '../charts/flame_graph';
import { memtape } from '../terminal';
import type { Capture, Jobs, Kept, KeptLine } from '../types';
import { bytes, plural, rangeWords, whole } from '../units';
import { Command, Section, Size, Soft, Stack } from './basics';
import { Failed, FailedLater, HeldAt, heldIn, notShown, timeOf } from './held_at';
import { Link } from './link';
import { NotHeld } from './missing';
import { Table } from './table';

interface KeptOf {
  job: string;
  attempt: number;
  rank: number;
  steps: Span;
  /** Captures of the attempt. */
  captures: Capture[];
  unit: string;
}

export function KeptInRange({ job, attempt, rank, steps, captures, unit }: KeptOf) {
  const capture = captureFor(captures, steps);
  const isMissing = capture?.step !== steps.to && !report;
  const jobs = useAnswer<Jobs>(isMissing ? paths.jobs : null).data?.jobs;
  const known = jobs?.find(of => of.job === job);
  const range = rangeWords(unit, steps);
  const isOnTapes = mayCapture(known, attempt, steps.to);
  return (
    <Section title={`GPU memory allocated by rank ${rank} in ${range}, and kept`}>
      <p class="pills">
        <button type="button" class="pill" onClick={() => look({ steps: null })}>
          {`${range} ✕`}
        </button>
        {isMissing && isOnTapes ? (
          <CaptureAt job={job} step={steps.to} unit={unit} />
        ) : null}
      </p>
      {capture ? (
        <KeptIn capture={capture} rank={rank} steps={steps} unit={unit} />
      ) : (
        <Soft>
          {`No capture of this attempt is at or after ${unit} ${whole(steps.to)}: `}
          {isOnTapes || !known
            ? 'what was alive then is not known yet.'
            : 'what was alive then is not known, and no tape shows it any more.'}
        </Soft>
      )}
    </Section>
  );
}

/** The capture at the end of the range, or the next one after it. */
export function captureFor(captures: Capture[], steps: Span): Capture | null {
  const later = captures.filter(
    of => of.step !== null && of.step >= steps.to && of.state !== 'collecting',
  );
  return later.reduce<Capture | null>(
    (first, of) => (first && first.step! <= of.step! ? first : of),
    null,
  );
}

/** Asks for a capture at the end of a step; it is refused where no tape has the step. */
function CaptureAt({ job, step, unit }: { job: string; step: number; unit: string }) {
  const [said, setSaid] = useState('');
  const ask = () => {
    setSaid('requested…');
    requestCapture(job, step).then(
      id => setSaid(`capture ${id} is being collected`),
      (error: Error) => setSaid(error.message),
    );
  };
  return (
    <>
      <button type="button" onClick={ask}>
        {`Capture all ranks at the end of ${unit} ${whole(step)}`}
      </button>
      <span role="status">{said}</span>
    </>
  );
}

interface KeptInOf {
  capture: Capture;
  rank: number;
  steps: Span | null;
  unit: string;
}

/** The answer of one capture; without steps all that is alive in it, at a time that is chosen. */
export function KeptIn({ capture, rank, steps, unit }: KeptInOf) {
  const [isAgainstPeers, setAgainstPeers] = useState(true);
  const other = baselineIn();
  const baseline =
    other?.kind === 'capture' && other.id !== capture.id && !report ? other.id : null;
  const at = report || steps ? null : heldIn();
  const path = paths.kept(capture.id, rank, steps, baseline, at);
  const { data: answer, error } = useAnswer<Kept>(path, 0);
  // While another range of steps is counted, the last one stays.
  const last = useRef<Kept | null>(null);
  if (answer) last.current = answer;
  const isLast = last.current?.capture === capture.id && last.current.rank === rank;
  const data = answer ?? (isLast ? last.current : null);
  const stacks = useMemo(
    () => data?.stacks.map(of => ({ ...of, peer_bytes: of.peer_bytes ?? 0 })) ?? [],
    [data],
  );
  if (error && report) return <NotHeld />;
  if (error) {
    const isUnknown = at !== null && error instanceof NotFound;
    const why = isUnknown ? notShown(at, rank, unit, baseline) : error.message;
    return (
      <>
        {at === null ? null : (
          <HeldAt at={at} rank={rank} hasFailed={at === 'failed_request'} unit={unit} />
        )}
        <p class="error">{why}</p>
      </>
    );
  }
  if (!data) return <Soft>counting…</Soft>;
  const hasOthers = isCompared(data);
  return (
    <>
      {steps ? null : (
        <HeldAt at={data.at} rank={rank} hasFailed={data.failed !== null} unit={unit} />
      )}
      {answer ? null : <Soft>counting… The figures below are those of the last choice.</Soft>}
      <p>
        <strong>{bytes(data.bytes)}</strong>
        {` of GPU memory in ${plural(data.blocks, 'block')} alive ${timeOf(data, unit)}`}
        {steps && data.step > steps.to
          ? `, ${plural(data.step - steps.to, unit)} after the range`
          : ''}
        {' ('}
        <Link view="capture" id={capture.id}>{capture.id}</Link>
        {')'}
        {hasOthers
          ? `; ${othersOf(data)}${peakOfOthers(data)}: ${bytes(data.peer_bytes)}`
          : '; no rank of the same role is in the capture'}
      </p>
      {data.at === 'failed_request' ? (
        <Failed failed={data.failed} />
      ) : (
        <FailedLater failed={data.failed} unit={unit} />
      )}
      {hasOthers ? (
        <label>
          <input
            type="checkbox"
            checked={isAgainstPeers}
            onChange={() => setAgainstPeers(!isAgainstPeers)}
          />
          {data.baseline
            ? ' colour by the difference from the baseline'
            : ' colour by the difference from the peers'}
        </label>
      ) : null}
      <FlameGraph
        frames={data.frames}
        stacks={stacks}
        isAgainstPeers={isAgainstPeers && hasOthers}
        whole={`rank ${rank}`}
        others={othersOf(data)}
      />
      <KeptLines kept={data} unit={unit} />
      <Notes of={data} />
      {report ? null : <Command line={command(data, steps, at)} />}
    </>
  );
}

/** Whether there is anything beside the rank: the baseline, or peers. */
const isCompared = (of: Kept): boolean => of.baseline !== null || of.peers.length > 0;

const othersOf = ({ baseline, peers }: Kept): string =>
  baseline === null ? `median of ${plural(peers.length, 'peer')}` : `the same rank in ${baseline}`;

/** A rank at its peak, or at a failed request, stands beside others at theirs. */
function peakOfOthers({ at, baseline }: Kept): string {
  if (at === 'step_end') return '';
  return baseline === null ? ', each at its peak' : ', at its peak there';
}

function command(of: Kept, steps: Span | null, chosen: string | null): string {
  const { capture: id, rank, baseline } = of;
  const at = chosen ?? (of.at === 'step_end' ? null : of.at);
  const time = at === null ? [] : ['--at', at];
  const range = steps ? ['--from', steps.from, '--to', steps.to] : time;
  const beside = baseline === null ? [] : ['--baseline', baseline];
  return memtape('lines', id, '--rank', rank, ...range, ...beside);
}

/** What one answer leaves out, and which peers were not compared. */
function Notes({ of }: { of: Kept }) {
  const rest = ({ count, bytes: size }: Kept['other_lines'], noun: string) =>
    count ? `${plural(count, noun)} not shown hold ${bytes(size)}` : '';
  const notes = [
    rest(of.other_lines, 'line'),
    rest(of.other_stacks, 'stack'),
    of.unrecorded_bytes
      ? `${bytes(of.unrecorded_bytes)} more are ${
          of.at === 'failed_request'
            ? 'of lines that held less, or are not known'
            : 'in no recorded block: the tape was full'
        }`
      : '',
    of.peers_left_out
      ? `${plural(of.peers_left_out, 'further rank')} of the role not compared`
      : '',
    ...of.missing_peers.map(peer => `rank ${peer.rank} not compared: ${peer.why}`),
  ].filter(Boolean);
  return notes.length ? <Soft>{notes.join('; ')}</Soft> : null;
}

/** Beyond the median peer. */
const more = ({ bytes: own, peer_bytes: peers }: KeptLine) => own - (peers ?? 0);

function KeptLines({ kept, unit }: { kept: Kept; unit: string }) {
  const others = kept.baseline === null ? 'peers, median' : 'baseline';
  return (
    <>
      <Table
        name="kept"
        caption="Lines that keep memory"
        empty={
          kept.at === 'failed_request'
            ? 'no line is known'
            : `nothing that these ${unit}s allocated is alive`
        }
        rows={kept.lines}
        columns={[
          {
            title: 'line',
            cell: ({ frame }) => <Stack of={frame.file || frame.function ? [frame] : []} />,
          },
          {
            title: 'bytes',
            cell: line => <Size of={line.bytes} />,
            number: true,
            sort: line => line.bytes,
          },
          ...(isCompared(kept)
            ? [
                {
                  title: others,
                  cell: (line: KeptLine) => <Size of={line.peer_bytes} />,
                  number: true,
                  sort: (line: KeptLine) => line.peer_bytes,
                },
                {
                  title: 'difference',
                  cell: (line: KeptLine) => <Size of={more(line)} signed />,
                  number: true,
                  sort: (line: KeptLine) => more(line),
                },
              ]
            : []),
          {
            title: 'blocks',
            cell: line => whole(line.blocks),
            number: true,
            sort: line => line.blocks,
          },
          ...(kept.at === 'step_end'
            ? [
                {
                  title: `allocated in ${unit}s`,
                  cell: (line: KeptLine) =>
                    line.first_step === line.last_step
                      ? whole(line.first_step)
                      : `${whole(line.first_step)} to ${whole(line.last_step)}`,
                  number: true,
                },
              ]
            : []),
        ]}
      />
    </>
  );
}


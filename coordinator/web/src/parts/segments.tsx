// The segments of a rank in a capture: what of its memory is free and why it stays so, a map with a
// slider of steps, and the block that was pinned with its stack. A table has the same segments.

import type { ComponentChildren } from 'preact';
import { useMemo } from 'preact/hooks';

import { address, arrange, look } from '../address';
import { useAnswer } from '../answers';
import { paths, report } from '../api';
import { COLOURS, SegmentMap } from '../charts/segment_map';
import {
  addressOf,
  eventsOf,
  ORDERS,
  partAt,
  partsOf,
  rowsOf,
  slicesOf,
  tallyAt,
  type Part,
} from '../charts/segments';
import { disagreements, partWithStack, partWords, segmentWords, sourceWords } from '../segments';
import type { Capture, Segments } from '../types';
import { bytes, plural } from '../units';
import { Facts, Frame, List, Section, Size, Soft } from './basics';
import { FailedLater } from './held_at';
import { MapLegend } from './map_legend';
import { BlockTable, SegmentTable } from './segment_tables';
import { StepSlider, useStep } from './step_slider';

interface SegmentsOf {
  capture: Capture;
  rank: number;
  device: number | null;
  unit: string;
}

export function SegmentsOfRank({ capture, rank, device, unit }: SegmentsOf) {
  const { data, error } = useAnswer<Segments>(
    report ? null : paths.segments(capture.id, rank, device),
    0,
  );
  // A report holds no snapshot.
  if (report) return null;
  return (
    <Section title={`Segments of rank ${rank}`}>
      {data ? (
        <Known map={data} unit={unit} />
      ) : error ? (
        <p class="error">{error.message}</p>
      ) : (
        <Soft>asking the coordinator…</Soft>
      )}
    </Section>
  );
}

function Known({ map, unit }: { map: Segments; unit: string }) {
  const query = address.value.query;
  const order = ORDERS.find(name => name === query.get('map')) ?? 'size';
  const colours = COLOURS.find(name => name === query.get('colour')) ?? 'line';
  const isToScale = query.get('scale') === 'bytes';
  const parts = useMemo(() => partsOf(map), [map]);
  const alone = map.segments.findIndex(of => of.address === query.get('segment'));
  const rows = useMemo(
    () =>
      alone < 0 ? rowsOf(map, parts, order) : slicesOf(map.segments[alone], alone, parts[alone]),
    [map, parts, order, alone],
  );
  const events = useMemo(() => eventsOf(parts), [parts]);
  const [at, setAt] = useStep(Math.max(1, map.last_step));
  const tally = useMemo(() => tallyAt(parts, at), [parts, at]);
  const pinned = useMemo(
    () => partAt(map, parts, query.get('block') ?? ''),
    [map, parts, query.get('block')],
  );
  const pin = (part: Part | null) =>
    look({ block: part && addressOf(map.segments[part.segment], part.from) });
  if (map.segments.length === 0)
    return <Soft>PyTorch's allocator holds no segment on this device.</Soft>;
  return (
    <>
      <Sums of={map} />
      <FailedLater failed={map.failed} unit={unit} />
      <p class="pills">
        <Choice name="map" label="sorted by" values={ORDERS} value={order} />
        <Choice name="colour" label="coloured by" values={COLOURS} value={colours} />
        <Choice
          name="scale"
          label="rows"
          values={['full', 'bytes']}
          value={isToScale ? 'bytes' : 'full'}
          words={SCALES}
        />
        {map.devices.length > 1 ? (
          <Choice
            name="device"
            label="device"
            values={map.devices.map(String)}
            value={String(map.device)}
          />
        ) : null}
        {alone < 0 ? null : (
          <button type="button" class="pill" onClick={() => look({ segment: null })}>
            {`${segmentWords(map.segments[alone])} ✕`}
          </button>
        )}
      </p>
      <SegmentMap
        map={map}
        rows={rows}
        isToScale={isToScale && alone < 0}
        colours={colours}
        at={at}
        pinned={pinned}
        words={part => partWithStack(map, part, unit)}
        onPin={pin}
      />
      <MapLegend map={map} colours={colours} unit={unit} isPale={at < map.last_step} />
      <StepSlider
        at={at}
        last={map.last_step}
        events={events}
        tally={tally}
        unit={unit}
        onStep={setAt}
      />
      <Soft>
        {`The blocks are those of the capture, at ${unit} ${map.step}: `}
        {`a block that was freed before it is not shown at any ${unit}.`}
      </Soft>
      {pinned ? <Pinned map={map} part={pinned} unit={unit} onClose={() => pin(null)} /> : null}
      <details>
        <summary>{alone < 0 ? 'Segments as a table' : 'Blocks of the segment as a table'}</summary>
        {alone < 0 ? (
          <SegmentTable map={map} />
        ) : (
          <BlockTable map={map} segment={map.segments[alone]} parts={parts[alone]} unit={unit} />
        )}
      </details>
    </>
  );
}

const SCALES = { full: 'each over the whole width', bytes: 'as long as their bytes' };

interface ChoiceOf {
  /** Its name in the address; the first value stands in none. */
  name: string;
  label: string;
  values: readonly string[];
  value: string;
  words?: Record<string, string>;
}

function Choice({ name, label, values, value, words = {} }: ChoiceOf) {
  const choose = (event: Event) => {
    const chosen = (event.currentTarget as HTMLSelectElement).value;
    arrange({ [name]: chosen === values[0] ? null : chosen });
  };
  return (
    <label>
      {`${label} `}
      <select value={value} onChange={choose}>
        {values.map(of => (
          <option value={of}>{words[of] ?? of}</option>
        ))}
      </select>
    </label>
  );
}

/** What is allocated, what is free and why it stays so, and what does not agree. */
function Sums({ of }: { of: Segments }) {
  const { all } = of;
  const largest = of.largest_free_bytes;
  const facts: ([string, ComponentChildren] | null)[] = [
    all.pending_blocks
      ? [
          'pending free',
          <>
            <Size of={all.pending_bytes} />
            {` in ${plural(all.pending_blocks, 'block')}: freed, and still used by other streams`}
          </>,
        ]
      : null,
    of.split_bytes == null
      ? null
      : [
          'free in used segments',
          <>
            <Size of={of.split_bytes} />
            {': inactive splits, held by the blocks beside them'}
          </>,
        ],
    of.cached_bytes == null
      ? null
      : ['free as a whole', <><Size of={of.cached_bytes} />{': the allocator can give it back'}</>],
    largest == null ? null : ['largest free range', <Size of={largest} />],
  ];
  const notes = disagreements(of);
  return (
    <>
      <p>
        <strong>{bytes(all.allocated_bytes)}</strong>
        {` allocated in ${plural(all.allocated_blocks, 'block')}, of ${bytes(all.bytes)} in `}
        {`${plural(all.segments, 'segment')}${sourceWords(of)}`}
      </p>
      <Facts of={facts} />
      {notes.length ? <List of={notes} empty="" /> : null}
    </>
  );
}

interface PinnedOf {
  map: Segments;
  part: Part;
  unit: string;
  onClose: () => void;
}

/** The pinned block in words, with its stack, innermost frame first. */
function Pinned({ map, part, unit, onClose }: PinnedOf) {
  const segment = map.segments[part.segment];
  const stack = part.block?.stack == null ? null : map.stacks[part.block.stack];
  const frames = [...(stack?.frames ?? [])].reverse();
  const isAlone = address.value.query.get('segment') === segment.address;
  return (
    <section class="banner" aria-label="Pinned block">
      <p>{partWords(map, part, unit)}</p>
      <p class="soft">{`in ${segmentWords(segment)}, ${bytes(part.from)} from its start`}</p>
      {frames.length ? (
        <ol class="stack">
          {frames.map(frame => (
            <li>
              <Frame of={map.frames[frame]} tone={frame === stack!.line ? 'culprit' : ''} />
            </li>
          ))}
        </ol>
      ) : null}
      <p class="pills">
        {isAlone ? null : (
          <button type="button" onClick={() => look({ segment: segment.address })}>
            Show its segment alone
          </button>
        )}
        <button type="button" class="pill" onClick={onClose}>
          Unpin ✕
        </button>
      </p>
    </section>
  );
}

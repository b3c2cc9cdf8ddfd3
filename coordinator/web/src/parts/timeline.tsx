// What happened in an attempt, newest first: incidents, captures, decisions and their verdicts,
// ends of ranks, and what people did and wrote.

import { stepsIn } from '../address';
import { plural, whole } from '../units';
import { events, type Event, type History } from '../words';
import { Soft, Time } from './basics';
import { Link } from './link';

const EVENTS_SHOWN_MAX = 50;

/** What happened; the events of the steps that are looked at are marked. */
export function Timeline({ of, unit }: { of: History; unit: string }) {
  const found = events(of);
  if (found.length === 0) return <Soft>nothing has happened yet</Soft>;
  const more = found.length - EVENTS_SHOWN_MAX;
  return (
    <>
      <ol class="timeline">
        {found.slice(0, EVENTS_SHOWN_MAX).map(event => (
          <Row event={event} unit={unit} />
        ))}
      </ol>
      {more > 0 ? <Soft>{`${plural(more, 'earlier event')} not shown`}</Soft> : null}
    </>
  );
}

function Row({ event, unit }: { event: Event; unit: string }) {
  const { wall_ns: at, step, symbol, text, note, view, id } = event;
  return (
    <li class={isLookedAt(step) ? 'looked-at' : undefined}>
      <span class="when">
        {at ? <Time at={at} /> : null}
        {step ? ` ${unit} ${whole(step)}` : ''}
      </span>
      <span class="symbol" aria-hidden="true">
        {symbol}
      </span>
      <div>
        {view ? <Link view={view} id={id}>{text}</Link> : text}
        {note === undefined ? null : <p class="note">{note}</p>}
      </div>
    </li>
  );
}

function isLookedAt(step: number | null): boolean {
  const steps = stepsIn();
  return steps !== null && step !== null && step >= steps.from && step <= steps.to;
}

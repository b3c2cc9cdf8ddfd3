// What a person may do about an incident: acknowledge, silence and assign it, and write a note.
//
// The coordinator decides who may, and what it takes; its reason is shown where it refuses. A
// report has no form.

import { useRef, useState } from 'preact/hooks';

import { put } from '../answers';
import { changeThread, paths } from '../api';
import { isSilenced } from '../thread';
import type { Incident, ThreadRequest } from '../types';
import { unitOf, whole } from '../units';
import { Soft } from './basics';

/** Carries a request out; true where the coordinator did it. */
type Send = (request: ThreadRequest, done: string) => Promise<boolean>;

export function ThreadForm({ incident }: { incident: Incident }) {
  const { id, thread } = incident;
  const [said, setSaid] = useState('');
  const isAsking = useRef(false);
  const send: Send = async (request, done) => {
    if (isAsking.current) return false;
    isAsking.current = true;
    setSaid('sending…');
    try {
      put(paths.incident(id), await changeThread(id, request));
      setSaid(done);
      return true;
    } catch (error) {
      setSaid(error instanceof Error ? error.message : String(error));
      return false;
    } finally {
      isAsking.current = false;
    }
  };
  return (
    <div class="thread-form">
      {thread.may_change ? null : (
        <Soft>
          You may see this incident, and not act on it: that takes the role operator of its job,
          which an admin gives.
        </Soft>
      )}
      <fieldset disabled={!thread.may_change}>
        <legend class="skip">Act on this incident</legend>
        <Acknowledge incident={incident} send={send} />
        {incident.state === 'open' ? <SilenceForm incident={incident} send={send} /> : null}
        <Assign incident={incident} send={send} />
        <NoteForm send={send} />
      </fieldset>
      <p role="status">{said}</p>
    </div>
  );
}

interface PartOf {
  incident: Incident;
  send: Send;
}

function Acknowledge({ incident, send }: PartOf) {
  const isKnown = Boolean(incident.thread.acknowledged);
  const turn = () =>
    send({ acknowledge: !isKnown }, isKnown ? 'the acknowledgement is taken back' : 'acknowledged');
  return (
    <button type="button" onClick={turn}>
      {isKnown ? 'Take the acknowledgement back' : 'Acknowledge'}
    </button>
  );
}

const HOUR_MS = 3_600_000;
const FOR: [words: string, ms: number][] = [
  ['for 1 hour', HOUR_MS],
  ['for 4 hours', 4 * HOUR_MS],
  ['for 1 day', 24 * HOUR_MS],
  ['for 7 days', 7 * 24 * HOUR_MS],
];

function SilenceForm({ incident, send }: PartOf) {
  const [kind, setKind] = useState(String(HOUR_MS));
  const field = useRef<HTMLInputElement>(null);
  const unit = unitOf(incident);
  // A failure is at one step, and judges no further ones.
  const hasSteps = incident.layer !== 'process';
  const submit = (event: Event) => {
    event.preventDefault();
    send(silenceOf(kind, field.current?.value ?? ''), 'silenced');
  };
  return (
    <form onSubmit={submit}>
      <label>
        {'Raise no alert '}
        <select value={kind} onChange={event => setKind(event.currentTarget.value)}>
          {FOR.map(([words, ms]) => (
            <option value={String(ms)}>{words}</option>
          ))}
          <option value="time">until a time</option>
          {hasSteps ? <option value="step">{`until a ${unit}`}</option> : null}
        </select>
      </label>
      {kind === 'time' ? (
        <input
          type="datetime-local"
          ref={field}
          aria-label="Time at which the silence ends"
          required
        />
      ) : null}
      {kind === 'step' ? (
        <input
          type="number"
          ref={field}
          min={incident.last_step + 1}
          aria-label={`The ${unit} that ends the silence`}
          placeholder={`after ${whole(incident.last_step)}`}
          required
        />
      ) : null}
      <button type="submit">Silence</button>
      {isSilenced(incident) ? (
        <button type="button" onClick={() => send({ end_silence: true }, 'the silence is over')}>
          End the silence
        </button>
      ) : null}
    </form>
  );
}

/** A silence for a time from now, until a time, or until a step. */
function silenceOf(kind: string, value: string): ThreadRequest {
  if (kind === 'step') return { silence_until_step: Number(value) };
  const end = kind === 'time' ? new Date(value).getTime() : Date.now() + Number(kind);
  return { silence_until_wall_ns: Math.round(end) * 1e6 };
}

function Assign({ incident, send }: PartOf) {
  const { assignee } = incident.thread;
  const field = useRef<HTMLInputElement>(null);
  const submit = (event: Event) => {
    event.preventDefault();
    const name = field.current!.value.trim();
    send({ assignee: name }, name ? `assigned to ${name}` : 'assigned to no one');
  };
  // Another assignee is another field: what was typed into the old one is about the old one.
  return (
    <form onSubmit={submit}>
      <label>
        {'Assigned to '}
        <input
          key={assignee}
          ref={field}
          defaultValue={assignee}
          autocomplete="off"
          spellcheck={false}
        />
      </label>
      <button type="submit">Assign</button>
    </form>
  );
}

function NoteForm({ send }: { send: Send }) {
  const field = useRef<HTMLTextAreaElement>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    const text = field.current!;
    if (await send({ note: text.value }, 'the note is kept')) text.value = '';
  };
  return (
    <form class="note-form" onSubmit={submit}>
      <label>
        {'Note '}
        <textarea ref={field} rows={2} required />
      </label>
      <button type="submit">Add the note</button>
    </form>
  );
}

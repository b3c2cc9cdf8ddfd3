// What people did about an incident, in words. Pure: no document, no request.

import type { Incident, ThreadEntry } from './types';
import { moment, whole } from './units';

/** Is the incident open and silenced now? */
export const isSilenced = ({ state, thread }: Incident): boolean =>
  state === 'open' && thread.silence?.holds === true;

interface End {
  until_wall_ns?: number | null;
  until_step?: number | null;
}

/** The end of a silence: `until step 5,000`. */
export const until = (of: End, unit: string): string =>
  of.until_step != null
    ? `until ${unit} ${whole(of.until_step)}`
    : `until ${moment(of.until_wall_ns ?? 0)}`;

/** How an incident stands, a name and a value each, for a card and a heading. */
export function marks(incident: Incident, unit: string): [name: string, value: string][] {
  const { acknowledged, silence, assignee } = incident.thread;
  const found: [string, string][] = [];
  if (silence && isSilenced(incident))
    found.push(['silenced', `${until(silence, unit)} by ${silence.who}`]);
  if (acknowledged) found.push(['acknowledged by', acknowledged.who]);
  if (assignee) found.push(['assigned to', assignee]);
  return found;
}

/** Symbol and sentence of an entry; the text of a note stands apart. */
export function deed(of: ThreadEntry, unit: string): [symbol: string, text: string] {
  const { who, text } = of;
  switch (of.deed) {
    case 'acknowledged':
      return ['✓', `${who} acknowledged it`];
    case 'unacknowledged':
      return ['↶', `${who} took the acknowledgement back`];
    case 'silenced':
      return ['◌', `${who} silenced it ${until(of, unit)}`];
    case 'silence_ended':
      return ['●', `${who} ended the silence`];
    case 'silence_ended_by_urgency':
      return ['●', 'the silence ended: the incident became more urgent'];
    case 'silence_ended_by_class':
      return ['●', 'the silence ended: the incident got another class'];
    case 'silence_ended_by_incident':
      return ['●', 'the silence ended: another incident is reported in this one'];
    case 'assigned':
      return ['→', text ? `${who} assigned it to ${text}` : `${who} assigned it to no one`];
    case 'noted':
      return ['✎', `${who} wrote`];
    default:
      // Of a newer coordinator.
      return ['·', `${who} ${String(of.deed).replaceAll('_', ' ')} ${text}`];
  }
}

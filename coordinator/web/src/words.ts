// What states, incidents, captures and decisions are called. Pure: no document, no request.

import { deed } from './thread';
import type { Action, Capture, Frame, Incident, Rank } from './types';
import { isKnown, plural, unitOf, whole } from './units';

// Symbol, tone and word of every state that the API names.
const STATES: Record<string, [string, string, string]> = {
  warming: ['◔', '', 'warming up'],
  healthy: ['✓', 'good', 'healthy'],
  watching: ['◉', 'warn', 'watching'],
  growing: ['▲', 'bad', 'growing'],
  incident: ['▲', 'bad', 'incident'],
  ended: ['■', '', 'ended'],
  failed: ['✕', 'bad', 'failed'],
  unknown: ['?', 'warn', 'unknown'],
  disconnected: ['?', 'warn', 'disconnected'],
  silent: ['?', 'warn', 'silent'],
  stalled: ['‖', 'warn', 'stalled'],
  open: ['▲', 'bad', 'open'],
  closed: ['✓', '', 'closed'],
  page: ['▲', 'bad', 'page'],
  ticket: ['◆', 'warn', 'ticket'],
  notice: ['◇', '', 'notice'],
  complete: ['✓', 'good', 'complete'],
  partial: ['◑', 'warn', 'partial'],
  collecting: ['…', '', 'collecting'],
  aligned: ['✓', 'good', 'aligned'],
  late: ['↷', 'warn', 'late'],
  behind: ['↶', 'warn', 'behind'],
  dead: ['✕', 'bad', 'dead'],
  no_tape: ['∅', 'bad', 'no tape'],
  unreachable: ['?', 'bad', 'unreachable'],
  awaited: ['…', '', 'awaited'],
  exited: ['■', '', 'exited'],
  killed: ['✕', 'bad', 'killed'],
  'OOM killed': ['✕', 'bad', 'OOM killed'],
  connected: ['✓', 'good', 'connected'],
  holds: ['✓', 'bad', 'holds'],
  possible: ['?', 'warn', 'possible'],
  ruled_out: ['✕', '', 'ruled out'],
  silenced: ['◌', '', 'silenced'],
};

/** Symbol, tone and word of a state; a name of a newer coordinator stays readable. */
export const stateOf = (name: string): [string, string, string] =>
  STATES[name] ?? ['·', '', spaced(name)];

/** A name of the API as words. */
export const spaced = (name: string): string => name.replaceAll('_', ' ');

export const ATTEMPT =
  'one run of the job, by the number that its launcher counts: a restart begins the next attempt';

export const lineOf = (frame: Frame): string => `${frame.file}:${frame.line}`;

/** The same without folders: `train.py:36`. */
export const shortLineOf = ({ file, line }: Pick<Frame, 'file' | 'line'>): string =>
  `${file.split('/').at(-1)}:${line}`;

/** A rank that ended otherwise than by itself, or that ran out of memory. */
export const hasDied = (rank: Rank | null): boolean =>
  Boolean(rank?.end) && (rank!.end !== 'exited' || oomsOf(rank!) > 0);

export const oomsOf = (rank: Rank): number =>
  rank.devices.reduce((sum, device) => sum + device.ooms, 0);

/** The API's word for how the process of a rank ended; while it lives, its state. */
export const standing = ({ ended, state }: Rank): string => ended || state;

/** What became of a part of a capture; of a dead rank how it ended, where that is known. */
export const fateOf = ({ outcome }: { outcome: string }, rank: Rank | null): string =>
  outcome === 'dead' && rank?.end ? standing(rank) : outcome;

/** The words for ends that need more words in a sentence. */
const HOW: Record<string, string> = {
  killed: 'was killed',
  'OOM killed': 'was OOM killed',
  ended: 'ended without an orderly exit',
};

/** How the process of a rank ended; null while it lives. */
export function endOf(rank: Rank | null): string | null {
  if (!rank?.end) return null;
  const how = HOW[rank.ended] ?? standing(rank);
  const ooms = oomsOf(rank);
  const memory =
    ooms > 0 ? `ran out of device memory (${plural(ooms, 'request')} failed) and ` : '';
  const detail = rank.end !== 'exited' && rank.end_detail ? ` (${rank.end_detail})` : '';
  return `rank ${rank.rank} ${memory}${how} after ${unitOf(rank)} ${whole(rank.step)}${detail}`;
}

// The least urgent first.
const URGENCIES = ['notice', 'ticket', 'page'];

/** Place of an incident's urgency; the higher, the more urgent. */
export const urgencyRank = ({ urgency }: Incident): number => URGENCIES.indexOf(urgency);

/** Decisions in a row that say the same. */
export type Joined = Action & { times: number; first_wall_ns: number };

/** A decision with its reason; `times` in a row. */
export const decision = ({ decision: word, why, times }: Joined): string =>
  `${times > 1 ? `${times} × ` : ''}${why || spaced(word)}`;

/** By what an action is carried out. */
export const hook = (kind: string): string =>
  kind === 'none' ? 'no restart target is configured' : `by ${spaced(kind)}`;

/** What came of a decision. */
export function outcome(action: Action): string {
  const proof = action.verdict ? `${action.verdict}: ${action.proof}` : '';
  if (action.outcome) return [action.outcome, proof].filter(Boolean).join('; ');
  return action.decision === 'nothing' ? 'nothing to do' : 'not known yet';
}

const SAME: (keyof Action)[] = [
  'incident_id',
  'job',
  'node',
  'attempt',
  'kind',
  'decision',
  'dry_run',
  'why',
  'outcome',
  'verdict',
];

/** Decisions, newest first, where neighbours that say the same are one with `times`. */
export function joined(actions: Action[]): Joined[] {
  const rows: Joined[] = [];
  for (const action of actions) {
    const last = rows.at(-1);
    if (last && SAME.every(name => last[name] === action[name])) {
      last.times += 1;
      last.first_wall_ns = action.wall_ns;
    } else {
      rows.push({ ...action, times: 1, first_wall_ns: action.wall_ns });
    }
  }
  return rows;
}

/** What caused a capture. */
export const trigger = ({ trigger: name, trigger_rank: rank }: Capture): string =>
  `${spaced(name)}${isKnown(rank) ? ` of rank ${rank}` : ''}`;

// Conditions that hold, or happened.
const STEADY_LAYERS: Incident['layer'][] = ['process', 'progress', 'spread', 'retries', 'churn'];

/** Whether something grows in an incident. */
export const isGrowth = ({ layer }: Incident): boolean => !STEADY_LAYERS.includes(layer);

/** How an incident began. */
function beginning(of: Incident): string {
  const at = `${unitOf(of)} ${whole(of.onset_step)}`;
  if (of.layer === 'progress' && of.scope === 'all_ranks')
    return `the job stands still, rank ${of.rank} at ${at}`;
  if (of.layer === 'process') return `${spaced(of.class)} on rank ${of.rank} after ${at}`;
  const what = isGrowth(of) ? 'growth' : spaced(of.class);
  return `${what} on rank ${of.rank} detected, began at ${at}`;
}

/** How another incident than the one in view closed. */
function closing({ id, class: name, closed_reason: reason }: Incident, inView?: string): string {
  const text = inView ? reason.replaceAll(inView, 'this incident') : reason;
  return `${id} (${spaced(name)}) closed: ${text}`;
}

/** Something that happened in an attempt; with the view that shows more of it. */
export interface Event {
  wall_ns: number;
  step: number | null;
  symbol: string;
  text: string;
  /** A text of a person, of one or more lines. */
  note?: string;
  view?: 'incident' | 'capture';
  id?: string;
}

/** What an attempt consists of. */
export interface History {
  incidents: Incident[];
  captures: Capture[];
  ranks: Rank[];
  actions: Action[];
  /** Id of the incident in view: its rows do not name it. */
  inView?: string;
}

/** Events of an attempt, newest first. What people did is known of an incident that is asked for by
 * its id, and not of a list. */
export function events({ incidents, captures, ranks, actions, inView }: History): Event[] {
  const found: Event[] = [];
  for (const of of incidents) {
    const at = { view: 'incident' as const, id: of.id };
    const isInView = of.id === inView;
    found.push({
      ...at,
      wall_ns: of.opened_wall_ns,
      step: of.detected_step,
      symbol: '▲',
      text: isInView ? beginning(of) : `${of.id}: ${beginning(of)}`,
    });
    if (of.closed_wall_ns) {
      found.push({
        ...at,
        wall_ns: of.closed_wall_ns,
        step: of.last_step,
        symbol: '✓',
        text: isInView ? `closed: ${of.closed_reason}` : closing(of, inView),
      });
    }
    for (const entry of of.thread.entries) {
      const [symbol, text] = deed(entry, unitOf(of));
      const note = entry.deed === 'noted' ? entry.text : undefined;
      found.push({ wall_ns: entry.wall_ns, step: null, symbol, text, note });
    }
  }
  for (const of of captures) {
    found.push({
      view: 'capture',
      id: of.id,
      wall_ns: of.requested_wall_ns,
      step: of.step,
      symbol: '◎',
      text: `capture, ${trigger(of)}: ${of.aligned} of ${of.ranks} ranks aligned`,
    });
  }
  for (const of of ranks) {
    if (of.end) {
      found.push({
        wall_ns: of.step_wall_ns,
        step: of.step,
        symbol: hasDied(of) ? '✕' : '■',
        text: endOf(of) ?? '',
      });
    }
  }
  for (const of of joined(actions)) {
    found.push({ wall_ns: of.wall_ns, step: null, symbol: '↻', text: decision(of) });
  }
  for (const { verdict, verdict_wall_ns: at, proof } of actions) {
    if (isKnown(at))
      found.push({ wall_ns: at, step: null, symbol: '∴', text: `verdict: ${verdict}: ${proof}` });
  }
  // What has no time stands after all that happened up to its step.
  const upTo = (step: number) =>
    found.filter(of => of.wall_ns && of.step !== null && of.step <= step);
  const times = new Map(
    found.map(of => [
      of,
      of.wall_ns || Math.max(0, ...upTo(of.step ?? 0).map(known => known.wall_ns)),
    ]),
  );
  return found.sort(
    (a, b) => times.get(b)! - times.get(a)! || Number(a.wall_ns > 0) - Number(b.wall_ns > 0),
  );
}

// What states, forecasts, restarts and decisions are called. Pure: no document, no request.

import { bytes, duration, isKnown, percent, plural, unitOf, whole } from './units.js';

// Symbol, tone and word of every state that the API names.
const STATES = {
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
  oom_killed: ['✕', 'bad', 'killed for memory'],
  connected: ['✓', 'good', 'connected'],
  holds: ['✓', 'bad', 'holds'],
  possible: ['?', 'warn', 'possible'],
  ruled_out: ['✕', '', 'ruled out'],
};

/** Symbol, tone and word of a state; a name of a newer coordinator stays readable. */
export const state = name => STATES[name] ?? ['·', '', spaced(name)];

/** A name of the API as words. */
export const spaced = name => String(name).replaceAll('_', ' ');

export const lineOf = frame => `${frame.file}:${frame.line}`;

/** A rank that ended otherwise than by itself, or that ran out of memory. */
export const hasDied = rank => Boolean(rank?.end) && (rank.end !== 'exited' || oomsOf(rank) > 0);

export const oomsOf = rank => rank.devices.reduce((sum, device) => sum + device.ooms, 0);

/** How the process of a rank ended; null while it lives. */
export function endOf(rank) {
  if (!rank?.end) return null;
  const how =
    {
      exited: 'has exited',
      failed: 'has exited with an error',
      killed: 'was killed',
      oom_killed: "was killed by the kernel's OOM killer",
    }[rank.end] ?? 'has ended';
  const ooms = oomsOf(rank);
  const memory =
    ooms > 0 ? `ran out of device memory (${plural(ooms, 'request')} failed) and ` : '';
  const detail = rank.end !== 'exited' && rank.end_detail ? ` (${rank.end_detail})` : '';
  return `Rank ${rank.rank} ${memory}${how} after ${unitOf(rank)} ${whole(rank.step)}${detail}`;
}

/** How long there is: `{ text, detail }`. `rank` is the rank of the incident, where it is known. */
export function forecast(incident, rank) {
  const unit = unitOf(incident);
  if (incident.state !== 'open') return { text: 'over', detail: incident.closed_reason };
  if (rank?.end) return { text: 'the rank has ended', detail: `after ${unit} ${whole(rank.step)}` };
  if (!isKnown(incident.steps_to_oom)) return { text: 'not known', detail: whyNoForecast(rank) };
  const [low, high] = [incident.steps_to_oom_p10, incident.steps_to_oom_p90];
  const range =
    isKnown(low) && isKnown(high) ? `P10–P90: ${whole(low)} to ${plural(high, unit)}, ` : '';
  const time = isKnown(incident.seconds_to_oom) ? ` (${duration(incident.seconds_to_oom)})` : '';
  return {
    text: `about ${plural(incident.steps_to_oom, unit)}${time}`,
    detail: `${range}from ${unit} ${whole(rank?.step ?? incident.last_step)}`,
  };
}

function whyNoForecast(rank) {
  if (!rank) return 'no forecast for this growth';
  const hasSize = rank.devices.some(device => device.device_bytes > 0);
  return hasSize ? 'no forecast for this growth' : 'the size of the device is not known';
}

/** What stands for the line of an incident that names none. None is looked for where a process
 * ended by itself. */
export const unknownLine = ({ class: of, state }) =>
  of === 'died' ? 'none' : state === 'closed' ? 'not known' : 'not known yet';

/** What the evidence of an incident is: reasons for its class, or what was seen of a failure. */
export const evidenceTitle = incident =>
  incident.layer === 'process' ? 'What was seen' : 'Evidence for it';

/** The device of an incident; none of the host's memory and of steps. */
export const deviceOf = incident => (incident.names_device ? `device ${incident.device}` : '');

/** How much grows, in the unit of its layer: `[name, text]` for each fact. */
export function growth(incident) {
  const [soFar, count, unit] = [incident.grown_bytes, incident.grown_count, unitOf(incident)];
  if (incident.paused_since_step != null) {
    const grown = incident.layer === 'blocks' ? plural(count, 'tensor') : bytes(soFar);
    return [
      ['growth', `none since ${unit} ${whole(incident.paused_since_step)}`],
      ['grown', grown],
    ];
  }
  switch (incident.layer) {
    case 'blocks':
      return [
        ['growth', `+${plural(incident.count_per_step, 'tensor')} a ${unit}`],
        ['grown', plural(count, 'tensor')],
      ];
    case 'retries':
    case 'churn':
      return [['growth', `in ${whole(count)} of the last 64 ${unit}s`]];
    case 'progress':
      return [['behind its peers', plural(count, 'step')]];
    case 'spread':
      return [['above its peers', bytes(soFar)]];
    default:
      return [
        ['growth', `${bytes(incident.bytes_per_step, true)} a ${unit}`],
        ['grown', bytes(soFar)],
      ];
  }
}

/** What the urgencies of an incident mean, the least urgent first. */
const URGENCIES = {
  notice: 'a notice: it does not page',
  ticket: 'a ticket: to be looked at on the next working day',
  page: 'it pages',
};

/** Place of an incident's urgency; the higher, the more urgent. */
export const urgencyRank = ({ urgency }) => Object.keys(URGENCIES).indexOf(urgency);

/** How sure the class is: `{ text, detail }`. */
export function confidence(incident) {
  const detail = URGENCIES[incident.urgency] ?? '';
  if (incident.class === 'unknown' || !(incident.confidence > 0)) {
    return { text: 'no diagnosis yet', detail };
  }
  return { text: `${percent(incident.confidence)} ${spaced(incident.class)}`, detail };
}

/** Whether a restart helps: `{ text, detail }`. `from` is where its figures are from. */
export function restart({ restart: of, clock }, from) {
  const unit = unitOf({ clock });
  const text = of.helps === true ? 'yes' : of.helps === false ? 'no' : 'not known';
  const facts = [];
  if (isKnown(of.freed_bytes)) facts.push(`gives ${bytes(of.freed_bytes)} back${from}`);
  if (isKnown(of.lasts_steps)) facts.push(`in use again after ${plural(of.lasts_steps, unit)}`);
  if (isKnown(of.ends_after_steps)) {
    facts.push(`out of memory again after ${plural(of.ends_after_steps, unit)}`);
  }
  return { text, detail: facts.join('; ') || of.why };
}

/** What the advice saves; empty where that is not known. */
export function saving({ remedy }, from) {
  const guess = remedy.is_guess ? 'a guess: the cause is not proven' : '';
  const saved = isKnown(remedy.saves_bytes) ? `saves ${bytes(remedy.saves_bytes)}${from}` : '';
  return [saved, guess].filter(Boolean).join('; ');
}

/** A decision with its reason; `times` in a row. */
export const decision = ({ decision: word, why, times }) =>
  `${times > 1 ? `${times} × ` : ''}${why || spaced(word)}`;

/** By what an action is carried out. */
export const hook = kind =>
  ({ none: 'no restart target is configured' })[kind] ?? `by ${spaced(kind)}`;

/** What came of a decision. */
export function outcome(action) {
  const proof = action.verdict ? `${action.verdict}: ${action.proof}` : '';
  if (action.outcome) return [action.outcome, proof].filter(Boolean).join('; ');
  return action.decision === 'nothing' ? 'nothing to do' : 'not known yet';
}

const SAME = [
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
export function joined(actions) {
  const rows = [];
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
export const trigger = ({ trigger: name, trigger_rank: rank }) =>
  `${{ oom: 'out of memory' }[name] ?? spaced(name)}${isKnown(rank) ? ` of rank ${rank}` : ''}`;

/** How an incident began. */
function beginning(of) {
  const at = `${unitOf(of)} ${whole(of.onset_step)}`;
  if (of.layer === 'progress' && of.scope === 'all_ranks')
    return `the job stands still, rank ${of.rank} at ${at}`;
  if (of.layer === 'process') return `${spaced(of.class)} on rank ${of.rank} after ${at}`;
  return `growth on rank ${of.rank} detected, began at ${at}`;
}

/** Events of an attempt, newest first: `{ wall_ns, step, symbol, text, view, id }`. */
export function events({ incidents, captures, ranks, actions }) {
  const found = [];
  for (const of of incidents) {
    const at = { view: 'incident', id: of.id };
    found.push({
      ...at,
      wall_ns: of.opened_wall_ns,
      step: of.detected_step,
      symbol: '▲',
      text: beginning(of),
    });
    if (of.closed_wall_ns) {
      found.push({
        ...at,
        wall_ns: of.closed_wall_ns,
        step: of.last_step,
        symbol: '✓',
        text: `closed: ${of.closed_reason}`,
      });
    }
  }
  for (const of of captures) {
    found.push({
      view: 'capture',
      id: of.id,
      wall_ns: of.requested_wall_ns,
      step: of.step,
      symbol: '◎',
      text: `capture, ${trigger(of)}: ${of.aligned} of ${of.ranks} ranks`,
    });
  }
  for (const of of ranks) {
    if (of.end) {
      found.push({
        wall_ns: of.step_wall_ns,
        step: of.step,
        symbol: hasDied(of) ? '✕' : '■',
        text: endOf(of),
      });
    }
  }
  for (const of of joined(actions)) {
    found.push({ wall_ns: of.wall_ns, step: null, symbol: '↻', text: decision(of) });
  }
  return found.sort((a, b) => b.wall_ns - a.wall_ns);
}

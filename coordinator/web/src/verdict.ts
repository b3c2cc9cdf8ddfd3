// The answers of an incident: how long, which line, leak or just big, whether a restart helps. Where
// there is no answer, they say why. Pure: no document, no request, no clock.

import { isSilenced } from './thread';
import type { Incident, Rank } from './types';
import { about, bytes, duration, isKnown, percent, plural, unitOf, whole } from './units';
import { lineOf, spaced } from './words';

/** An answer, and what is said with it. */
export interface Said {
  text: string;
  detail: string;
}

/** How long there is. */
export interface Horizon extends Said {
  title: string;
  /** The time that the text is about, in nanoseconds of Unix time; null where it names none. */
  since: number | null;
}

const HOST_LAYERS: Incident['layer'][] = ['host', 'pinned', 'shared', 'workers'];

/** Whether memory of the host is what grows. */
export const isOfHost = ({ layer }: Incident): boolean => HOST_LAYERS.includes(layer);

/** How long there is. `rank` is the rank of the incident, where it is known. */
export function howLong(incident: Incident, rank: Rank | null): Horizon {
  const title = isOfHost(incident) ? 'Out of host memory in' : 'Out of memory in';
  const said = (text: string, detail: string) => ({ title: 'How long', text, detail, since: null });
  const unit = unitOf(incident);
  const newest = `${unit} ${whole(rank?.step ?? incident.last_step)}`;
  const seen = `judged until ${unit} ${whole(incident.last_step)}`;
  if (incident.state !== 'open') return said('over', seen);
  if (incident.layer === 'process') return said('it has happened', aftermath(rank, newest));
  if (rank?.end) return said('the rank has ended', `after ${newest}`);
  if (isKnown(incident.steps_to_oom)) return { title, ...forecast(incident, newest), since: null };
  switch (incident.layer) {
    case 'progress':
      return {
        title: 'Stands still',
        text: rank ? 'last step' : 'since',
        detail: `after ${newest}`,
        since: rank?.step_wall_ns ?? incident.opened_wall_ns,
      };
    case 'spread':
      return said('no end in sight', 'the distance to the peers stays; it does not grow');
    case 'retries':
    case 'churn':
      return said('no end in sight', `it recurs from ${unit} to ${unit}; nothing grows`);
    default:
      return { ...said('not known', whyNoForecast(incident, rank)), title };
  }
}

function aftermath(rank: Rank | null, newest: string): string {
  if (!rank) return `after ${newest}`;
  return rank.end ? `the rank ended after ${newest}` : `the rank goes on, now at ${newest}`;
}

function forecast(incident: Incident, newest: string): Said {
  const unit = unitOf(incident);
  const [low, middle, high] = [
    incident.steps_to_oom_p10,
    incident.steps_to_oom ?? 0,
    incident.steps_to_oom_p90,
  ];
  const range =
    isKnown(low) && isKnown(high)
      ? `${about(low, Math.floor)} to ${about(high, Math.ceil)} (P10 to P90), `
      : '';
  const time = isKnown(incident.seconds_to_oom) ? ` (${duration(incident.seconds_to_oom)})` : '';
  return {
    text: `about ${about(middle)} ${middle === 1 ? unit : `${unit}s`}${time}`,
    detail: `${range}from ${newest}`,
  };
}

function whyNoForecast(incident: Incident, rank: Rank | null): string {
  if (isKnown(incident.paused_since_step)) return 'the growth pauses';
  if (rank && incident.names_device && !rank.devices.some(device => device.device_bytes > 0)) {
    return 'the size of the device is not known';
  }
  return 'no forecast for this growth';
}

// --- which line ---------------------------------------------------------------

type Why = Partial<Record<Incident['class'], string>>;

// Why no line is to blame.
const LINELESS: Why = {
  died: 'the end of a process has no line',
  fragmentation: 'no tensor uses this memory; the evidence says what holds its segments',
  compile_pools: 'the pools belong to captured CUDA graphs, not to a line',
  imbalance: 'the rank has more work as a whole, and no line of it stands out',
  desynchronised: 'memory is not to blame; the capture shows the collective',
};

// Why the line is not known.
const UNRECORDED: Why = {
  out_of_memory: 'the request that failed has no stack',
  host: 'only CPU tensors and pinned memory are recorded with their lines',
  non_torch: 'no recorded call took it, as with NCCL or another process',
  telemetry: 'too little was recorded',
};

/** Whether no line is to blame for incidents of this class. */
export const isLineless = (incident: Incident): boolean =>
  !incident.culprit && LINELESS[incident.class] !== undefined;

/** What stands for the line of an incident that names none, and why there is none. */
export function noLine(incident: Incident): Said {
  const none = LINELESS[incident.class];
  if (none) return { text: 'none', detail: none };
  const unrecorded = UNRECORDED[incident.class];
  if (unrecorded) return { text: 'not known', detail: unrecorded };
  if (incident.capture_id) {
    return { text: 'not known', detail: 'the stacks in the capture do not explain it' };
  }
  return incident.state === 'open'
    ? { text: 'not known yet', detail: 'the capture that shows it is not in' }
    : { text: 'not known', detail: 'it was over before a capture was in' };
}

/** What the line of an incident has to do with it. */
export function aboutLine(incident: Incident): string {
  const { culprit, class: of, layer, stack, explained_ratio: ratio } = incident;
  if (!culprit) return '';
  if (of === 'out_of_memory') {
    const isAsking = stack.some(frame => lineOf(frame) === lineOf(culprit));
    return isAsking ? 'on the stack of the request that failed' : 'the line of the growth before it';
  }
  if (layer === 'workers') return 'what its workers ran most often';
  const whole = layer === 'spread' ? 'difference' : 'growth';
  return ratio > 0 ? `explains ${percent(ratio)} of the ${whole}` : '';
}

// --- leak or just big ---------------------------------------------------------

// What each class is called, and whether it is a leak, or just big.
const CLASSES: Partial<Record<Incident['class'], [name: string, kind: string]>> = {
  leak: ['a leak', 'memory is kept that should be freed'],
  reference_cycles: ['reference cycles', "a leak until Python's collector runs"],
  pressure: ['pressure', 'just big: the job needs this much'],
  imbalance: ['an imbalance', 'just big: this rank has more work than its peers'],
  fragmentation: ['fragmentation', 'no leak: tensors do not use what the allocator holds'],
  deferred_frees: ['deferred frees', 'no leak: other streams still use what was freed'],
  compile_pools: ['pools of CUDA graphs', 'one more for each new shape'],
  cache_thrash: ['cache thrash', 'no leak: time is lost, not memory'],
  host: ['growth on the host', 'memory of the machine, not of the GPU'],
  non_torch: ['memory outside PyTorch', "not of PyTorch's allocator"],
  desynchronised: ['desynchronised ranks', 'neither: ranks wait for another'],
  died: ['a process that died', 'neither: a process has ended'],
  out_of_memory: ['out of memory', ''],
  telemetry: ['too little was recorded', 'what it is cannot be said'],
};

const URGENCIES: Record<string, string> = {
  notice: 'a notice: it wakes nobody',
  ticket: 'a ticket: for the next working day',
  page: 'a page: it wakes a person',
};

/** What it is, and how sure that is. `before` is the incident that led to it. */
export function whatItIs(incident: Incident, before: Incident | null = null): Said {
  const said = incident.state === 'open' ? (URGENCIES[incident.urgency] ?? '') : '';
  const urgency = said && isSilenced(incident) ? `${said}, but it is silenced` : said;
  const of = CLASSES[incident.class] ?? [spaced(incident.class), ''];
  if (incident.class === 'unknown' || !(incident.confidence > 0)) {
    const why = incident.capture_id ? 'the capture does not explain it' : 'no capture is in';
    const text = incident.state === 'open' ? 'no diagnosis yet' : 'no diagnosis';
    return { text, detail: joined([why, urgency]) };
  }
  const kind = incident.layer === 'process' && of[1] === '' ? ledBy(before) : of[1];
  return { text: `${percent(incident.confidence)} sure: ${of[0]}`, detail: joined([kind, urgency]) };
}

const ledBy = (before: Incident | null): string =>
  before
    ? `it ended ${CLASSES[before.class]?.[0] ?? 'a growth'} that was reported before`
    : 'no growth was reported before it';

const joined = (parts: string[]): string => parts.filter(Boolean).join('; ');

// --- what to do ---------------------------------------------------------------

/** Whether a restart helps. `from` is where its figures are from. */
export function restart({ restart: of, clock }: Incident, from: string): Said {
  const unit = unitOf({ clock });
  const text = of.helps === true ? 'yes' : of.helps === false ? 'no' : 'not known';
  const facts = [];
  if (isKnown(of.freed_bytes)) facts.push(`gives ${bytes(of.freed_bytes)} back${from}`);
  if (isKnown(of.lasts_steps)) facts.push(`as full as now after ${plural(of.lasts_steps, unit)}`);
  if (isKnown(of.ends_after_steps)) {
    facts.push(`out of memory again after ${plural(of.ends_after_steps, unit)}`);
  }
  return { text, detail: facts.join('; ') || of.why };
}

/** What the advice saves; empty where that is not known. */
export function saving({ remedy }: Incident, from: string): string {
  const guess = remedy.is_guess ? 'a guess: the cause is not proven' : '';
  const saved = isKnown(remedy.saves_bytes) ? `saves ${bytes(remedy.saves_bytes)}${from}` : '';
  return joined([saved, guess]);
}

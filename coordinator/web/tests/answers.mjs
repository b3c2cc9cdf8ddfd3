// The answers of a made-up coordinator by their paths: a job of eight ranks of which one leaks, one
// whose leaking rank has died, a healthy one of twelve ranks, and one whose names are hostile.

import { capture, collectives, kept, segments } from './captures.mjs';
import { HOSTILE, HOSTILE_JOB, hostile } from './hostile.mjs';
import { answers, entry, incident, said, thread } from './incidents.mjs';
import { action, differences, job, lines, node } from './jobs.mjs';
import { account, ago, area, rank, series } from './ranks.mjs';

const JOBS = [
  job('train-7b', {}),
  job('died', { ranks_alive: 7 }),
  // More ranks than a report holds the steps of.
  job('eval', {
    state: 'healthy',
    class: null,
    incidents_open: 0,
    ranks: 12,
    ranks_alive: 12,
    world_size: 12,
  }),
  job(HOSTILE_JOB, { nodes: [HOSTILE.long, HOSTILE.html] }),
];

const DEATH = incident('died', {
  id: 'inc-death',
  class: 'out_of_memory',
  layer: 'process',
  urgency: 'page',
  sentence: 'rank 2 ran out of device memory and was killed after step 800',
  related_id: 'inc-died',
  answers: answers({
    time: said('How long', 'it has happened', 'the rank ended after step 800'),
    line: said('Which line', 'accumulate_predictions.py:123 in train_step', 'on the stack of the request that failed'),
    kind: said(
      'Leak or just big',
      '98 % sure: a leak',
      'reported before as inc-died; the job then ran out of memory; it pages',
    ),
    growth: [],
    evidence_title: 'What was seen',
  }),
  steps_to_oom: null,
  age_buckets: [],
  suspects: [],
  alternatives: [],
});

/** What people did about the incident that has everything. */
const THREAD = thread({
  acknowledged: { who: 'olga', wall_ns: ago(800) },
  silence: { holds: true, until_wall_ns: null, until_step: 5000, who: 'olga', since_wall_ns: ago(500) },
  assignee: 'team-a',
  entries: [
    entry(800, 'olga', 'acknowledged'),
    entry(790, 'olga', 'assigned', { text: 'team-a' }),
    entry(700, 'piet', 'silenced', { until_wall_ns: ago(600) }),
    entry(650, '', 'silence_ended_by_urgency'),
    entry(500, 'olga', 'silenced', { until_step: 5000 }),
    entry(100, 'piet', 'noted', { text: 'the list of losses again\nfix in review' }),
  ],
  entries_left_out: 2,
  notes_total: 1,
});

const INCIDENTS = [
  incident('train-7b', {}),
  incident('train-7b', {
    id: 'inc-silenced',
    rank: 4,
    sentence: 'rank 4 keeps 27.5 MiB more each step; its 7 peers are flat; out of memory in about 3,000 steps',
    seconds_to_oom: 15_000,
    steps_to_oom: 3000,
    answers: answers({
      rank: said('Which rank', 'rank 4', 'device 0, node-b'),
      time: said('Out of memory in', 'about 3,000 steps (4.2 h)', 'from step 800'),
      kind: said('Leak or just big', '98 % sure: a leak', 'memory is kept that should be freed; it pages, but it is silenced'),
    }),
    thread: THREAD,
  }),
  incident('train-7b', {
    id: 'inc-reported',
    rank: 6,
    urgency: 'notice',
    sentence: 'rank 6 keeps 27.5 MiB more each step',
    seconds_to_oom: null,
    steps_to_oom: null,
    answers: answers({
      rank: said('Which rank', 'rank 6', 'device 0, node-b'),
      time: said('Out of memory', 'time not known', 'no forecast for this growth'),
      kind: said('Leak or just big', '98 % sure: a leak', 'memory is kept that should be freed; a notice: it is not certain yet that the growth goes on'),
    }),
    reported_in: 'inc-silenced',
    thread: thread({ may_change: false }),
  }),
  incident('died', {
    urgency: 'notice',
    confidence: 0.61,
    answers: answers({
      time: said('How long', 'the rank has ended', 'after step 800'),
      kind: said('Leak or just big', '61 % sure: a leak', 'memory is kept that should be freed; a notice: it is not certain yet that the growth goes on'),
      remedy: said('Try first', 'keep numbers, not tensors: append loss.item() instead of loss', 'a guess: the cause is not proven'),
    }),
    remedy: { cause: 'tensors_kept', is_guess: true, saves_bytes: null },
  }),
  DEATH,
  incident('train-7b', {
    id: 'inc-closed',
    state: 'closed',
    rank: 5,
    class: 'imbalance',
    layer: 'spread',
    urgency: 'notice',
    sentence: 'rank 5 keeps 3 MiB more each step',
    answers: answers({
      rank: said('Which rank', 'rank 5', 'device 0, node-b'),
      time: said('How long', 'over', 'judged until step 800'),
      line: said('Which line', 'none', 'the rank has more work as a whole, and no line of it stands out'),
      kind: said('Leak or just big', '98 % sure: an imbalance', 'just big: this rank has more work than its peers'),
      restart: said('A restart helps', 'no', 'this rank gets more work again'),
    }),
    culprit: null,
    closed_wall_ns: ago(5000),
    closed_reason: 'no growth over 256 steps',
  }),
  incident('eval', {
    id: 'inc-host',
    state: 'closed',
    class: 'host',
    layer: 'host',
    names_device: false,
    culprit: null,
    stack: [],
    suspects: [],
    age_buckets: [],
    capture_id: null,
    capture_step: null,
    answers: answers({
      rank: said('Which rank', 'rank 2', 'node-a'),
      time: said('How long', 'over', 'judged until step 800'),
      line: said('Which line', 'not known', 'only CPU tensors and pinned memory are recorded with lines'),
      kind: said('Leak or just big', '98 % sure: growth of host memory', 'memory of the machine, not of the GPU'),
    }),
    closed_wall_ns: ago(2000),
    closed_reason: 'the job ended',
    sentence: 'rank 2 keeps 8 MiB more of host memory each step',
  }),
  hostile.incident,
];

const CAPTURES = [
  capture('train-7b', {}),
  capture('train-7b', { id: 'cap-later', trigger: 'manual', trigger_rank: null, step: 600, requested_wall_ns: ago(300), closed_wall_ns: ago(299) }),
  capture('died', { trigger: 'out_of_memory' }),
  hostile.capture,
];

const ACTIONS = [
  action({}),
  action({ wall_ns: ago(120) }),
  action({
    decision: 'would restart',
    wall_ns: ago(600),
    why: 'would restart: leak (inc-train-7b), out of memory in 10 min',
    outcome: 'not run: dry run',
    kind: 'command',
  }),
  action({
    incident_id: 'inc-silenced',
    decision: 'collect garbage',
    kind: 'ranks',
    dry_run: false,
    wall_ns: ago(640),
    why: 'had the garbage collected: leak (inc-silenced)',
    outcome: 'done by 8 of 8 ranks',
    verdict: 'no effect',
    verdict_wall_ns: ago(400),
    proof: 'the rank holds as much as before',
  }),
  hostile.action,
];

const NODES = [
  node('node-a', {}),
  node('node-b', {
    connected: false,
    gpus: [],
    last_report_wall_ns: ago(700),
    host: {
      memory_total_bytes: null,
      memory_available_bytes: null,
      cgroup_bytes: null,
      cgroup_limit_bytes: null,
      nvml_missing: 'libnvidia-ml.so.1 is not installed',
    },
  }),
  hostile.node,
];

const ranksOf = name =>
  Array.from({ length: JOBS.find(of => of.job === name).ranks }, (_, number) => {
    if (name === HOSTILE_JOB) return hostile.rank(number);
    return name === 'died' && number === 2
      ? rank(number, { end: 'oom_killed', end_detail: 'signal 9', ooms: 1 })
      : rank(number, {});
  });

const numberIn = (query, name) => (query.has(name) ? Number(query.get(name)) : null);

function seriesOf(query) {
  const number = numberIn(query, 'rank');
  return query.has('account') ? account(number, query.get('account')) : series(number);
}

/** The first ranks, or one and the nearest of it. */
function ranksIn(job, query) {
  const all = ranksOf(job);
  const [near, most] = [numberIn(query, 'near') ?? 0, numberIn(query, 'most') ?? all.length];
  const sorted = [...all].sort((a, b) => Math.abs(a.rank - near) - Math.abs(b.rank - near));
  const ranks = sorted.slice(0, most).sort((a, b) => a.rank - b.rank);
  const alive = all.filter(of => of.alive).length;
  return { job, attempt: 0, count: all.length, alive, ranks, unknown: [] };
}

function areaOf(job, query) {
  const span = (from, to) => (query.has(from) ? [numberIn(query, from), numberIn(query, to)] : undefined);
  return area(job, {
    account: query.get('account') ?? undefined,
    ranks: span('first_rank', 'last_rank') ?? [0, ranksOf(job).length - 1],
    steps: span('from', 'to'),
    rows: numberIn(query, 'rows') ?? 128,
    columns: numberIn(query, 'columns') ?? 128,
  });
}

/** The answer to a path below /api/v1; undefined where there is none. */
export function answer(path, query = new URLSearchParams()) {
  const wanted = query.get('job');
  const of = list => list.filter(row => !wanted || row.job === wanted);
  const [kind, id, rest] = path.split('/').map(decodeURIComponent);
  const isJob = JOBS.some(row => row.job === id);
  const held = CAPTURES.find(found => found.id === id);
  switch (`${kind}${id ? '/' : ''}${rest ?? ''}`) {
    case 'whoami':
      return { name: '', signed_in: false, administers: false, sees_all_jobs: true };
    case 'jobs':
      return { jobs: of(JOBS) };
    case 'jobs/ranks':
      return isJob ? ranksIn(id, query) : undefined;
    case 'jobs/series':
      return isJob ? seriesOf(query) : undefined;
    case 'jobs/area':
      return isJob ? areaOf(id, query) : undefined;
    case 'jobs/differences': {
      const ranks = [numberIn(query, 'first_rank') ?? 0, numberIn(query, 'last_rank') ?? 7];
      const job = query.get('baseline_job');
      return isJob ? differences(id, ranks, job && { job, attempt: numberIn(query, 'baseline_attempt') }) : undefined;
    }
    case 'jobs/lines':
      return isJob ? (id === HOSTILE_JOB ? hostile.lines : lines(id)) : undefined;
    case 'jobs/source': {
      const [file, line] = [query.get('file'), numberIn(query, 'line')];
      if (!isJob) return undefined;
      if (id === 'eval') return { file, first_line: 0, line, lines: [], not_shown: 'the file is below no folder of --source-dir', is_newer: false };
      const around = ['def train_step(model, batch):', '    losses.append(loss)', '    return loss'];
      const texts = id === HOSTILE_JOB ? [HOSTILE.html, HOSTILE.long, HOSTILE.turned] : around;
      return { file, first_line: line - 1, line, lines: texts, not_shown: null, is_newer: false };
    }
    case 'incidents':
      // As the coordinator, without what the threads list.
      return { incidents: of(INCIDENTS).map(row => ({ ...row, thread: { ...row.thread, entries: [] } })) };
    case 'incidents/':
      return INCIDENTS.find(found => found.id === id);
    case 'captures':
      return { captures: of(CAPTURES) };
    case 'captures/':
      return held;
    case 'captures/collectives':
      return held && (held === hostile.capture ? hostile.collectives : collectives);
    case 'captures/kept': {
      const range = [numberIn(query, 'rank'), numberIn(query, 'from'), numberIn(query, 'to')];
      const beside = [query.get('baseline'), query.get('at')];
      return held && (held === hostile.capture ? hostile.kept(...range) : kept(held, ...range, ...beside));
    }
    case 'captures/segments': {
      const number = numberIn(query, 'rank');
      return held && (held === hostile.capture ? hostile.segments(number) : segments(held, number));
    }
    case 'actions':
      return { actions: of(ACTIONS) };
    case 'nodes':
      return { nodes: NODES };
    default:
      return undefined;
  }
}

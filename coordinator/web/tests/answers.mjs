// Made-up answers of the API, with all fields that the page reads: incidents, captures, jobs, nodes.
// Each function makes one thing, with other fields where they are given.

import { ago, CAPTURE_STEP, GIB, GROWTH, LAST_STEP, LEAKING, MIB, ONSET } from './ranks.mjs';

export * from './ranks.mjs';

export const frame = (file, line, name) => ({ file, line, function: name });
export const CULPRIT = frame('/app/training/metrics/accumulate_predictions.py', 123, 'train_step');
const STACK = [
  frame('/usr/lib/python3.11/site-packages/torch/nn/functional.py', 3952, 'mse_loss'),
  CULPRIT,
  frame('/app/train.py', 157, 'main'),
];

// --- captures -----------------------------------------------------------------

const part = number => ({
  capture: '',
  hash: null,
  tape_id: `tape-${number}`,
  rank: number,
  node: `node-${number < 4 ? 'a' : 'b'}`,
  outcome: number === 6 ? 'unreachable' : 'aligned',
  step: CAPTURE_STEP,
  wall_ns: ago(900) + number * 410_000,
  wall_error_ns: 12_000,
  dead: false,
  before_step: 64,
  bytes: number === 6 ? 0 : 118_000,
  detail: number === 6 ? 'its agent did not answer in 30 s' : '',
});

export const capture = (job, of) => ({
  id: `cap-${job}`,
  job,
  attempt: 0,
  trigger: 'growth',
  trigger_rank: LEAKING,
  step: CAPTURE_STEP,
  before_step: 64,
  requested_wall_ns: ago(900),
  closed_wall_ns: ago(898),
  state: 'partial',
  ranks: 8,
  aligned: 7,
  shown: `7 of 8 ranks at the end of step ${CAPTURE_STEP}`,
  missing: [{ rank: 6, outcome: 'unreachable', detail: 'its agent did not answer in 30 s' }],
  parts: Array.from({ length: 8 }, (_, number) => part(number)),
  parts_left_out: false,
  ...of,
});

const level = (ranks, median, highest = median, highest_rank = null) => ({ ranks, median, highest, highest_rank });

/** What sets ranks of a job apart from the others, or a run from another one. */
export function differences(name, [first, last], baseline) {
  const chosen = last - first + 1;
  const group = (job, attempt, ranks) => ({ job, attempt, ranks, counted_ranks: ranks, first_step: 1, last_step: LAST_STEP, is_cut: false });
  const row = of => ({ name: '', frames: [], unit: 'bytes', separation_permille: 1000, ...of });
  return {
    chosen: group(name, 0, baseline ? 8 : chosen),
    baseline: baseline ? group(baseline.job, baseline.attempt, 8) : group(name, 0, 8 - chosen),
    differences: [
      row({ kind: 'line', frames: [CULPRIT], chosen: level(chosen, 900 * MIB, 900 * MIB, LEAKING), baseline: level(5, MIB, MIB, 0), explains_permille: 970 }),
      row({ kind: 'setting', name: 'expandable_segments:True', unit: 'ranks', chosen: level(chosen, 0), baseline: level(0, 0), explains_permille: 900 }),
      row({ kind: 'account', name: 'peak', chosen: level(chosen, 3 * GIB, 4 * GIB, LEAKING), baseline: level(5, 2 * GIB, 2 * GIB, 0), explains_permille: 500 }),
      row({ kind: 'account', name: 'step_time', unit: 'nanoseconds', chosen: level(chosen, 12e6, 13e6, first), baseline: level(5, 12e6, 12e6, 0), separation_permille: 0, explains_permille: 0 }),
    ],
    lines_left_out: 3,
    traits_left_out: 0,
  };
}

/** What a rank allocated from one step to another and had in a capture. */
export function kept(capture, number, from, to, baseline = null) {
  const frames = [STACK[2], STACK[1], STACK[0], frame('/app/train.py', 88, 'forward')];
  const steps = Math.max(0, Math.min(to ?? Infinity, capture.step) - Math.max(from ?? 1, ONSET) + 1);
  const own = number === LEAKING ? steps * GROWTH : 0;
  const stacks = [
    { device: null, frames: [0, 1, 2], bytes: own, blocks: own / GROWTH, peer_bytes: 0 },
    { device: null, frames: [0, 3], bytes: 3 * MIB, blocks: 12, peer_bytes: 2.5 * MIB },
    { device: null, frames: [], bytes: MIB, blocks: 2, peer_bytes: MIB },
  ];
  const line = (of, frame, first_step) => ({ frame, ...of, frames: undefined, first_step, last_step: first_step && capture.step });
  return {
    capture: capture.id,
    job: capture.job,
    attempt: capture.attempt,
    rank: number,
    step: capture.step,
    clock: 'steps',
    from,
    to,
    bytes: own + 4 * MIB,
    blocks: stacks.reduce((sum, of) => sum + of.blocks, 0),
    unrecorded_bytes: 0,
    baseline,
    peers: baseline ? [] : [0, 1, 3, 4, 5, 7].filter(peer => peer !== number),
    peers_left_out: 0,
    missing_peers: baseline ? [] : [{ rank: 6, why: 'its agent did not answer in 30 s' }],
    peer_bytes: 3.5 * MIB,
    lines: [
      line(stacks[0], CULPRIT, Math.max(from ?? 1, ONSET)),
      line(stacks[1], frames[3], from ?? 1),
      line(stacks[2], frame('', 0, ''), null),
    ],
    other_lines: { count: 0, bytes: 0, blocks: 0 },
    frames,
    stacks,
    other_stacks: { count: 0, bytes: 0, blocks: 0 },
  };
}

/**
 * The segments of a rank in a capture: in each of the large ones free ranges between the blocks, and
 * one small segment whose blocks were merged. `count` is the number of blocks in a large one.
 */
export function segments(capture, number, count = 12) {
  const frames = [STACK[2], STACK[1], STACK[0], frame('/app/train.py', 88, 'forward')];
  const free = (offset_bytes, bytes) => ({ offset_bytes, bytes, requested_bytes: null, state: 'inactive', step: null, stack: null });
  const segment = (index, of) => {
    const blocks = of.blocks ?? [];
    const sum = state => blocks.filter(block => block.state === state).reduce((all, block) => all + block.bytes, 0);
    const merged = of.merged ?? [];
    const allocated = sum('allocated') + merged.reduce((all, run) => all + run.allocated_bytes, 0);
    return {
      address: `0x${(0x7f12_a400_0000 + index * 2 ** 40).toString(16)}`,
      stream: '0x0',
      pool: 'large',
      private_pool: null,
      expandable: false,
      allocated_bytes: allocated,
      pending_bytes: sum('pending_free'),
      free_bytes: of.bytes - allocated - sum('pending_free'),
      largest_free_bytes: blocks.filter(block => block.state === 'inactive').reduce((most, block) => Math.max(most, block.bytes), 0),
      block_count: blocks.filter(block => block.state !== 'inactive').length + merged.reduce((all, run) => all + run.blocks, 0),
      merged,
      ...of,
      blocks,
    };
  };
  const large = index => {
    const size = 24 * MIB;
    const blocks = Array.from({ length: count }, (_, i) => {
      const at = i * size;
      if (i % 4 === 3) return free(at, size);
      const isLeak = number === LEAKING && i % 4 === 2;
      const step = isLeak ? Math.min(capture.step, ONSET + index * 3 + Math.floor(i / 4)) : 1;
      const state = i % 16 === 1 ? 'pending_free' : 'allocated';
      return { offset_bytes: at, bytes: size, requested_bytes: size - 128, state, step, stack: isLeak ? 0 : 1 };
    });
    return segment(index, { bytes: count * size, blocks });
  };
  const small = segment(5, {
    bytes: 2 * MIB,
    pool: 'small',
    merged: [{ offset_bytes: 0, bytes: 2 * MIB, blocks: 900, allocated_bytes: 1.5 * MIB, pending_bytes: 0, first_step: 1, last_step: ONSET }],
  });
  const cached = segment(6, { bytes: 20 * MIB, blocks: [free(0, 20 * MIB)] });
  const graphs = segment(7, { bytes: 64 * MIB, pool: 'private', private_pool: '0,1', blocks: [{ ...large(0).blocks[0], bytes: 64 * MIB, requested_bytes: null, stack: null }] });
  const all = [large(0), large(1), large(2), small, cached, graphs];
  const total = name => all.reduce((sum, of) => sum + of[name], 0);
  const held = stack => {
    const blocks = all.flatMap(of => of.blocks).filter(of => of.stack === stack);
    return { blocks: blocks.length, bytes: blocks.reduce((sum, of) => sum + of.bytes, 0) };
  };
  const sums = {
    segments: all.length,
    bytes: total('bytes'),
    allocated_blocks: total('block_count'),
    allocated_bytes: total('allocated_bytes'),
    pending_blocks: 3,
    pending_bytes: total('pending_bytes'),
    free_bytes: total('free_bytes'),
  };
  return {
    capture: capture.id,
    job: capture.job,
    attempt: capture.attempt,
    rank: number,
    device: 0,
    devices: [0],
    step: capture.step,
    last_step: capture.step,
    clock: 'steps',
    segment_source: 'allocator',
    complete: true,
    allocated_bytes: sums.allocated_bytes,
    allocated_difference_bytes: 0,
    reserved_bytes: sums.bytes + 2 * MIB,
    reserved_difference_bytes: 2 * MIB,
    misplaced: { blocks: 0, bytes: 0 },
    split_bytes: sums.free_bytes - 20 * MIB,
    cached_bytes: 20 * MIB,
    largest_free_bytes: 24 * MIB,
    all: sums,
    segments: all,
    other_segments: { segments: 0, bytes: 0, allocated_blocks: 0, allocated_bytes: 0, pending_blocks: 0, pending_bytes: 0, free_bytes: 0 },
    merged: { blocks: 900, bytes: 1.5 * MIB },
    frames,
    stacks: [
      { frames: [0, 1, 2], line: 1, ...held(0) },
      { frames: [0, 3], line: 3, ...held(1) },
    ],
    other_stacks: { count: 0, blocks: 0, bytes: 0 },
  };
}

// --- incidents ----------------------------------------------------------------

/** An entry of a thread, so many seconds ago. */
export const entry = (seconds, who, deed, of = {}) => ({
  who,
  wall_ns: ago(seconds),
  deed,
  text: '',
  until_wall_ns: null,
  until_step: null,
  ...of,
});

export const thread = of => ({
  acknowledged: null,
  silence: null,
  assignee: '',
  entries: [],
  entries_left_out: 0,
  notes_total: 0,
  may_change: true,
  ...of,
});

/** One answer; a time may end its text. */
export const said = (title, text, detail = '', since = null) => ({ title, text, detail, since_wall_ns: since });

/** The answers about the leak of `incident`. */
export const answers = of => ({
  rank: said('Which rank', 'rank 2', 'device 0, node-a'),
  time: said('Out of memory in', 'about 1,000 steps (84 min)', `930 to 1,200 (P10 to P90), from step ${LAST_STEP}`),
  line: said(
    'Which line',
    'accumulate_predictions.py:123 in train_step',
    `explains 98 % of the growth (at step ${CAPTURE_STEP})`,
  ),
  kind: said('Leak or just big', '98 % sure: a leak', 'memory is kept that should be freed; it pages'),
  restart: said(
    'A restart helps',
    'yes',
    `gives 18.4 GiB back (at step ${LAST_STEP}); as much is in use again after about 690 steps, and memory is full after about 1,700 steps`,
  ),
  remedy: said(
    'Try first',
    'keep numbers, not tensors: append loss.item() instead of loss',
    `saves 18.1 GiB (at step ${LAST_STEP})`,
  ),
  growth: [
    said('growth', '+27.5 MiB a step', `at step ${LAST_STEP}`),
    said('grown', '18.4 GiB', `at step ${LAST_STEP}`),
  ],
  evidence_title: 'Evidence for it',
  ...of,
});

export const incident = (job, of) => ({
  id: `inc-${job}`,
  job,
  attempt: 0,
  rank: LEAKING,
  device: 0,
  names_device: true,
  scope: 'one_rank',
  layer: 'allocated',
  class: 'leak',
  state: 'open',
  clock: 'steps',
  culprit: CULPRIT,
  sentence:
    'rank 2 keeps 27.5 MiB more each step, allocated at accumulate_predictions.py:123 in train_step; its 7 peers are flat; out of memory in about 1,000 steps',
  answers: answers({}),
  stack: STACK,
  onset_step: ONSET,
  detected_step: 128,
  last_step: LAST_STEP,
  paused_since_step: null,
  bytes_per_step: GROWTH,
  count_per_step: 0,
  grown_bytes: 687 * GROWTH,
  grown_count: 0,
  explained_ratio: 0.98,
  explained_bytes: 36 * GROWTH,
  unexplained_bytes: 0.4 * MIB,
  allocation_steps: 36,
  steps_to_oom: 1010,
  steps_to_oom_p10: 930,
  steps_to_oom_p90: 1190,
  seconds_to_oom: 5050,
  peers: 7,
  ranks: 1,
  evidence: [
    'blocks of 36 different steps are alive under this line',
    'none of them was freed',
    'its 7 peers keep nothing there',
  ],
  against: ['requested sizes are not recorded'],
  advice: 'keep numbers, not tensors: append loss.item() instead of loss',
  confidence: 0.98,
  urgency: 'page',
  remedy: { cause: 'tensors_kept', is_guess: false, saves_bytes: 0.98 * 687 * GROWTH },
  restart: {
    helps: true,
    freed_bytes: 687 * GROWTH,
    lasts_steps: 687,
    ends_after_steps: 1700,
    why: 'a restart gives 18.4 GiB back; as much is in use again after about 690 steps, and memory is full after about 1,700 steps',
  },
  alternatives: [
    { class: 'imbalance', standing: 'possible', evidence: ['only one rank grows'], against: ['the blocks outlive their steps'] },
    { class: 'fragmentation', standing: 'ruled_out', evidence: [], against: ['reserved memory grows no faster than allocated'] },
  ],
  age_profile: 'steady',
  age_buckets: Array.from({ length: 9 }, (_, i) => ({
    first_step: ONSET + i * 4,
    last_step: ONSET + 3 + i * 4,
    bytes: 4 * GROWTH,
    blocks: 4,
  })),
  suspects: [
    { frame: CULPRIT, stack: [CULPRIT], stacks: 1, grown_bytes: 990 * MIB, peer_bytes: 0, blocks: 36, allocation_steps: 36 },
    { frame: frame('/app/train.py', 88, 'forward'), stack: [], stacks: 2, grown_bytes: 3 * MIB, peer_bytes: 2.5 * MIB, blocks: 12, allocation_steps: 2 },
  ],
  capture_id: `cap-${job}`,
  capture_step: CAPTURE_STEP,
  related_id: null,
  reported_in: null,
  thread: thread({}),
  stored: true,
  opened_wall_ns: ago(1000),
  updated_wall_ns: ago(1),
  closed_wall_ns: null,
  closed_reason: '',
  ...of,
});

// --- jobs, nodes, decisions, lines --------------------------------------------

export const job = (name, of) => ({
  job: name,
  attempt: 0,
  attempt_ordinal: 1,
  attempts: 1,
  namespace: '',
  owner_uid: null,
  world_size: 8,
  ranks_alive: 8,
  ranks: 8,
  clock: 'steps',
  step_min: 799,
  step_max: LAST_STEP,
  total_steps: null,
  state: 'incident',
  class: 'leak',
  started_wall_ns: ago(4000),
  ended_wall_ns: null,
  ends_at_wall_ns: null,
  incidents_open: 1,
  nodes: ['node-a', 'node-b'],
  ...of,
});

const gpu = index => ({
  uuid: `GPU-${index}`,
  index,
  total_bytes: 80 * GIB,
  used_bytes: (30 + 12 * index) * GIB,
  free_bytes: (50 - 12 * index) * GIB,
  processes: 1,
  ranks: 1,
});

export const node = (name, of) => ({
  node: name,
  connected: true,
  version: '0.2.0',
  last_report_wall_ns: ago(1),
  gpus: [0, 1, 2, 3].map(gpu),
  host: {
    memory_total_bytes: 512 * GIB,
    memory_available_bytes: 401 * GIB,
    cgroup_bytes: 0.2 * GIB,
    cgroup_limit_bytes: GIB,
    nvml_missing: '',
  },
  ...of,
});

export const action = of => ({
  id: 'act',
  incident_id: 'inc-train-7b',
  job: 'train-7b',
  node: '',
  attempt: 0,
  kind: 'none',
  decision: 'nothing',
  dry_run: true,
  why: 'did nothing: out of memory is more than 10 min away',
  wall_ns: ago(60),
  outcome: '',
  verdict: '',
  verdict_wall_ns: null,
  proof: '',
  checkpoint: '',
  saved_seconds: null,
  steps_lost: null,
  ...of,
});

const line = (frames, bytes, of) => ({
  frames,
  ranks: 8,
  median_bytes: bytes,
  holders: [{ rank: LEAKING, device: 0, bytes, blocks: 12, oldest_step: 1, growth_bytes_per_step: 0, ...of }],
});

export const lines = job => ({
  job,
  attempt: 0,
  clock: 'steps',
  ranks: 8,
  missing: '',
  lines: [
    line([CULPRIT], 18 * GIB, { blocks: 687, oldest_step: ONSET, growth_bytes_per_step: GROWTH }),
    line([frame('/app/train.py', 88, 'forward'), frame('/app/train.py', 90, 'forward')], 9 * GIB, {}),
    line([], 2 * GIB, {}),
  ],
  lines_left_out: 40,
  other_blocks: 900,
  other_bytes: 3 * GIB,
});

export const collectives = {
  sentences: ['rank 2 has not entered allreduce 4,711 of group dp, which 7 ranks have entered'],
  groups: [{ name: '0', desc: 'dp', ranks: [0, 1, 2, 3, 4, 5, 6, 7], furthest: 4711, sentence: 'rank 2 is behind' }],
  ranks: [],
  uncompared: 0,
  unknown: [{ why: 'PyTorch has no flight recorder', ranks: [0, 1] }],
  waiting_uncompared: [],
};

// Made-up captures with what the page reads of them: their parts, what a rank kept, its segments,
// and how far the collectives are.

import { ago, CAPTURE_STEP, GROWTH, LEAKING, MIB, ONSET } from './ranks.mjs';

export const frame = (file, line, name) => ({ file, line, function: name });
export const CULPRIT = frame('/app/training/metrics/accumulate_predictions.py', 123, 'train_step');
export const STACK = [
  frame('/usr/lib/python3.11/site-packages/torch/nn/functional.py', 3952, 'mse_loss'),
  CULPRIT,
  frame('/app/train.py', 157, 'main'),
];

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

/** A request of the leaking rank that failed after the step of a capture. */
const failed = {
  device: 0,
  step: CAPTURE_STEP + 1,
  wall_ns: ago(897),
  asked_bytes: 96 * MIB,
  frame: frame('/app/train.py', 88, 'forward'),
  allocated_bytes: 7900 * MIB,
  reserved_bytes: 8000 * MIB,
  device_free_bytes: 40 * MIB,
};

const failedIn = ({ trigger }, number) =>
  trigger === 'out_of_memory' && number === LEAKING ? failed : null;

/** What a rank allocated from one step to another and had in a capture; at a peak 512 MiB more.
 * Undefined at the failed request of a rank that has none. */
export function kept(capture, number, from, to, baseline = null, at = null) {
  if (at === 'failed_request' && !failedIn(capture, number)) return undefined;
  const frames = [STACK[2], STACK[1], STACK[0], frame('/app/train.py', 88, 'forward')];
  const steps = Math.max(0, Math.min(to ?? Infinity, capture.step) - Math.max(from ?? 1, ONSET) + 1);
  const own = number === LEAKING ? steps * GROWTH : 0;
  const more = (at ?? 'step_end') === 'step_end' ? 0 : 512 * MIB;
  const stacks = [
    { device: null, frames: [0, 1, 2], bytes: own, blocks: own / GROWTH, peer_bytes: 0 },
    { device: null, frames: [0, 3], bytes: 3 * MIB + more, blocks: 12, peer_bytes: 2.5 * MIB },
    { device: null, frames: [], bytes: MIB, blocks: 2, peer_bytes: MIB },
  ];
  const line = (of, frame, first_step) => ({ frame, ...of, frames: undefined, first_step, last_step: first_step && capture.step });
  return {
    capture: capture.id,
    job: capture.job,
    attempt: capture.attempt,
    rank: number,
    at: at ?? 'step_end',
    step: at === 'failed_request' ? failed.step : capture.step,
    failed: failedIn(capture, number),
    clock: 'steps',
    from,
    to,
    bytes: own + 4 * MIB + more,
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
    failed: failedIn(capture, number),
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

export const collectives = {
  sentences: ['rank 2 has not entered allreduce 4,711 of group dp, which 7 ranks have entered'],
  groups: [{ name: '0', desc: 'dp', ranks: [0, 1, 2, 3, 4, 5, 6, 7], furthest: 4711, sentence: 'rank 2 is behind' }],
  ranks: [],
  uncompared: 0,
  unknown: [{ why: 'PyTorch has no flight recorder', ranks: [0, 1] }],
  waiting_uncompared: [],
};

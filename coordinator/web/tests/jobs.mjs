// Made-up jobs, nodes, decisions, the lines that hold memory, and what sets ranks apart.

import { CULPRIT, frame } from './captures.mjs';
import { ago, GIB, GROWTH, LAST_STEP, LEAKING, MIB, ONSET } from './ranks.mjs';

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
  step_on_tapes: 1,
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
  holders: [{ rank: LEAKING, device: 0, step: 640, bytes, blocks: 12, oldest_step: 1, growth_bytes_per_step: 0, ...of }],
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

const level = (ranks, median, highest = median, highest_rank = null) => ({ ranks, median, highest, highest_rank });

/** What sets ranks of a job apart from the others, or a run from another one. */
export function differences(name, [first, last], baseline) {
  const chosen = last - first + 1;
  const counted = { counted_first_step: LAST_STEP - 160, counted_last_step: LAST_STEP };
  const group = (job, attempt, ranks) => ({ job, attempt, ranks, counted_ranks: ranks, ...counted, first_step: 1, last_step: LAST_STEP, is_cut: false });
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

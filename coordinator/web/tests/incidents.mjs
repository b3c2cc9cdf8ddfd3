// Made-up incidents with what people did about them and all answers about the leak.

import { CULPRIT, frame, STACK } from './captures.mjs';
import { ago, CAPTURE_STEP, GROWTH, LAST_STEP, LEAKING, MIB, ONSET } from './ranks.mjs';

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

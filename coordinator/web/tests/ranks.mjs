// Made-up ranks of a job and what they hold over its steps: rank 2 keeps 27.5 MiB more each step.

export const [KIB, MIB, GIB] = [2 ** 10, 2 ** 20, 2 ** 30];
export const DEVICE_BYTES = 80 * GIB;
export const LAST_STEP = 800;
/** The first step that the leaking rank keeps something of. */
export const ONSET = 113;
export const CAPTURE_STEP = 149;
export const GROWTH = 27.5 * MIB;
export const LEAKING = 2;

// One time for all answers: an answer that has not changed has the same text.
const START_MS = Date.now();
export const ago = seconds => (START_MS - seconds * 1000) * 1e6;

const level = (rank, step) =>
  21 * GIB +
  ((step * 7919 + rank * 104729) % 13) * 3 * MIB +
  (rank === LEAKING && step > ONSET ? (step - ONSET) * GROWTH : 0);

export function series(rank, last = LAST_STEP) {
  const count = Math.min(300, last);
  const steps = Array.from({ length: count }, (_, i) => Math.round(1 + (i * (last - 1)) / Math.max(1, count - 1)));
  return {
    steps,
    step_min_bytes: steps.map(step => level(rank, step)),
    peak_bytes: steps.map(step => level(rank, step) + 9 * GIB),
    reserved_bytes: steps.map(step => level(rank, step) + 11 * GIB),
    steps_left_out: 0,
    account: null,
  };
}

const HOST = {
  anon_bytes: 4 * GIB,
  shmem_bytes: GIB,
  file_bytes: null,
  swap_bytes: null,
  missing: '',
  workers: { count: 4, left_out: 0, anon_bytes: 2 * GIB, anon_parts_bytes: null, shmem_bytes: 0 },
  cgroup: { bytes: 20 * GIB, limit_bytes: 64 * GIB, highs: 0, inode: 1, oom_kills: 0, ooms: 0 },
};

/** The API's words for ends; of a kill without a status it is `ended`, which a test gives. */
const ENDED = { exited: 'exited', failed: 'failed', killed: 'killed', oom_killed: 'OOM killed' };

/** A rank; `ooms` and `device_bytes` are those of its device. */
export function rank(number, { ooms = 0, device_bytes = DEVICE_BYTES, ...of }) {
  const allocated = level(number, of.step ?? LAST_STEP);
  const layers = {
    free: DEVICE_BYTES - allocated - 14 * GIB,
    'other processes': GIB,
    NCCL: GIB,
    'other code': null,
    'unused by tensors': 11 * GIB,
    'in use by tensors': allocated,
  };
  return {
    rank: number,
    role: '',
    node: `node-${number < 4 ? 'a' : 'b'}`,
    local_rank: number % 4,
    pid: 4000 + number,
    pod: '',
    pod_uid: '',
    slurm_job: '',
    tape_id: `tape-${number}`,
    state: of.end ? 'ended' : number === LEAKING ? 'growing' : 'healthy',
    alive: !of.end,
    step: LAST_STEP,
    clock: 'steps',
    step_wall_ns: ago(of.end ? 300 : 1),
    end: null,
    ended: of.end ? (ENDED[of.end] ?? 'ended') : '',
    end_detail: '',
    devices: [
      {
        device: 0,
        uuid: `GPU-${number}`,
        allocated_bytes: allocated,
        reserved_bytes: allocated + 11 * GIB,
        peak_allocated_bytes: allocated + 9 * GIB,
        pending_free_bytes: null,
        process_bytes: null,
        gpu_processes: 1,
        blocks: 3012,
        ooms,
        malloc_failures: 3 * ooms,
        device_bytes,
        ledger: {
          device_bytes: device_bytes || null,
          unaccounted_bytes: GIB,
          layers: Object.entries(layers).map(([layer, bytes]) => ({ layer, bytes })),
        },
      },
    ],
    host: number < 4 ? HOST : null,
    pinned_bytes: number < 4 ? GIB / 2 : null,
    rss_bytes: 4.1 * GIB,
    growth_bytes_per_step: number === LEAKING ? GROWTH : 0,
    lost_events: 0,
    missed_steps: 0,
    limitations: number === 5 ? ['C++ frames are not recorded'] : [],
    ...of,
  };
}

const UNITS = { blocks: 'blocks', step_time: 'nanoseconds' };
const unitOf = account => UNITS[account] ?? 'bytes';

/** One account of a rank; of step time and blocks other numbers than of bytes. */
export function account(number, name) {
  const { steps } = series(number);
  const values = { blocks: () => 3000 + number, step_time: step => 1.2e8 + (step % 7) * 1e6 };
  const value = values[name] ?? (step => Math.round(level(number, step) / 8));
  return {
    ...series(number),
    step_min_bytes: [],
    peak_bytes: [],
    reserved_bytes: [],
    account: {
      name,
      unit: unitOf(name),
      source: 'step_records',
      lowest: steps.map(value),
      highest: steps.map(step => Math.round(value(step) * 1.1)),
      known_from_step: 1,
      unknown: null,
      limit_bytes: unitOf(name) === 'bytes' ? DEVICE_BYTES : null,
    },
  };
}

/** An account of some ranks over some steps, as a grid. Of workers nothing is known. */
export function area(job, { account: name = 'allocated', ranks = [0, 7], steps = [1, LAST_STEP], rows = 128, columns: most = 128 }) {
  const count = steps[1] - steps[0] + 1;
  const steps_per_column = 2 ** Math.ceil(Math.log2(Math.max(1, count / most)));
  const columns = Math.ceil(count / steps_per_column);
  const scale = 2 ** 12;
  const numbers = Array.from({ length: ranks[1] - ranks[0] + 1 }, (_, i) => ranks[0] + i);
  const cell = (number, at) => Math.floor(level(number, steps[0] + at * steps_per_column) / scale);
  const cells = numbers.map(number =>
    // The first records of rank 7 are lost.
    Array.from({ length: columns }, (_, at) => (number === 7 && at < 9 ? null : cell(number, at))),
  );
  const known = column => cells.map(row => row[column]).filter(value => value !== null);
  const middle = column => known(column).sort((a, b) => a - b)[(known(column).length - 1) >> 1] ?? null;
  const isKnown = name !== 'workers';
  const each = cells[0].map((_, at) => at);
  const isOne = rows < numbers.length;
  const row = (first_rank, last_rank, extreme_rank, cells) => ({
    first_rank,
    last_rank,
    extreme_rank: isKnown ? extreme_rank : null,
    cells: isKnown ? cells : [],
  });
  return {
    job,
    attempt: 0,
    account: name,
    unit: unitOf(name),
    source: 'step_records',
    base: 0,
    scale,
    first_step: steps[0],
    steps_per_column,
    medians: isKnown ? each.map(middle) : [],
    // Of fewer rows than ranks one stands for all.
    rows: isOne
      ? [row(...ranks, LEAKING, each.map(at => Math.max(...known(at))))]
      : numbers.map((number, i) => row(number, number, number, cells[i])),
    known_from_step: isKnown ? 1 : null,
    unknown: isKnown ? null : 'the ranks have no worker processes',
    is_cut: false,
    steps_left_out: 0,
  };
}

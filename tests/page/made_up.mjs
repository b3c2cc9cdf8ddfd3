// Serves the page with made-up answers of the API: a job of eight ranks of which one leaks, with a
// forecast, and a job whose leaking rank has died.
//
//     node tests/page/made_up.mjs [PORT]
//
// Prints the address. What it answers has the shapes of the OpenAPI document, but for fields that
// the page does not read.

import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname, join, normalize } from 'node:path';

const WEB = new URL('../../coordinator/web/', import.meta.url).pathname;
const TYPES = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
};
const [MIB, GIB] = [2 ** 20, 2 ** 30];
const now = () => Date.now() * 1e6;
const ago = seconds => now() - seconds * 1e9;

const frame = (file, line, name) => ({ file, line, function: name });
const CULPRIT = frame('/app/training/metrics/accumulate_predictions.py', 123, 'train_step');

const DEVICE_BYTES = 80 * GIB;
const level = (rank, step) =>
  21 * GIB +
  ((step * 7919 + rank * 104729) % 13) * 3 * MIB +
  (rank === 2 && step > 113 ? (step - 113) * 27.5 * MIB : 0);

function series(rank, last) {
  const steps = Array.from({ length: 300 }, (_, i) => Math.round(1 + (i * (last - 1)) / 299));
  return {
    steps,
    step_min_bytes: steps.map(step => level(rank, step)),
    peak_bytes: steps.map(step => level(rank, step) + 9 * GIB),
    reserved_bytes: steps.map(step => level(rank, step) + 11 * GIB),
  };
}

function rank(number, step, end) {
  const allocated = level(number, step);
  const layers = {
    free: DEVICE_BYTES - allocated - 14 * GIB,
    'other processes': GIB,
    nccl: GIB,
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
    state: end ? 'ended' : number === 2 ? 'growing' : 'healthy',
    alive: !end,
    step,
    clock: 'steps',
    step_wall_ns: ago(end ? 300 : 1),
    end: end ?? null,
    end_detail: end ? 'signal 9' : '',
    devices: [
      {
        device: 0,
        uuid: `GPU-${number}`,
        allocated_bytes: allocated,
        reserved_bytes: allocated + 11 * GIB,
        peak_allocated_bytes: allocated + 9 * GIB,
        blocks: 3012,
        ooms: end ? 1 : 0,
        malloc_failures: end ? 3 : 0,
        device_bytes: DEVICE_BYTES,
        ledger: {
          device_bytes: DEVICE_BYTES,
          unaccounted_bytes: GIB,
          layers: Object.entries(layers).map(([layer, bytes]) => ({ layer, bytes })),
        },
      },
    ],
    rss_bytes: 4.1 * GIB,
    growth_bytes_per_step: number === 2 ? 27.5 * MIB : 0,
    lost_events: 0,
    limitations: number === 5 ? ['C++ frames are not recorded'] : [],
  };
}

const part = number => ({
  rank: number,
  node: `node-${number < 4 ? 'a' : 'b'}`,
  outcome: number === 6 ? 'unreachable' : 'aligned',
  step: 149,
  wall_ns: ago(900) + number * 410_000,
  wall_error_ns: 12_000,
  dead: false,
  before_step: 64,
  bytes: number === 6 ? 0 : 118_000,
  detail: number === 6 ? 'its agent did not answer in 30 s' : '',
});
const capture = job => ({
  id: `cap-${job}`,
  job,
  attempt: 0,
  trigger: 'growth',
  trigger_rank: 2,
  step: 149,
  before_step: 64,
  requested_wall_ns: ago(900),
  closed_wall_ns: ago(898),
  state: 'partial',
  ranks: 8,
  aligned: 7,
  missing: [{ rank: 6, outcome: 'unreachable', detail: 'its agent did not answer in 30 s' }],
  parts: Array.from({ length: 8 }, (_, number) => part(number)),
  parts_left_out: false,
});

const incident = (job, of) => ({
  id: `inc-${job}`,
  job,
  attempt: 0,
  rank: 2,
  device: 0,
  scope: 'one_rank',
  layer: 'allocated',
  class: 'leak',
  state: 'open',
  clock: 'steps',
  culprit: CULPRIT,
  sentence:
    'rank 2 keeps 27.5 MiB more each step, allocated at accumulate_predictions.py:123 in train_step; its 7 peers are flat; out of memory in about 1,000 steps',
  stack: [
    frame('/usr/lib/python3.11/site-packages/torch/nn/functional.py', 3952, 'mse_loss'),
    CULPRIT,
    frame('/app/train.py', 157, 'main'),
  ],
  onset_step: 113,
  detected_step: 128,
  last_step: 800,
  bytes_per_step: 27.5 * MIB,
  grown_bytes: 687 * 27.5 * MIB,
  explained_ratio: 0.98,
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
  explained_bytes: 36 * 27.5 * MIB,
  unexplained_bytes: 0.4 * MIB,
  remedy: { cause: 'tensors_kept', is_guess: false, saves_bytes: 990 * MIB },
  restart: {
    helps: true,
    freed_bytes: 990 * MIB,
    lasts_steps: 687,
    ends_after_steps: 1700,
    why: 'a restart from the last checkpoint frees what was kept',
  },
  alternatives: [
    {
      class: 'imbalance',
      standing: 'possible',
      evidence: ['only one rank grows'],
      against: ['the blocks outlive their steps'],
    },
    {
      class: 'fragmentation',
      standing: 'ruled_out',
      evidence: [],
      against: ['reserved memory grows no faster than allocated'],
    },
  ],
  age_profile: 'steady',
  age_buckets: Array.from({ length: 9 }, (_, i) => ({
    first_step: 113 + i * 4,
    last_step: 116 + i * 4,
    bytes: 4 * 27.5 * MIB,
    blocks: 4,
  })),
  suspects: [
    {
      frame: CULPRIT,
      stack: [CULPRIT],
      stacks: 1,
      grown_bytes: 990 * MIB,
      peer_bytes: 0,
      blocks: 36,
      allocation_steps: 36,
    },
    {
      frame: frame('/app/train.py', 88, 'forward'),
      stack: [],
      stacks: 2,
      grown_bytes: 3 * MIB,
      peer_bytes: 2.5 * MIB,
      blocks: 12,
      allocation_steps: 2,
    },
  ],
  capture_id: `cap-${job}`,
  stored: true,
  opened_wall_ns: ago(1000),
  updated_wall_ns: ago(1),
  closed_wall_ns: null,
  closed_reason: '',
  ...of,
});

const closed = incident('closed', {
  id: 'inc-closed',
  job: 'train-7b',
  state: 'closed',
  rank: 5,
  class: 'imbalance',
  urgency: 'notice',
  sentence: 'rank 5 keeps 3 MiB more each step',
  closed_wall_ns: ago(5000),
  closed_reason: 'no growth over 256 steps',
});
const incidents = [
  incident('train-7b', {}),
  incident('died', {
    urgency: 'notice',
    confidence: 0.61,
    remedy: { cause: 'tensors_kept', is_guess: true, saves_bytes: null },
  }),
  closed,
];

const action = of => ({
  id: 'act',
  incident_id: 'inc-train-7b',
  job: 'train-7b',
  attempt: 0,
  kind: 'none',
  decision: 'nothing',
  dry_run: true,
  why: 'did nothing: out of memory is more than 10 min away',
  wall_ns: ago(60),
  outcome: '',
  ...of,
});

const job = (name, of) => ({
  job: name,
  attempt: 0,
  attempts: 1,
  world_size: 8,
  ranks_alive: 8,
  ranks: 8,
  clock: 'steps',
  step_min: 799,
  step_max: 800,
  state: 'incident',
  class: 'leak',
  started_wall_ns: ago(4000),
  ended_wall_ns: null,
  incidents_open: 1,
  nodes: ['node-a', 'node-b'],
  ...of,
});

const gpu = index => ({
  uuid: `GPU-${index}`,
  index,
  total_bytes: 80 * GIB,
  used_bytes: (30 + 12 * index) * GIB,
  processes: 1,
  ranks: 1,
});
const node = (name, of) => ({
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

const ranks = name =>
  Array.from({ length: 8 }, (_, number) =>
    rank(number, 800, name === 'died' && number === 2 ? 'oom_killed' : null),
  );

/** The answer to a path below /api/v1; undefined where there is none. */
function answer(path, query, isEmpty) {
  const wanted = query.get('job');
  const of = list => (isEmpty ? [] : list.filter(row => !wanted || row.job === wanted));
  const [kind, id, rest] = path.split('/').map(decodeURIComponent);
  const captures = ['train-7b', 'died'].map(capture);
  switch (`${kind}${id ? '/' : ''}${rest ?? ''}`) {
    case 'jobs':
      return {
        jobs: of([
          job('train-7b', {}),
          job('died', { ranks_alive: 7 }),
          job('eval', { state: 'healthy', incidents_open: 0 }),
        ]),
      };
    case 'jobs/ranks':
      return ['train-7b', 'died', 'eval'].includes(id)
        ? { job: id, attempt: 0, ranks: ranks(id), unknown: [] }
        : undefined;
    case 'jobs/series':
      return series(Number(query.get('rank')), 800);
    case 'incidents':
      return { incidents: of(incidents) };
    case 'incidents/':
      return incidents.find(found => found.id === id);
    case 'captures':
      return { captures: of(captures) };
    case 'captures/':
      return captures.find(found => found.id === id);
    case 'captures/collectives':
      return {
        sentences: [],
        groups: [],
        unknown: [{ why: 'PyTorch has no flight recorder', ranks: [0, 1] }],
      };
    case 'actions':
      return {
        actions: of([
          action({}),
          action({ wall_ns: ago(120) }),
          action({
            decision: 'would restart',
            wall_ns: ago(600),
            why: 'would restart: leak (inc-train-7b), out of memory in 10 min',
            outcome: 'not run: dry run',
            kind: 'command',
          }),
        ]),
      };
    case 'nodes':
      return {
        nodes: of([
          node('node-a', {}),
          node('node-b', {
            connected: false,
            gpus: [],
            last_report_wall_ns: ago(700),
            host: { memory_total_bytes: null, nvml_missing: 'libnvidia-ml.so.1 is not installed' },
          }),
        ]),
      };
    default:
      return undefined;
  }
}

/** Listens on the loopback; its address. With `isEmpty` there is no job. */
export function serve(port = 0, isEmpty = false) {
  const server = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url, 'http://localhost');
    const say = (status, type, text) =>
      response
        .writeHead(status, {
          'content-type': type,
          'content-security-policy': "default-src 'self'; base-uri 'none'; form-action 'none'",
        })
        .end(text);
    if (pathname.startsWith('/api/v1/')) {
      const found = answer(pathname.slice('/api/v1/'.length), searchParams, isEmpty);
      say(
        found ? 200 : 404,
        'application/json',
        JSON.stringify(found ?? { error: 'there is no such thing' }),
      );
      return;
    }
    const path = normalize(pathname === '/' ? '/index.html' : pathname);
    const text = await readFile(join(WEB, path)).catch(() => null);
    say(text ? 200 : 404, TYPES[extname(path)] ?? 'text/plain', text ?? 'there is no such page');
  });
  return new Promise(resolve =>
    server.listen(port, '127.0.0.1', () =>
      resolve({ server, address: `http://127.0.0.1:${server.address().port}` }),
    ),
  );
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const { address } = await serve(Number(process.argv[2] ?? 0), process.argv.includes('--empty'));
  console.log(address);
}

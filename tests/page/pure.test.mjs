// The pure modules of the page: numbers, words and the values of the heat map; and the contrasts of
// its colours.
//
//     node --test tests/page

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';

import {
  bytes,
  byteTicks,
  duration,
  plural,
  stepTicks,
  ticks,
} from '../../coordinator/web/units.js';
import {
  decision,
  endOf,
  events,
  forecast,
  hook,
  joined,
  outcome,
  restart,
  saving,
} from '../../coordinator/web/words.js';
import { grid, growthOf } from '../../coordinator/web/charts/heat.js';

const MIB = 1 << 20;

test('bytes have the precision of the sentences of core', () => {
  for (const [count, text] of [
    [12, '12 B'],
    [128 * 1024, '128 KiB'],
    [1_572_864, '1.5 MiB'],
    [MIB - 1, '1 MiB'],
    [142.5 * MIB, '143 MiB'],
    [80 * 1024 * MIB, '80 GiB'],
    [-3 * MIB, '−3 MiB'],
    [0, '0 B'],
    [null, 'unknown'],
    [undefined, 'unknown'],
  ]) {
    assert.equal(bytes(count), text);
  }
  assert.equal(bytes(3 * MIB, true), '+3 MiB');
});

test('durations and plurals', () => {
  assert.deepEqual([90, 119, 120, 7199, 7200, 4 * 86400].map(duration), [
    '90 s',
    '119 s',
    '2 min',
    '120 min',
    '2.0 h',
    '4 days',
  ]);
  assert.deepEqual([plural(1, 'step'), plural(1218, 'step')], ['1 step', '1,218 steps']);
  assert.equal(plural(2, 'process', 'processes'), '2 processes');
});

test('ticks are round, within the range, and of steps whole', () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(7, 7, 5), [7]);
  assert.deepEqual(stepTicks(1, 3, 8), [1, 2, 3]);
  assert.deepEqual(
    byteTicks(85 * 1024 * MIB, 4).map(value => bytes(value)),
    ['0 B', '50 GiB'],
  );
  for (const high of [1, 3, 17, 999, 123456]) {
    const found = stepTicks(1, high, 6);
    assert.ok(
      found.every(tick => tick >= 1 && tick <= high && Number.isInteger(tick)),
      `${found}`,
    );
  }
});

const OPEN = {
  state: 'open',
  class: 'leak',
  clock: 'steps',
  last_step: 150,
  steps_to_oom: 1200,
  steps_to_oom_p10: 1100,
  steps_to_oom_p90: 1400,
  seconds_to_oom: 1500,
};
const rank = (of = {}) => ({
  rank: 2,
  step: 812,
  end: null,
  end_detail: '',
  clock: 'steps',
  devices: [{ device: 0, ooms: 0, device_bytes: 0 }],
  ...of,
});

test('a forecast names its range and its step, or why there is none', () => {
  assert.deepEqual(forecast(OPEN, rank()), {
    text: 'about 1,200 steps (25 min)',
    detail: 'P10–P90: 1,100 to 1,400 steps, from step 812',
  });
  const none = { ...OPEN, steps_to_oom: null };
  assert.match(forecast(none, rank()).detail, /size of the device is not known/);
  assert.equal(forecast(OPEN, rank({ end: 'killed' })).text, 'the rank has ended');
  assert.equal(forecast({ ...OPEN, state: 'closed', closed_reason: 'freed' }, rank()).text, 'over');
});

test('a dead rank is said to be dead, with the failed requests', () => {
  assert.equal(endOf(rank()), null);
  const dead = rank({
    end: 'oom_killed',
    end_detail: 'signal 9',
    devices: [{ device: 0, ooms: 1, device_bytes: 0 }],
  });
  assert.equal(
    endOf(dead),
    'Rank 2 ran out of device memory (1 request failed) and ' +
      "was killed by the kernel's OOM killer after step 812 (signal 9)",
  );
  assert.equal(
    endOf(rank({ end: 'exited', end_detail: 'sealed' })),
    'Rank 2 has exited after step 812',
  );
});

test('figures of a capture have its step', () => {
  const incident = {
    clock: 'steps',
    remedy: { saves_bytes: 140 * MIB, is_guess: true },
    restart: {
      helps: true,
      freed_bytes: 140 * MIB,
      lasts_steps: 1,
      ends_after_steps: null,
      why: '',
    },
  };
  assert.equal(
    restart(incident, ' at step 149').detail,
    'gives 140 MiB back at step 149; in use again after 1 step',
  );
  assert.equal(
    saving(incident, ' at step 149'),
    'saves 140 MiB at step 149; a guess: the cause is not proven',
  );
});

const action = of => ({
  incident_id: 'inc-1',
  job: 'j',
  attempt: 0,
  kind: 'none',
  decision: 'nothing',
  dry_run: true,
  why: 'a notice',
  outcome: '',
  verdict: '',
  proof: '',
  wall_ns: 1,
  ...of,
});

test('decisions that say the same are one', () => {
  const rows = joined([
    action({ wall_ns: 3 }),
    action({ wall_ns: 2 }),
    action({ wall_ns: 1, why: 'another' }),
  ]);
  assert.deepEqual(
    rows.map(row => [row.times, row.wall_ns, row.first_wall_ns]),
    [
      [2, 3, 2],
      [1, 1, 1],
    ],
  );
});

test('decisions are words', () => {
  const words = of => [decision(of), hook(of.kind), outcome(of)];
  assert.deepEqual(words({ ...action(), times: 2 }), [
    '2 × a notice',
    'no restart target is configured',
    'nothing to do',
  ]);
  const would = action({
    decision: 'would restart',
    kind: 'command',
    why: '',
    outcome: 'not run: dry run',
  });
  assert.deepEqual(words(would), ['would restart', 'by command', 'not run: dry run']);
  const proven = action({ outcome: 'done', verdict: 'helped', proof: 'the next attempt finished' });
  assert.equal(outcome(proven), 'done; helped: the next attempt finished');
});

test('events are in the order of time, newest first', () => {
  const incident = {
    ...OPEN,
    id: 'inc-1',
    rank: 2,
    opened_wall_ns: 20,
    detected_step: 9,
    onset_step: 4,
    closed_wall_ns: null,
  };
  const capture = {
    id: 'cap-1',
    requested_wall_ns: 30,
    step: 10,
    trigger: 'oom',
    trigger_rank: 2,
    aligned: 3,
    ranks: 4,
  };
  const found = events({
    incidents: [incident],
    captures: [capture],
    ranks: [rank({ end: 'killed', step_wall_ns: 40 }), rank()],
    actions: [action({ wall_ns: 50 })],
  });
  assert.deepEqual(
    found.map(event => event.wall_ns),
    [50, 40, 30, 20],
  );
  assert.equal(found[2].text, 'capture, out of memory of rank 2: 3 of 4 ranks');
});

test('the heat map shows growth, and what the peers do not share', () => {
  const row = (number, values) => ({
    rank: number,
    data: values && { steps: values.map((_, i) => i + 1), step_min_bytes: values },
  });
  const map = grid([
    row(0, [10, 20, 30]),
    row(1, [10, 20, 30]),
    row(2, [10, 20, 90]),
    row(3, null),
  ]);
  assert.deepEqual([map.first, map.last, map.columns], [1, 3, 3]);
  assert.deepEqual(growthOf(map, false)[2], [0, 10, 80]);
  assert.deepEqual(growthOf(map, true), [
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 60],
    [null, null, null],
  ]);
  assert.equal(grid([row(0, null)]), null);
});

/** The colours of the style sheet, by theme. */
function palette() {
  const sheet = readFileSync(new URL('../../coordinator/web/style.css', import.meta.url), 'utf8');
  const found = sheet.matchAll(/--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\);/g);
  const themes = { light: {}, dark: {} };
  for (const [, name, light, dark] of found) {
    themes.light[name] = light;
    themes.dark[name] = dark;
  }
  return themes;
}

function contrast(one, other) {
  const luminance = colour =>
    [1, 3, 5]
      .map(at => parseInt(colour.slice(at, at + 2), 16) / 255)
      .map(value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
      .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

test('text and lines have contrast in both themes', () => {
  const onPage = ['text', 'soft', 'link', 'bad', 'warn', 'good', 'onset', 'mark'].flatMap(name => [
    [name, 'back', 4.5],
    [name, 'panel', 4.5],
  ]);
  const onStates = [
    ['bad', 'bad-back', 4.5],
    ['warn', 'warn-back', 4.5],
    ['good', 'good-back', 4.5],
    ['text', 'bad-back', 4.5],
    ['text', 'warn-back', 4.5],
    ['link', 'bad-back', 4.5],
    ['link', 'warn-back', 4.5],
  ];
  const lines = ['step-min', 'peak', 'reserved'].map(name => [name, 'back', 3]);
  for (const [theme, colours] of Object.entries(palette())) {
    for (const [name, ground, least] of [...onPage, ...onStates, ...lines]) {
      const found = contrast(colours[name], colours[ground]);
      assert.ok(found >= least, `${theme}: ${name} on ${ground} is ${found.toFixed(2)}`);
    }
    // A healthy row is calm: nearer to the page than to the colour of growth.
    assert.ok(contrast(colours['heat-calm'], colours.back) < 1.3, theme);
    assert.ok(contrast(colours['heat-more'], colours['heat-calm']) > 3, theme);
  }
});

// What charts are made of: the tree of the flame graph, the grid of the heat map, the levels of a
// rank and of its peers, the parts of the budgets.

import assert from 'node:assert/strict';
import test from 'node:test';

import { modules } from './bundle.mjs';
import { incident } from './incidents.mjs';
import { account, area, DEVICE_BYTES, GIB, LAST_STEP, rank, series } from './ranks.mjs';
import { numbers } from './rng.mjs';

const {
  'charts/budgets': budgets,
  'charts/flame': flame,
  'charts/heat': heat,
  'charts/levels': levels,
} = await modules(['charts/budgets', 'charts/flame', 'charts/heat', 'charts/levels']);

// --- the flame graph ----------------------------------------------------------

/** Stacks with shared beginnings, recursion, and some that are empty or the same. */
function stacksOf(seed) {
  const next = numbers(seed);
  return Array.from({ length: next(60) }, () => ({
    frames: Array.from({ length: next(12) }, () => next(4)),
    bytes: next(3) ? next(10_000) : 0,
    blocks: next(20),
    peer_bytes: next(2) ? next(10_000) : 0,
  }));
}

const flamesOf = root => [root, ...root.children.flatMap(flamesOf)];
const sum = (all, value) => all.reduce((total, of) => total + value(of), 0);

test('the bytes of a flame are those of the stacks through it, at every level', () => {
  for (let seed = 1; seed <= 60; seed += 1) {
    const stacks = stacksOf(seed);
    const root = flame.flames(stacks);
    for (const at of flamesOf(root)) {
      const path = flame.pathOf(at);
      const through = stacks.filter(of => path.every((frame, i) => of.frames[i] === frame));
      const ending = through.filter(of => of.frames.length === path.length);
      assert.equal(at.bytes, sum(through, of => of.bytes));
      assert.equal(at.blocks, sum(through, of => of.blocks));
      assert.equal(at.peerBytes, sum(through, of => of.peer_bytes));
      assert.equal(at.bytes, sum(at.children, of => of.bytes) + sum(ending, of => of.bytes));
      assert.equal(at.depth, path.length);
    }
  }
});

test('every stack is found again, and a path that is none leads to the nearest flame', () => {
  for (let seed = 1; seed <= 60; seed += 1) {
    const stacks = stacksOf(seed);
    const root = flame.flames(stacks);
    for (const { frames } of stacks) {
      assert.deepEqual(flame.pathOf(flame.flameAt(root, frames)), frames);
      assert.deepEqual(flame.pathOf(flame.flameAt(root, [...frames, 99])), frames);
    }
  }
});

test('flames stand below their parents, beside each other, the widest first', () => {
  for (let seed = 1; seed <= 60; seed += 1) {
    const root = flame.flames(stacksOf(seed));
    for (const focus of [root, ...root.children]) {
      const all = flame.placed(focus);
      const place = new Map(all.map(of => [of.flame, of]));
      for (const { flame: at, from, to } of all) {
        assert.ok(from >= 0 && to <= 1 + 1e-9 && from <= to, `${from} to ${to}`);
        const above = at.parent && place.get(at.parent);
        if (above) assert.ok(from >= above.from - 1e-9 && to <= above.to + 1e-9, 'within its parent');
        const beside = at.children.map(child => place.get(child)).filter(Boolean);
        beside.forEach((of, i) => {
          if (i) assert.ok(of.from >= beside[i - 1].to - 1e-9, 'over its neighbour');
          if (i) assert.ok(of.to - of.from <= beside[i - 1].to - beside[i - 1].from + 1e-9, 'sorted');
        });
      }
      assert.deepEqual([place.get(focus).from, place.get(focus).to], [0, 1]);
    }
  }
});

test('the flames of no stack are one without bytes', () => {
  const root = flame.flames([]);
  assert.deepEqual([root.bytes, root.children], [0, []]);
  assert.equal(flame.placed(root).length, 1);
});

test('the name of a flame is written whole, without its line, or with an ellipsis', () => {
  const name = 'optimize  training.rs:213';
  const fit = room => flame.fitting(name, room, text => text.length);
  const found = [25, 24, 8, 7, 3, 2, 0].map(fit);
  assert.deepEqual(found, [name, 'optimize', 'optimize', 'optimi…', 'op…', '', '']);
});

// --- the heat map -------------------------------------------------------------

/** A grid with these rows, of as many steps as columns unless others are named. */
function gridOf(cells, of = {}) {
  const columns = cells[0].length;
  const known = column => cells.map(row => row[column]).filter(value => value !== null);
  const medians = Array.from({ length: columns }, (_, at) => {
    const sorted = known(at).sort((a, b) => a - b);
    return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
  });
  const rows = cells.map((_, rank) => ({ first: rank, last: rank }));
  return { rows, first: 1, last: columns, columns, cells, medians, ...of };
}

test('the heat map shows growth, and what the peers do not share', () => {
  const grid = gridOf([
    [10, 20, 30],
    [10, 20, 30],
    [10, 20, 90],
    [null, null, null],
  ]);
  assert.deepEqual(heat.against(grid, 'growth')[2], [0, 10, 80]);
  assert.deepEqual(heat.against(grid, 'peers'), [
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 60],
    [null, null, null],
  ]);
  assert.deepEqual(heat.against(grid, 'level'), grid.cells);
});

test('the grid of an answer has its values and its steps', () => {
  const answer = area('j', { steps: [101, 900] });
  const grid = heat.gridOf(answer);
  assert.deepEqual([grid.first, grid.columns, grid.rows.length], [101, answer.medians.length, 8]);
  assert.equal(grid.last, 100 + grid.columns * answer.steps_per_column);
  assert.equal(grid.cells[2][5], answer.base + answer.scale * answer.rows[2].cells[5]);
  assert.deepEqual(heat.gaps(grid.cells[7]), [[0, 9]]);
  assert.equal(heat.gridOf(area('j', { account: 'workers' })), null, 'of which nothing is known');
});

test('the last values of rows are of their last columns, and of no step that is not there yet', () => {
  const grid = gridOf([[1, 2, null], [1, 2, 3], [null, null, null]], { first: 1, last: 24 });
  const steps = newest => heat.lastSteps(grid, grid.cells, newest);
  assert.deepEqual(steps(24), [9, 16, 17, 24]);
  assert.deepEqual(steps(19), [9, 16, 17, 19]);
  assert.deepEqual(heat.lastSteps(grid, [grid.cells[2]], 24), []);
});

test('the columns have every step exactly once', () => {
  const next = numbers(7);
  for (let i = 0; i < 300; i += 1) {
    const first = next(2) ? 1 : next(1_000_000);
    const steps = 1 + next(3000);
    const columns = 1 + next(Math.min(steps, 512));
    const grid = gridOf([new Array(columns).fill(0)], { first, last: first + steps - 1 });
    let expected = first;
    for (let column = 0; column < columns; column += 1) {
      const { from, to } = heat.stepsOf(grid, column);
      assert.equal(from, expected, `column ${column} of ${columns}, ${steps} steps`);
      assert.ok(to >= from);
      expected = to + 1;
    }
    assert.equal(expected, first + steps);
  }
});

test('gaps are exactly the columns without data before the last value', () => {
  const next = numbers(3);
  for (let i = 0; i < 100; i += 1) {
    const row = Array.from({ length: next(30) }, () => (next(2) ? null : next(9)));
    const last = row.findLastIndex(value => value !== null);
    const inGaps = new Set();
    for (const [from, to] of heat.gaps(row)) {
      assert.ok(to > from);
      assert.ok(row[from - 1] !== null && row[to] !== null, 'a gap is as long as it can be');
      for (let at = from; at < to; at += 1) inGaps.add(at);
    }
    row.forEach((value, at) => assert.equal(inGaps.has(at), value === null && (at < last || last < 0)));
  }
});

// --- the levels of a rank and of its peers --------------------------------------

const seriesOf = (steps, level) => ({
  steps,
  step_min_bytes: steps.map(level),
  peak_bytes: steps.map(step => level(step) + 1),
  reserved_bytes: steps.map(step => level(step) + 2),
});

test('levels of the peers are those of the point that stands for the step', () => {
  const band = levels.peersAt([1, 5, 10, 20], [
    seriesOf([1, 10, 20], step => step),
    seriesOf([5, 10], step => step * 3),
    seriesOf([], step => step),
    null,
  ], 'allocated');
  assert.deepEqual(band.low, [1, 10, 10, 20]);
  assert.deepEqual(band.high, [15, 15, 30, 20]);
  assert.deepEqual(levels.peersAt([1, 2], [], 'allocated').median, [null, null]);
});

test('a rank and its peers are compared by the same level: that of the account', () => {
  const names = { allocated: 'minimum', peak: 'peak', reserved: 'reserved' };
  const peers = [seriesOf([1, 2], step => step * 10), seriesOf([1, 2], step => step * 30)];
  Object.entries(names).forEach(([account, name], more) => {
    const { compared } = levels.levelsOf(seriesOf([1, 2], step => step * 10), account);
    const { low, median } = levels.peersAt([1, 2], peers, account);
    assert.equal(compared.name, name);
    assert.deepEqual([compared.values, low, median], Array(3).fill([10 + more, 20 + more]));
  });
});

test('the median of the peers lies between the lowest and the highest', () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const next = numbers(seed);
    const stepsOf = () => [...new Set(Array.from({ length: 20 }, () => 1 + next(50)))].sort((a, b) => a - b);
    const all = Array.from({ length: next(9) }, () => seriesOf(stepsOf(), () => next(1000)));
    const { low, median, high } = levels.peersAt(stepsOf(), all, 'allocated');
    low.forEach((_, i) => {
      assert.equal(low[i] === null, high[i] === null);
      if (low[i] !== null) assert.ok(low[i] <= median[i] && median[i] <= high[i]);
    });
  }
});

test('an account has its own level, with its lowest values where they differ', () => {
  const device = levels.levelsOf(seriesOf([1, 2], step => step * 2 ** 30), 'allocated');
  assert.deepEqual(device.levels.map(level => level.name), ['reserved', 'peak', 'minimum']);
  assert.equal(device.words(2 ** 30), '1 GiB');
  const host = levels.levelsOf(account(2, 'host'), 'host');
  assert.deepEqual(host.levels.map(level => level.name), ['lowest host memory, private', 'highest host memory, private']);
  const time = levels.levelsOf(account(2, 'step_time'), 'step_time');
  assert.equal(time.words(8.25e6), '8.25 ms');
  assert.deepEqual(host.steps, account(2, 'host').steps, 'the first step is known');
  const flat = account(2, 'blocks');
  flat.account.lowest = flat.account.highest;
  assert.deepEqual(levels.levelsOf(flat, 'blocks').levels.map(level => level.name), ['live blocks']);
  assert.equal(levels.levelsOf(flat, 'blocks').words(1234), '1,234');
  const late = { ...flat, steps: flat.steps.map(step => step + 1454) };
  late.account.known_from_step = 1280;
  const { steps, compared } = levels.levelsOf(late, 'blocks');
  assert.deepEqual(steps.slice(0, 2), [1280, 1455], 'the first point stands for the steps before it');
  assert.deepEqual(compared.values.slice(0, 2), Array(2).fill(flat.account.highest[0]));
  assert.equal(levels.levelsOf(late, 'blocks', 1400).steps[0], 1400, 'of the steps that are asked for');
});

test('a forecast begins at the newest value of the account that it is about', () => {
  const device = series(2);
  const growing = incident('j', {});
  const of = (series, changed) => levels.fanOf(series, { ...growing, ...changed }, DEVICE_BYTES);
  const reserved = device.reserved_bytes.at(-1);
  const fan = { from: LAST_STEP, level: reserved, full: DEVICE_BYTES, p10: 930, p50: 1010, p90: 1190 };
  assert.deepEqual(of(device, {}), fan, 'a device is full by what is reserved');
  assert.deepEqual(of(device, { layer: 'reserved', last_step: 790 }), { ...fan, p10: 920, p50: 1000, p90: 1180 });
  assert.equal(of(device, { last_step: 100, steps_to_oom_p10: 5 }).p10, 0);
  const host = { layer: 'host', names_device: false };
  const known = account(2, 'host');
  assert.equal(of(known, host).level, known.account.highest.at(-1));
  assert.deepEqual([of(device, host), of(known, {})], [null, null], 'another account than that of the incident');
  const beside = account(2, 'non_torch');
  assert.equal(of(beside, { layer: 'non_torch' }).level, beside.account.highest.at(-1));
  const outside = ['non_torch', 'other'].map(layer => of(device, { layer }));
  assert.deepEqual(outside, [null, null], 'not in the reserved bytes');
  assert.deepEqual([of(device, { steps_to_oom: null }), of(device, { state: 'closed' })], [null, null]);
});

test('a forecast is followed to its early end, and no further', () => {
  const fan = { from: 500, level: 400, full: 2400, p10: 1000, p50: 1500, p90: 2000 };
  const ahead = [0, 250, 1000, 2000].map(steps => levels.levelAhead(fan, steps));
  assert.deepEqual(ahead, [400, 900, 2400, 2400]);
  assert.equal(levels.levelAhead({ ...fan, p10: 0 }, 0), 2400, 'the memory is full now');
});

test('a chart goes on to the end of the forecast, unless that leaves its levels no room', () => {
  const fan = { from: 800, level: 0, full: 1, p10: 930, p50: 1010, p90: 1190 };
  const ahead = [800, 300, 260, 240, 10].map(behind => levels.stepsAhead(fan, behind));
  assert.deepEqual(ahead, [1190, 1190, 1010, 930, 10]);
});

// --- budgets ------------------------------------------------------------------

test('the parts of a budget are what there is, and unknown ones are named', () => {
  const [device, host] = budgets.budgetsOf(rank(2, {}));
  for (const of of [device, host]) assert.equal(of.sum, sum(of.parts, part => part.bytes));
  assert.deepEqual([device.sum, device.size], [DEVICE_BYTES, DEVICE_BYTES]);
  assert.deepEqual([host.sum, host.size, host.used], [64 * GIB, 64 * GIB, 20 * GIB]);
  assert.deepEqual([device.unknown, host.unknown], [['other code'], ['files']]);
  assert.equal(device.used, DEVICE_BYTES - sum(device.parts.filter(part => /free|unaccounted/.test(part.name)), part => part.bytes));
  assert.deepEqual(device.parts.map(part => part.name).slice(-2), ['unaccounted', 'free']);
  assert.equal(budgets.budgetsOf(rank(7, {})).length, 1, 'of the host of rank 7 nothing is known');
  const names = [{}, { end: 'killed' }].map(of => budgets.budgetsOf(rank(2, of))[0].name);
  assert.deepEqual(names, ['rank 2', '■ rank 2'], 'a rank that has ended holds nothing now');
});

test('a legend has each colour once: what devices and hosts hold does not look the same', () => {
  const all = [rank(2, {}), rank(3, {})].flatMap(budgets.budgetsOf);
  all[2].parts.push({ ...all[2].parts.find(part => part.name === 'unused by tensors'), name: 'cached' });
  const legend = budgets.legendOf(all);
  assert.equal(new Set(legend.map(([kind]) => kind)).size, legend.length);
  assert.deepEqual(Object.fromEntries(legend)['layer-3'], 'unused by tensors or cached');
  const kinds = parts => parts.filter(part => part.name !== 'free').map(part => part.kind);
  assert.deepEqual(kinds(all[0].parts).filter(kind => kinds(all[1].parts).includes(kind)), []);
});

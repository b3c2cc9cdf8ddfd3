// What charts are made of: the tree of the flame graph, the grid of the heat map, the levels of the
// peers, the rows of the segments; and the contrasts of the colours in both themes.

import assert from 'node:assert/strict';
import test from 'node:test';

import {
  account,
  area,
  capture,
  CAPTURE_STEP,
  DEVICE_BYTES,
  GIB,
  incident,
  LAST_STEP,
  rank,
  segments,
  series,
} from './answers.mjs';
import { fileOf, modules } from './bundle.mjs';

const found = await modules([
  'charts/budgets',
  'charts/flame',
  'charts/heat',
  'charts/levels',
  'charts/segments',
  'segments',
]);
const { 'charts/budgets': budgets, 'charts/flame': flame, 'charts/heat': heat, 'charts/levels': levels } = found;
const { 'charts/segments': map, segments: said } = found;

/** Numbers below `most`, the same in every run. */
function numbers(seed) {
  let state = seed;
  return most => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return Math.floor((state / 2 ** 32) * most);
  };
}

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

test('gaps are exactly the columns without data', () => {
  const next = numbers(3);
  for (let i = 0; i < 100; i += 1) {
    const row = Array.from({ length: next(30) }, () => (next(2) ? null : next(9)));
    const inGaps = new Set();
    for (const [from, to] of heat.gaps(row)) {
      assert.ok(to > from);
      assert.ok(row[from - 1] !== null && row[to] !== null, 'a gap is as long as it can be');
      for (let at = from; at < to; at += 1) inGaps.add(at);
    }
    row.forEach((value, at) => assert.equal(inGaps.has(at), value === null));
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
  assert.deepEqual([of(device, { steps_to_oom: null }), of(device, { state: 'closed' })], [null, null]);
});

test('a forecast is followed to its early end, and no further', () => {
  const fan = { from: 500, level: 400, full: 2400, p10: 1000, p50: 1500, p90: 2000 };
  const ahead = [0, 250, 1000, 2000].map(steps => levels.levelAhead(fan, steps));
  assert.deepEqual(ahead, [400, 900, 2400, 2400]);
  assert.equal(levels.levelAhead({ ...fan, p10: 0 }, 0), 2400, 'the memory is full now');
});

// --- budgets ------------------------------------------------------------------

test('parts say of which steps they are', () => {
  const of = (...steps) => budgets.stepsOf(steps.map(step => ({ step, clock: 'steps' })));
  assert.equal(of(1712, 1712), 'at step 1,712');
  assert.equal(of(1712, 711, 1000), 'at steps 711 to 1,712');
});

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

// --- segments -----------------------------------------------------------------

/** Segments with blocks, free ranges and merged runs that fill them, of any sizes. */
function mapOf(seed) {
  const next = numbers(seed);
  let address = 0x7fff_ffff_f000n;
  const made = Array.from({ length: 1 + next(9) }, () => {
    const of = { address: `0x${address.toString(16)}`, bytes: 0, blocks: [], merged: [] };
    for (let i = next(70); i >= 0; i -= 1) {
      const [offset_bytes, bytes, step] = [of.bytes, 512 * (1 + next(5000)), 1 + next(40)];
      const block = (state, of) => ({ offset_bytes, bytes, state, step: null, stack: null, ...of });
      if (next(5) === 0) of.blocks.push(block('inactive'));
      else if (next(6) === 0) of.merged.push({ offset_bytes, bytes, blocks: 1 + next(9), allocated_bytes: bytes / 2, pending_bytes: 0, first_step: step, last_step: step + next(4) });
      else of.blocks.push(block('allocated', { step, stack: next(3) }));
      of.bytes += bytes;
    }
    address += BigInt(of.bytes + 512 * next(9));
    return of;
  });
  return { segments: made, stacks: [], frames: [] };
}

test('rows have each byte of each segment once, in order', () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const answer = mapOf(seed);
    const parts = map.partsOf(answer);
    parts.forEach((all, segment) => {
      let end = 0;
      for (const part of all) {
        assert.equal(part.from, end, 'a hole, or parts overlap');
        end = part.to;
      }
      assert.equal(end, answer.segments[segment].bytes);
      const slices = map.slicesOf(answer.segments[segment], segment, all);
      assert.ok(slices.length <= 64);
      assert.deepEqual([slices[0].from, slices.at(-1).to], [0, end]);
      slices.forEach((row, i) => {
        if (i) assert.equal(row.from, slices[i - 1].to);
        const inside = all.filter(part => part.from < row.to && part.to > row.from);
        assert.deepEqual(row.parts, inside);
      });
    });
    for (const order of map.ORDERS) {
      const rows = map.rowsOf(answer, parts, order);
      assert.deepEqual(rows.map(row => row.segment).sort((a, b) => a - b), answer.segments.map((_, i) => i));
      if (order === 'size') rows.forEach((row, i) => assert.ok(!i || row.to <= rows[i - 1].to));
    }
  }
});

test('a part is found by the address of each of its ends, and no other part is', () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const answer = mapOf(seed);
    const parts = map.partsOf(answer);
    for (const part of parts.flat()) {
      for (const offset of [part.from, part.to - 1]) {
        assert.equal(map.partAt(answer, parts, map.addressOf(answer.segments[part.segment], offset)), part);
      }
    }
    for (const address of ['', '0x', '0x1', 'x', '0xfffffffffffffffff', '-1']) {
      assert.equal(map.partAt(answer, parts, address), null, address);
    }
  }
  const high = { segments: [{ address: '0xffffffffffff0000', bytes: 4096, blocks: [{ offset_bytes: 0, bytes: 4096, state: 'inactive' }], merged: [] }] };
  assert.equal(map.addressOf(high.segments[0], 1), '0xffffffffffff0001', 'beyond the numbers of JavaScript');
  assert.ok(map.partAt(high, map.partsOf(high), '0xffffffffffff0fff'));
});

test('events are the steps that allocated something, and the tally of a step is what was there', () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const parts = map.partsOf(mapOf(seed));
    const events = map.eventsOf(parts);
    assert.deepEqual(events, [...new Set(events)].sort((a, b) => a - b));
    const ends = map.tallyAt(parts, Infinity);
    assert.deepEqual([ends.blocks, ends.bytes, ends.uncertain], [ends.ofBlocks, ends.ofBytes, 0]);
    assert.equal(map.tallyAt(parts, 0).blocks, 0);
    let before = map.tallyAt(parts, 0);
    for (const step of events) {
      const now = map.tallyAt(parts, step);
      assert.equal(now.blocks + now.uncertain <= ends.blocks, true);
      assert.equal(now.ofBlocks + now.uncertain, ends.blocks, 'each block is counted or uncertain');
      const alone = parts.flat().filter(part => part.block?.step != null && part.block.step <= step).length;
      assert.ok(now.blocks >= alone && now.blocks >= before.blocks);
      before = now;
    }
    for (let at = 0; at < 50; at += 1) {
      assert.equal(map.beside(events, at, 'after'), events.filter(step => step > at)[0] ?? at);
      assert.equal(map.beside(events, at, 'before'), events.filter(step => step < at).at(-1) ?? at);
    }
  }
});

test('lines have hues of their own, the largest the same in every capture', () => {
  const huesOf = lines =>
    map.huesOf({
      frames: lines.map(line => ({ file: '/app/train.py', line, function: 'f' })),
      stacks: lines.map((_, line) => ({ line, bytes: 100 - line })),
    });
  for (let first = 1; first <= 200; first += 1) {
    const lines = Array.from({ length: 12 }, (_, i) => first + i * 7);
    const hues = huesOf(lines);
    assert.equal(new Set(hues).size, 12);
    assert.equal(hues[0], huesOf([first])[0]);
  }
  const many = huesOf(Array.from({ length: 40 }, (_, i) => i));
  assert.equal(new Set(many).size, 12, 'more lines share them');
});

test('a block is said in words, and what does not agree is said', () => {
  const answer = segments(capture('j', {}), 2);
  const parts = map.partsOf(answer);
  const words = (segment, part) => said.partWords(answer, parts[segment][part], 'step');
  assert.equal(words(0, 2), '24 MiB allocated (25,165,696 bytes requested), step 113, /app/training/metrics/accumulate_predictions.py:123 train_step, at 0x7f12a7000000');
  assert.equal(words(0, 3), '24 MiB free, at 0x7f12a8800000');
  assert.match(words(0, 1), /^24 MiB pending free/);
  assert.match(words(3, 0), /^900 small blocks with 1.5 MiB of 2 MiB, allocated in steps 1 to 113/);
  assert.match(words(5, 0), /stack unknown/);
  const stack = said.partWithStack(answer, parts[0][2], 'step');
  assert.ok(stack.endsWith('; mse_loss functional.py:3952 ← train_step accumulate_predictions.py:123 ← main train.py:157'), stack);
  assert.equal(said.partWithStack(answer, parts[0][3], 'step'), words(0, 3));
  assert.match(said.segmentWords(answer.segments[5]), /^segment of 64 MiB, private pool 0,1, stream 0x0, at 0x/);
  const [reserved, merged] = said.disagreements(answer);
  assert.match(reserved, /^The counter of reserved bytes, .*, is 2 MiB more than the segments have\.$/);
  assert.match(merged, /^900 small blocks with 1.5 MiB are merged/);
  const less = { ...answer, allocated_difference_bytes: -512, reserved_difference_bytes: null, complete: false };
  assert.match(said.disagreements(less).join(' '), /is 512 B less than the blocks hold.*The tape was full/);
  const source = of => said.sourceWords({ ...answer, ...of });
  assert.equal(source({}), '');
  assert.equal(source({ segment_source: 'runtime' }), '', 'they are all of the allocator');
  assert.match(source({ segment_source: 'runtime', split_bytes: null }), /other code's/);
  assert.match(source({ segment_source: 'none', split_bytes: null }), /--detail/);
  assert.equal(answer.last_step, CAPTURE_STEP);
});

// --- colours ------------------------------------------------------------------

/** The colours of the style sheet, by theme. */
async function palette() {
  const sheet = await fileOf('src/style.css');
  const themes = { light: {}, dark: {} };
  for (const [, name, light, dark] of sheet.matchAll(/--([a-z0-9-]+): light-dark\((#\w{6}), (#\w{6})\);/g)) {
    themes.light[name] = light;
    themes.dark[name] = dark;
  }
  return themes;
}

/** Red, green and blue in linear light. */
const channels = colour =>
  [1, 3, 5]
    .map(at => parseInt(colour.slice(at, at + 2), 16) / 255)
    .map(value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));

function contrast(one, other) {
  const luminance = colour => channels(colour).reduce((total, value, i) => total + value * [0.2126, 0.7152, 0.0722][i], 0);
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

/** Distance of two colours as the eye has it (CIE 1976); about 2 is just visible. */
function distance(one, other) {
  const lab = colour => {
    const [r, g, b] = channels(colour);
    const white = [0.95047, 1, 1.08883];
    const xyz = [0.4124 * r + 0.3576 * g + 0.1805 * b, 0.2126 * r + 0.7152 * g + 0.0722 * b, 0.0193 * r + 0.1192 * g + 0.9505 * b];
    const [x, y, z] = xyz.map((value, i) => Math.cbrt(value / white[i]));
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
  };
  const [a, b] = [lab(one), lab(other)];
  return Math.hypot(...a.map((value, i) => value - b[i]));
}

const TEXTS = ['text', 'soft', 'link', 'bad', 'warn', 'good', 'onset', 'mark'];
const ON_STATES = ['bad bad-back', 'warn warn-back', 'good good-back', 'text bad-back', 'text warn-back', 'link bad-back', 'link warn-back'];
const TONES = [0, 1, 2, 3, 4, 5].map(tone => `tone-${tone}`);

test('text and lines have contrast in both themes', async () => {
  const pairs = [
    ...TEXTS.flatMap(name => [[name, 'back', 4.5], [name, 'panel', 4.5]]),
    ...ON_STATES.map(pair => [...pair.split(' '), 4.5]),
    ...TONES.map(tone => ['text', tone, 4.5]),
    ...['step-min', 'peak', 'reserved', 'peer'].map(name => [name, 'back', 3]),
    // The median of the peers is not taken for a line of the grid.
    ['peer', 'line', 2.5],
  ];
  for (const [theme, colours] of Object.entries(await palette())) {
    for (const [name, ground, least] of pairs) {
      const seen = contrast(colours[name], colours[ground]);
      assert.ok(seen >= least, `${theme}: ${name} on ${ground} is ${seen.toFixed(2)}`);
    }
    // A healthy row is calm: nearer to the page than to the colour of growth.
    assert.ok(contrast(colours['heat-calm'], colours.back) < 1.3, theme);
    assert.ok(contrast(colours['heat-more'], colours['heat-calm']) > 3, theme);
  }
});

test('parts of budgets have colours that are told apart in both themes', async () => {
  const sheet = await fileOf('src/style.css');
  const fills = [...sheet.matchAll(/^\.((?:layer|host)-\w+) \{ fill: light-dark\((#\w{6}), (#\w{6})\)/gm)];
  assert.equal(fills.length, 15);
  for (const [theme, colours] of Object.entries(await palette())) {
    const all = [['free', colours.free], ...fills.map(([, name, ...of]) => [name, of[theme === 'light' ? 0 : 1]])];
    all.forEach(([name, one], i) => {
      for (const [other, two] of all.slice(i + 1)) {
        assert.ok(distance(one, two) > 16, `${theme}: ${name} and ${other} are ${distance(one, two).toFixed(1)} apart`);
      }
    });
  }
});

test('names have contrast on the flames that differ most from the peers', async () => {
  const source = await fileOf('src/charts/flame_graph.tsx');
  const share = Number(/DIFFERENCE_MAX = ([\d.]+)/.exec(source)[1]);
  const mixed = (from, to) =>
    [1, 3, 5]
      .map(at => [parseInt(from.slice(at, at + 2), 16), parseInt(to.slice(at, at + 2), 16)])
      .map(([low, high]) => Math.round(low + (high - low) * share).toString(16).padStart(2, '0'))
      .reduce((text, part) => text + part, '#');
  for (const [theme, colours] of Object.entries(await palette())) {
    for (const end of ['heat-more', 'heat-less']) {
      const seen = contrast(colours.text, mixed(colours['heat-calm'], colours[end]));
      assert.ok(seen >= 4.5, `${theme}, ${end}: ${seen.toFixed(2)}`);
    }
  }
});

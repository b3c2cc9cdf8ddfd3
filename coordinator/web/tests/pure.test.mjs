// Numbers, the address, captures, ranks and the keys: modules of the page without a document.

import assert from 'node:assert/strict';
import test from 'node:test';

import { modules } from './bundle.mjs';
import { capture as captureOf } from './captures.mjs';
import { incident as incidentOf } from './incidents.mjs';
import { rank as rankOf } from './ranks.mjs';

const found = await modules([
  'address',
  'captures',
  'entries',
  'keys',
  'ranks',
  'terminal',
  'units',
]);
const { units, keys, address, captures, terminal, entries, ranks } = found;
const MIB = 2 ** 20;

// --- numbers ------------------------------------------------------------------

test('bytes have the precision of the sentences of core', () => {
  for (const [count, text] of [
    [12, '12 B'],
    [128 * 1024, '128 KiB'],
    [1_572_864, '1.5 MiB'],
    [2.69 * MIB, '2.69 MiB'],
    [MIB - 1, '1 MiB'],
    [142.5 * MIB, '143 MiB'],
    [80 * 1024 * MIB, '80 GiB'],
    [-3 * MIB, '−3 MiB'],
    [0, '0 B'],
    [null, 'unknown'],
    [undefined, 'unknown'],
  ]) {
    assert.equal(units.bytes(count), text);
  }
  assert.equal(units.bytes(3 * MIB, true), '+3 MiB');
});

const SCALES = { B: 1, KiB: 2 ** 10, MiB: MIB, GiB: 2 ** 30, TiB: 2 ** 40 };
const sizeOf = text => {
  const [number, unit] = text.split(' ');
  return Number(number.replaceAll(',', '')) * SCALES[unit];
};

test('bytes are within half a percent, in the largest unit, and never 1,024 of one', () => {
  let last = -1;
  for (let size = 0; size < 2 ** 49; size = Math.ceil(size * 1.013 + 1)) {
    const text = units.bytes(size);
    const read = sizeOf(text);
    assert.ok(Math.abs(read - size) <= size * 0.005, `${size}: ${text}`);
    assert.ok(read >= last, `${size}: ${text} is less than what stands before it`);
    const [number, unit] = text.split(' ');
    if (unit !== 'TiB') assert.ok(Number(number.replaceAll(',', '')) < 1024, `${size}: ${text}`);
    last = read;
    assert.equal(units.bytes(-size), size === 0 ? '0 B' : `−${text}`);
  }
});

test('durations and plurals', () => {
  assert.deepEqual([90, 119, 120, 7199, 7200, 4 * 86400, null].map(units.duration), [
    '90 s',
    '119 s',
    '2 min',
    '120 min',
    '2 h',
    '4 days',
    'unknown',
  ]);
  assert.deepEqual([units.plural(1, 'step'), units.plural(1218, 'step')], ['1 step', '1,218 steps']);
  assert.equal(units.plural(2, 'process', 'processes'), '2 processes');
});

test('figures say which steps they are of', () => {
  assert.equal(units.atSteps('step', [1712, 1712]), 'at step 1,712');
  assert.equal(units.atSteps('turn', [1712, 711, 1000]), 'at turns 711 to 1,712');
});

test('ticks are round, within the range, and of steps whole', () => {
  assert.deepEqual(units.ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(units.ticks(7, 7, 5), [7]);
  assert.deepEqual(units.stepTicks(1, 3, 8), [1, 2, 3]);
  assert.deepEqual(
    units.byteTicks(85 * 1024 * MIB, 4).map(value => units.bytes(value)),
    ['0 B', '50 GiB'],
  );
  for (const high of [1, 3, 17, 999, 123456]) {
    for (const count of [1, 4, 6, 30]) {
      const at = units.stepTicks(1, high, count);
      assert.ok(at.every(tick => tick >= 1 && tick <= high && Number.isInteger(tick)), `${at}`);
      assert.ok(at.length <= count + 1, `${at.length} ticks in place of ${count}`);
    }
  }
});

// --- the address --------------------------------------------------------------

const goTo = hash => {
  location.hash = hash;
  window.dispatchEvent(new Event('hashchange'));
  return address.address.value;
};

test('the address is the view, the id, and how it is looked at', () => {
  assert.equal(goTo('').view, 'jobs');
  assert.equal(goTo('#/').view, 'jobs');
  const { view, id, query } = goTo('#/job/a%2Fb%20c?rank=3&steps=10-20&sort=step.down');
  assert.deepEqual([view, id, query.get('sort')], ['job', 'a/b c', 'step.down']);
  assert.equal(address.numberIn('rank'), 3);
  assert.deepEqual(address.stepsIn(), { from: 10, to: 20 });
  assert.equal(address.here({ steps: null }), '#/job/a%2Fb%20c?rank=3&sort=step.down');
  assert.equal(goTo('#/job/%E0%A4%A').id, '%E0%A4%A', 'no text of a browser is an error');
});

test('steps and numbers that are none are left out', () => {
  for (const text of ['20-10', '-5', '1-2-3', '1e3-2e3', '1', 'x-y', '0x1-2', '9'.repeat(20) + '-1']) {
    goTo(`#/job/a?steps=${text}`);
    assert.equal(address.stepsIn(), null, text);
  }
  for (const text of ['-1', '1.5', '', 'x', '9'.repeat(20)]) {
    goTo(`#/job/a?rank=${text}`);
    assert.equal(address.numberIn('rank'), null, text);
  }
});

test('what a link is made of is found again in it', () => {
  for (const id of ['train-7b', 'a/b', 'a?b=c#d&e', '100 %', 'x\ny', '名前', '<b>"\'', '%41', '..', '\u202e']) {
    for (const values of [{}, { rank: 0, steps: '1-2' }, { filter: id, sort: null }]) {
      const at = goTo(address.link('job', id, values));
      assert.deepEqual([at.view, at.id], ['job', id]);
      assert.equal(at.query.get('filter'), values.filter ?? null);
      assert.equal(address.numberIn('rank'), values.rank ?? null);
    }
  }
});

// --- captures, ranks, keys, lines for a terminal --------------------------------

test('captures beside one are by the time of their requests', () => {
  const all = [5, 1, 9].map(at => captureOf('j', { id: `cap-${at}`, requested_wall_ns: at }));
  const ids = ({ before, after }) => [before?.id ?? null, after?.id ?? null];
  assert.deepEqual(ids(captures.besides(all, 'cap-5')), ['cap-1', 'cap-9']);
  assert.deepEqual(ids(captures.besides(all, 'cap-9')), ['cap-5', null]);
  assert.deepEqual(ids(captures.besides(all, null)), ['cap-9', null]);
  assert.deepEqual(ids(captures.besides(all, 'cap-7')), [null, null]);
});

test('peers are of the same role, the nearest first', () => {
  const all = Array.from({ length: 8 }, (_, i) => rankOf(i, { role: i % 2 ? 'odd' : 'even' }));
  const peers = ranks.peersOf({ job: 'j', attempt: 0, ranks: all, unknown: [] }, 3, 2);
  assert.deepEqual(peers.map(of => of.rank).sort(), [1, 5]);
});

const press = (key, of = {}) => ({ key, ctrlKey: false, metaKey: false, altKey: false, getModifierState: () => false, ...of });

test('keys ask for what the list of keys says', () => {
  assert.deepEqual(keys.wishOf(press('k', { ctrlKey: true }), false), { kind: 'find' });
  assert.deepEqual(keys.wishOf(press('K', { metaKey: true }), false), { kind: 'find' });
  assert.deepEqual(keys.wishOf(press('?'), false), { kind: 'keys' });
  assert.deepEqual(keys.wishOf(press('n'), true), { kind: 'go', view: 'nodes' });
  assert.equal(keys.wishOf(press('n'), false), null);
  assert.deepEqual(keys.wishOf(press(','), false), { kind: 'event', which: 'before' });
  assert.deepEqual(keys.wishOf(press('.'), true), { kind: 'event', which: 'after' });
  assert.equal(keys.wishOf(press('?', { ctrlKey: true }), false), null, "the browser's");
  assert.deepEqual(keys.wishOf(press('[', { ctrlKey: true, altKey: true, getModifierState: () => true }), false), { kind: 'capture', which: 'before' });
});

test('the palette finds each entry by each of its words', () => {
  const known = { view: 'job', id: 'train', capture: null, job: 'train', attempt: 3, jobs: [] };
  const all = entries.entriesOf({
    ...known,
    ranks: Array.from({ length: 12 }, (_, i) => rankOf(i, {})),
    incidents: [incidentOf('train', {})],
    captures: [captureOf('train', {})],
  });
  assert.deepEqual(keys.fitting(all, ''), all);
  for (const entry of all) {
    for (const word of `${entry.words} ${entry.detail}`.split(/\s+/).filter(Boolean)) {
      assert.ok(keys.fitting(all, word).includes(entry), `${word} does not find ${entry.words}`);
    }
  }
  assert.equal(keys.fitting(all, 'rank 1')[0].words, 'rank 1', 'before rank 10 and 11');
  assert.equal(keys.fitting(all, 'rank 1')[0].href, '#/job/train?attempt=3&rank=1');
  assert.ok(keys.fitting(all, 'accumulate 123').some(entry => entry.kind === 'line'));
  assert.deepEqual(keys.fitting(all, 'nosuchthing'), []);
  assert.equal(new Set(all.map(keys.keyOf)).size, all.length, 'entries differ');
});

test('names in lines for a terminal are quoted as a shell takes them', () => {
  const line = terminal.memtape('lines', "it's; rm -rf $(x) `y`");
  assert.equal(line, `memtape lines 'it'\\''s; rm -rf $(x) \`y\`' --coordinator http://coordinator:7770`);
  assert.equal(terminal.memtape('show', 'inc-1'), 'memtape show inc-1 --coordinator http://coordinator:7770');
});

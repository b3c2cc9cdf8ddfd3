// Numbers, words, answers, the address and the keys: the modules of the page without a document.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import test from 'node:test';

import { fileOf, modules } from './bundle.mjs';
import { capture as captureOf } from './captures.mjs';
import { entry, incident as incidentOf, thread as threadOf } from './incidents.mjs';
import { rank as rankOf } from './ranks.mjs';

const found = await modules([
  'address',
  'captures',
  'entries',
  'keys',
  'ranks',
  'terminal',
  'thread',
  'units',
  'visible',
  'words',
]);
const { thread, visible, units, words, keys, address, captures, terminal, entries, ranks } = found;
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

// --- words --------------------------------------------------------------------

test('a dead rank is said to be dead, with the failed requests', () => {
  assert.equal(words.endOf(rankOf(2, {})), null);
  const dead = rankOf(2, { step: 812, end: 'oom_killed', end_detail: 'signal 9', ooms: 1 });
  assert.equal(
    words.endOf(dead),
    'rank 2 ran out of device memory (1 request failed) and ' +
      'was OOM killed after step 812 (signal 9)',
  );
  const exited = rankOf(2, { step: 812, end: 'exited', end_detail: 'sealed' });
  assert.equal(words.endOf(exited), 'rank 2 exited after step 812');
  assert.deepEqual([dead, exited, rankOf(2, {}), null].map(words.hasDied), [true, false, false, false]);
});

test('the end of a rank has the word of the API wherever it stands', async () => {
  const { components } = JSON.parse(await readFile(new URL('../../src/http/openapi.json', import.meta.url)));
  const said = { exited: 'exited', failed: 'failed', killed: 'killed', oom_killed: 'OOM killed', unknown: 'ended' };
  assert.deepEqual(components.schemas.End.enum, Object.keys(said));
  for (const [end, word] of Object.entries(said)) {
    const dead = rankOf(2, { end, state: 'failed' });
    assert.equal(words.stateOf(words.standing(dead))[2], word);
    assert.match(words.endOf(dead), new RegExp(`^rank 2 (was )?${word} after step`));
  }
  assert.equal(words.standing(rankOf(2, {})), 'growing', 'while it lives');
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
  const rows = words.joined([
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
  const said = of => [words.decision(of), words.hook(of.kind), words.outcome(of)];
  assert.deepEqual(said({ ...action(), times: 2 }), [
    '2 × a notice',
    'no restart target is configured',
    'nothing to do',
  ]);
  const would = action({ decision: 'would restart', kind: 'command', why: '', outcome: 'not run: dry run' });
  assert.deepEqual(said(would), ['would restart', 'by command', 'not run: dry run']);
  const proven = action({ outcome: 'done', verdict: 'helped', proof: 'the next attempt finished' });
  assert.equal(words.outcome(proven), 'done; helped: the next attempt finished');
});

test('events are in the order of time, newest first', () => {
  const incident = incidentOf('j', { opened_wall_ns: 20, closed_wall_ns: null });
  const capture = captureOf('j', { requested_wall_ns: 30, trigger: 'out_of_memory' });
  const events = words.events({
    incidents: [incident],
    captures: [capture],
    ranks: [rankOf(2, { end: 'killed', step_wall_ns: 40 }), rankOf(3, {})],
    actions: [action({ wall_ns: 50 })],
  });
  assert.deepEqual(
    events.map(event => event.wall_ns),
    [50, 40, 30, 20],
  );
  assert.equal(events[2].text, 'capture, out of memory of rank 2: 7 of 8 ranks aligned');
  assert.equal(words.trigger({ ...capture, trigger: 'imbalance' }), 'imbalance of rank 2');
});

test('an end without a time stands after all that happened up to its step', () => {
  const captures = [captureOf('j', { id: 'cap-early', requested_wall_ns: 30, step: 150 }), captureOf('j', { id: 'cap-late', requested_wall_ns: 90, step: 400 })];
  const ranks = [rankOf(2, { end: 'exited', step_wall_ns: 0, step: 300 })];
  const events = words.events({ incidents: [], captures, ranks, actions: [] });
  assert.deepEqual(
    events.map(event => event.step),
    [400, 300, 150],
  );
});

test('what people did and verdicts stand among the events of an incident, and a note is apart', () => {
  const entries = [entry(30, 'olga', 'acknowledged'), entry(10, 'piet', 'noted', { text: 'one\ntwo' })];
  const [opened, done, verdict] = [entry(40), entry(20), entry(15)].map(of => of.wall_ns);
  const incident = incidentOf('j', { opened_wall_ns: opened, thread: threadOf({ entries }) });
  const acted = action({ wall_ns: done, verdict: 'helped', verdict_wall_ns: verdict, proof: 'it holds less' });
  const events = words.events({ incidents: [incident], captures: [], ranks: [], actions: [acted], inView: incident.id });
  assert.deepEqual(
    events.map(({ text, note }) => [text, note]),
    [
      ['piet wrote', 'one\ntwo'],
      ['verdict: helped: it holds less', undefined],
      ['a notice', undefined],
      ['olga acknowledged it', undefined],
      ['growth on rank 2 detected, began at step 113', undefined],
    ],
  );
});

test('an incident begins with growth only where something grows', () => {
  const beginning = of => {
    const incident = incidentOf('j', { onset_step: 113, ...of });
    return words.events({ incidents: [incident], captures: [], ranks: [], actions: [], inView: incident.id })[0].text;
  };
  for (const [of, text] of [
    [{ layer: 'host' }, 'growth on rank 2 detected, began at step 113'],
    [{ layer: 'spread', class: 'imbalance' }, 'imbalance on rank 2 detected, began at step 113'],
    [{ layer: 'progress', class: 'desynchronised' }, 'desynchronised on rank 2 detected, began at step 113'],
    [{ layer: 'progress', scope: 'all_ranks' }, 'the job stands still, rank 2 at step 113'],
    [{ layer: 'process', class: 'died' }, 'died on rank 2 after step 113'],
  ]) {
    assert.equal(beginning(of), text);
  }
});

test('events of another incident than the one in view say whose they are', () => {
  const reason = 'the process of its rank has ended; inc-oom reports how';
  const incidents = [
    incidentOf('j', { id: 'inc-leak', opened_wall_ns: 10, closed_wall_ns: 40, closed_reason: reason }),
    incidentOf('j', { id: 'inc-oom', class: 'out_of_memory', layer: 'process', opened_wall_ns: 30 }),
  ];
  const seen = inView => words.events({ incidents, captures: [], ranks: [], actions: [], inView }).map(of => of.text);
  assert.deepEqual(seen('inc-oom'), [
    'inc-leak (leak) closed: the process of its rank has ended; this incident reports how',
    'out of memory on rank 2 after step 113',
    'inc-leak: growth on rank 2 detected, began at step 113',
  ]);
  assert.deepEqual(seen('inc-leak'), [
    `closed: ${reason}`,
    'inc-oom: out of memory on rank 2 after step 113',
    'growth on rank 2 detected, began at step 113',
  ]);
  assert.equal(seen(undefined)[0], `inc-leak (leak) closed: ${reason}`, 'of a job');
});

test('each deed of the API has words of its own, and that of a newer coordinator is readable', async () => {
  const { components } = JSON.parse(await readFile(new URL('../../src/http/openapi.json', import.meta.url)));
  const names = components.schemas.Deed.enum ?? components.schemas.Deed.oneOf.map(of => of.const);
  assert.ok(names.length >= 9);
  const said = names.map(name => thread.deed(entry(1, 'olga', name, { text: 'team-a', until_step: 9 }), 'step'));
  assert.equal(new Set(said.map(([, text]) => text)).size, names.length);
  for (const [symbol, text] of said) assert.ok(symbol !== '·' && !text.includes('_'), text);
  assert.deepEqual(thread.deed(entry(1, 'olga', 'put_off', { text: 'x' }), 'step'), ['·', 'olga put off x']);
  assert.equal(thread.deed(entry(1, 'olga', 'silenced', { until_step: 5000 }), 'turn')[1], 'olga silenced it until turn 5,000');
});

test('a card says who knows of an incident, and a silence only while it holds', () => {
  const silence = { holds: true, until_step: 5000, until_wall_ns: null, who: 'olga', since_wall_ns: 1 };
  const acknowledged = { who: 'piet', wall_ns: 1 };
  const of = incidentOf('j', { thread: threadOf({ silence, acknowledged, assignee: 'team-a' }) });
  assert.deepEqual(thread.marks(of, 'step'), [
    ['silenced', 'until step 5,000 by olga'],
    ['acknowledged by', 'piet'],
    ['assigned to', 'team-a'],
  ]);
  const over = incidentOf('j', { thread: threadOf({ silence: { ...silence, holds: false } }) });
  assert.deepEqual(thread.marks(over, 'step'), []);
  assert.deepEqual([of, over, { ...of, state: 'closed' }].map(thread.isSilenced), [true, false, false]);
});

test('hidden characters are those of the program, and written out', async () => {
  const source = await readFile(new URL('../../../tape/src/visible.rs', import.meta.url), 'utf8');
  const list = /matches!\(([^)]*)\)/.exec(source)[1];
  const hidden = new Set();
  for (const [, from, to] of list.matchAll(/'\\u\{(\w+)\}'(?:\.\.='\\u\{(\w+)\}')?/g)) {
    for (let code = parseInt(from, 16); code <= parseInt(to ?? from, 16); code += 1) hidden.add(code);
  }
  assert.ok(hidden.size > 4000 && hidden.has(0x202e));
  const isControl = code => code < 0x20 || (code >= 0x7f && code < 0xa0);
  for (let code = 0; code <= 0x10ffff; code += 1) {
    const [text, written] = [String.fromCodePoint(code), `\\u{${code.toString(16)}}`];
    const isWhite = [9, 10, 13].includes(code);
    const isShown = isWhite || !(hidden.has(code) || isControl(code));
    // Ends of lines and tabs stay: lines of a note are lines.
    if (visible.visible(text) !== (isShown ? text : written)) assert.fail(written);
  }
  // The plain page has the same list.
  const listOf = async name => /const HIDDEN =\s*(\/.*\/gu);/.exec(await fileOf(name))?.[1];
  assert.ok(await listOf('src/visible.ts'));
  assert.equal(await listOf('plain/app.js'), await listOf('src/visible.ts'));
  assert.equal(visible.visible('a\u202eb \u{e0041}'), 'a\\u{202e}b \\u{e0041}');
});

test('a state of a newer coordinator stays readable', () => {
  assert.deepEqual(words.stateOf('half_asleep'), ['·', '', 'half asleep']);
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

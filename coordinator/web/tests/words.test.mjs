// The words of the page: ends of ranks, decisions, events, deeds of people, hidden characters.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import test from 'node:test';

import { fileOf, modules } from './bundle.mjs';
import { capture as captureOf } from './captures.mjs';
import { entry, incident as incidentOf, thread as threadOf } from './incidents.mjs';
import { rank as rankOf } from './ranks.mjs';

const { thread, visible, words } = await modules(['thread', 'visible', 'words']);

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
  assert.deepEqual([dead, exited, rankOf(2, {}), null].map(words.hasDied), [
    true,
    false,
    false,
    false,
  ]);
});

test('the end of a rank has the word of the API wherever it stands', () => {
  for (const [end, ended, sentence] of [
    ['exited', 'exited', 'exited'],
    ['failed', 'failed', 'failed'],
    ['killed', 'killed', 'was killed'],
    ['killed', 'ended', 'ended without an orderly exit'],
    ['oom_killed', 'OOM killed', 'was OOM killed'],
    ['unknown', 'ended', 'ended without an orderly exit'],
  ]) {
    const dead = rankOf(2, { end, ended, state: 'failed' });
    assert.equal(words.stateOf(words.standing(dead))[2], ended);
    assert.equal(words.fateOf({ outcome: 'dead' }, dead), ended);
    assert.equal(words.endOf(dead), `rank 2 ${sentence} after step 800`);
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
  const would = action({
    decision: 'would restart',
    kind: 'command',
    why: '',
    outcome: 'not run: dry run',
  });
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
  const captures = [
    captureOf('j', { id: 'cap-early', requested_wall_ns: 30, step: 150 }),
    captureOf('j', { id: 'cap-late', requested_wall_ns: 90, step: 400 }),
  ];
  const ranks = [rankOf(2, { end: 'exited', step_wall_ns: 0, step: 300 })];
  const events = words.events({ incidents: [], captures, ranks, actions: [] });
  assert.deepEqual(
    events.map(event => event.step),
    [400, 300, 150],
  );
});

test('what people did and verdicts stand among the events, and a note is apart', () => {
  const entries = [
    entry(30, 'olga', 'acknowledged'),
    entry(10, 'piet', 'noted', { text: 'one\ntwo' }),
  ];
  const [opened, done, verdict] = [entry(40), entry(20), entry(15)].map(of => of.wall_ns);
  const incident = incidentOf('j', { opened_wall_ns: opened, thread: threadOf({ entries }) });
  const acted = action({
    wall_ns: done,
    verdict: 'helped',
    verdict_wall_ns: verdict,
    proof: 'it holds less',
  });
  const events = words.events({
    incidents: [incident],
    captures: [],
    ranks: [],
    actions: [acted],
    inView: incident.id,
  });
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
    return words.events({
      incidents: [incident],
      captures: [],
      ranks: [],
      actions: [],
      inView: incident.id,
    })[0].text;
  };
  for (const [of, text] of [
    [{ layer: 'host' }, 'growth on rank 2 detected, began at step 113'],
    [{ layer: 'spread', class: 'imbalance' }, 'imbalance on rank 2 detected, began at step 113'],
    [
      { layer: 'progress', class: 'desynchronised' },
      'desynchronised on rank 2 detected, began at step 113',
    ],
    [{ layer: 'progress', scope: 'all_ranks' }, 'the job stands still, rank 2 at step 113'],
    [{ layer: 'process', class: 'died' }, 'died on rank 2 after step 113'],
  ]) {
    assert.equal(beginning(of), text);
  }
});

test('events of another incident than the one in view say whose they are', () => {
  const reason = 'the process of its rank has ended; inc-oom reports how';
  const incidents = [
    incidentOf('j', {
      id: 'inc-leak',
      opened_wall_ns: 10,
      closed_wall_ns: 40,
      closed_reason: reason,
    }),
    incidentOf('j', {
      id: 'inc-oom',
      class: 'out_of_memory',
      layer: 'process',
      opened_wall_ns: 30,
    }),
  ];
  const seen = inView =>
    words.events({ incidents, captures: [], ranks: [], actions: [], inView }).map(of => of.text);
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

test('each deed of the API has words of its own, and a newer one is readable', async () => {
  const { components } = JSON.parse(
    await readFile(new URL('../../src/http/openapi.json', import.meta.url)),
  );
  const names = components.schemas.Deed.enum ?? components.schemas.Deed.oneOf.map(of => of.const);
  assert.ok(names.length >= 9);
  const said = names.map(name =>
    thread.deed(entry(1, 'olga', name, { text: 'team-a', until_step: 9 }), 'step'),
  );
  assert.equal(new Set(said.map(([, text]) => text)).size, names.length);
  for (const [symbol, text] of said) assert.ok(symbol !== '·' && !text.includes('_'), text);
  assert.deepEqual(thread.deed(entry(1, 'olga', 'put_off', { text: 'x' }), 'step'), [
    '·',
    'olga put off x',
  ]);
  assert.equal(
    thread.deed(entry(1, 'olga', 'silenced', { until_step: 5000 }), 'turn')[1],
    'olga silenced it until turn 5,000',
  );
});

test('a card says who knows of an incident, and a silence only while it holds', () => {
  const silence = {
    holds: true,
    until_step: 5000,
    until_wall_ns: null,
    who: 'olga',
    since_wall_ns: 1,
  };
  const acknowledged = { who: 'piet', wall_ns: 1 };
  const of = incidentOf('j', { thread: threadOf({ silence, acknowledged, assignee: 'team-a' }) });
  assert.deepEqual(thread.marks(of, 'step'), [
    ['silenced', 'until step 5,000 by olga'],
    ['acknowledged by', 'piet'],
    ['assigned to', 'team-a'],
  ]);
  const over = incidentOf('j', { thread: threadOf({ silence: { ...silence, holds: false } }) });
  assert.deepEqual(thread.marks(over, 'step'), []);
  assert.deepEqual([of, over, { ...of, state: 'closed' }].map(thread.isSilenced), [
    true,
    false,
    false,
  ]);
});

test('hidden characters are those of the program, and written out', async () => {
  const source = await readFile(new URL('../../../tape/src/visible.rs', import.meta.url), 'utf8');
  const list = /matches!\(([^)]*)\)/.exec(source)[1];
  const hidden = new Set();
  for (const [, from, to] of list.matchAll(/'\\u\{(\w+)\}'(?:\.\.='\\u\{(\w+)\}')?/g)) {
    for (let code = parseInt(from, 16); code <= parseInt(to ?? from, 16); code += 1)
      hidden.add(code);
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

// The map of segments without its canvas: rows, parts by their addresses, events, hues, words.

import assert from 'node:assert/strict';
import test from 'node:test';

import { modules } from './bundle.mjs';
import { capture, segments } from './captures.mjs';
import { CAPTURE_STEP } from './ranks.mjs';
import { numbers } from './rng.mjs';

const { 'charts/segments': map, segments: said } = await modules(['charts/segments', 'segments']);

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

// The page on the recorded store of a real job. Each interaction gives answers of real memory.
//
//     MEMTAPE=target/release/memtape node --test tests/recorded.test.mjs
//
// MEMTAPE names the program; without it the tests are skipped. SCREENS names a folder for screenshots
// of every view.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';

import { cut, frames, launch, nameless, none, open, resize, settle, show, violations } from './browser.mjs';
import { JOB, noStore as skip, Recorded } from './recorded.mjs';

const { SCREENS } = process.env;
// As tests/gpu/store.py trains: rank 2 keeps a tensor of each step from step 80 on.
const [LEAKING, ONSET, LINE, STEPS] = [2, 80, /store\.py:45/, 300];

const recorded = new Recorded();
let browser, page, mistakes, close;

describe('a recorded store', { skip }, () => {
  before(async () => {
    if (SCREENS) mkdirSync(SCREENS, { recursive: true });
    await recorded.start();
    browser = await launch();
    ({ page, mistakes, close } = await open(browser, recorded.address));
  });
  after(async () => {
    await close?.();
    await browser?.close();
    if (recorded.child) await recorded.end();
  });

  test('every view has its place at every width, light and dark, and on paper', async () => {
    const { incidents } = await recorded.get('incidents');
    const leak = incidents.find(of => of.class === 'leak');
    assert.equal(leak.rank, LEAKING);
    for (const [name, path] of Object.entries(await recorded.views())) {
      await show(page, recorded.address, path);
      for (const width of [360, 1280, 2560]) {
        await resize(page, width);
        for (const theme of ['light', 'dark']) {
          await page.emulateMedia({ colorScheme: theme });
          await settle(page);
          await frames(page);
          const where = `recorded-${name}-${width}-${theme}`;
          if (SCREENS) await page.screenshot({ path: join(SCREENS, `${where}.png`), fullPage: true });
          none(where, await cut(page), await nameless(page), await violations(page), mistakes);
        }
      }
      await resize(page, 1280);
      if (SCREENS) await page.pdf({ path: join(SCREENS, `recorded-${name}.pdf`), format: 'A4' });
    }
  });

  test('what a range kept is at the line that leaks, and beside the peers', async () => {
    const { incidents } = await recorded.get('incidents');
    const { capture_id } = incidents.find(of => of.class === 'leak');
    const { step } = await recorded.get(`captures/${capture_id}`);
    await show(page, recorded.address, `${JOB}?rank=${LEAKING}&steps=${step - 20}-${step}`);
    const kept = page.locator('section', { has: page.getByRole('heading', { name: /^GPU memory allocated by rank 2 in steps/ }) });
    const first = kept.getByRole('row').nth(1);
    await first.waitFor();
    assert.match(await first.innerText(), LINE);
    // 21 tensors of 8 MiB.
    assert.match(await first.innerText(), /168 MiB/);
  });

  test('sentence, figures, evidence, ages and lines begin at the step of the program', async () => {
    const { incidents } = await recorded.get('incidents');
    const leak = incidents.find(of => of.class === 'leak');
    const { step } = await recorded.get(`captures/${leak.capture_id}`);
    assert.match(leak.sentence, new RegExp(`from step ${ONSET} to`));
    assert.equal(leak.onset_step, ONSET);
    assert.ok(leak.evidence.some(of => of.endsWith(`distinct steps, ${ONSET} to ${step}`)), `${leak.evidence}`);
    assert.equal(leak.age_buckets[0].first_step, ONSET);
    assert.equal(leak.age_buckets.at(-1).last_step, step);
    const { lines } = await recorded.get('jobs/h200@0/lines');
    const [holder] = lines.find(of => of.frames[0]?.line === leak.culprit.line).holders;
    // Old blocks are counted by 8 steps and more.
    assert.ok(holder.oldest_step <= ONSET && holder.oldest_step > ONSET - 16, `${holder.oldest_step}`);
  });

  test('what sets the leaking rank apart is its line', async () => {
    await show(page, recorded.address, `${JOB}?ranks=${LEAKING}-${LEAKING}&steps=100-${STEPS}`);
    const found = page.locator('section', { has: page.getByRole('heading', { name: 'What sets rank 2 apart' }) });
    const first = found.getByRole('row').nth(1);
    await first.waitFor();
    assert.match(await first.innerText(), LINE);
    assert.match(await first.innerText(), /line/);
  });

  test('a coordinator that was started again shows the same, and the page goes on', async () => {
    await show(page, recorded.address, JOB);
    const before = await page.locator('canvas.heat').getAttribute('aria-label');
    await recorded.stop();
    await page.locator('#as-of.stale').waitFor();
    await recorded.start();
    await page.locator('#as-of:not(.stale)').waitFor();
    await page.reload();
    await settle(page);
    assert.equal(await page.locator('canvas.heat').getAttribute('aria-label'), before);
    mistakes.splice(0);
  });
});

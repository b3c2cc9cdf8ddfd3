// The page on the recorded store of a real job: four ranks on an H200, of which one leaks
// (tests/gpu/store.py made h200.backup). Each interaction gives answers of real memory.
//
//     MEMTAPE=target/release/memtape node --test tests/recorded.test.mjs
//
// MEMTAPE names the program; without it the tests are skipped. SCREENS names a folder for screenshots
// of every view.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { after, before, describe, test } from 'node:test';

import { cut, frames, launch, nameless, noBrowser, none, open, resize, settle, show, violations } from './browser.mjs';

const { MEMTAPE, SCREENS } = process.env;
const skip = noBrowser || (MEMTAPE ? false : 'MEMTAPE names no built memtape: the page is not tried on a real store');
const STORE = fileURLToPath(new URL('h200.backup', import.meta.url));
const [LEAKING, LINE, STEPS] = [2, /store\.py:45/, 300];
const JOB = '#/job/h200@0';

/** A coordinator on the recorded store. */
class Recorded {
  async start() {
    this.folder ??= await mkdtemp(join(tmpdir(), 'memtape-recorded-'));
    const data = join(this.folder, 'data');
    if (!this.isRestored) await promisify(execFile)(MEMTAPE, ['store', 'restore', STORE, data]);
    this.isRestored = true;
    const words = ['coordinator', '--data-dir', data, '--listen', this.listen ?? '127.0.0.1:0'];
    this.child = spawn(MEMTAPE, words, { stdio: ['ignore', 'pipe', 'pipe'] });
    this.child.stderr.resume();
    const lines = createInterface({ input: this.child.stdout });
    this.address = await new Promise((resolve, reject) => {
      lines.on('line', line => /http:\S+/.test(line) && resolve(/http:\/\/[\w.:]+/.exec(line)[0]));
      this.child.once('exit', () => reject(new Error('the coordinator did not start')));
    });
    this.listen = new URL(this.address).host;
  }

  get = async path => (await fetch(`${this.address}/api/v1/${path}`)).json();

  async stop() {
    const ended = once(this.child, 'exit');
    this.child.kill('SIGTERM');
    await ended;
  }

  async end() {
    await this.stop();
    await rm(this.folder, { recursive: true });
  }
}

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
    const views = {
      home: '#/',
      job: JOB,
      incident: `#/incident/${leak.id}`,
      capture: `#/capture/${leak.capture_id}`,
      actions: '#/actions',
      nodes: '#/nodes',
    };
    for (const [name, path] of Object.entries(views)) {
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
    const kept = page.locator('section', { has: page.getByRole('heading', { name: /^Allocated by rank 2 in steps/ }) });
    const first = kept.getByRole('row').nth(1);
    await first.waitFor();
    assert.match(await first.innerText(), LINE);
    // 21 tensors of 8 MiB.
    assert.match(await first.innerText(), /168 MiB/);
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

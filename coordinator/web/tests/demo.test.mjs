// The page on real answers: `memtape demo` in each of its scenarios. The first screen of the
// incident must answer who, where, how long, what and what to do, or say why not.
//
//     MEMTAPE=target/release/memtape node --test tests/demo.test.mjs
//
// MEMTAPE names the program; without it the tests are skipped. SCREENS names a folder for
// screenshots of every view, of its first screen and as a whole, light and dark.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { after, before, describe, test } from 'node:test';

import {
  cut,
  frames,
  launch,
  nameless,
  noBrowser,
  none,
  open,
  resize,
  settle,
  show,
  violations,
} from './browser.mjs';

const { MEMTAPE, SCREENS } = process.env;
const skip = noBrowser || (MEMTAPE ? false : 'MEMTAPE names no built memtape: the page is not tried on real answers');

/** Each demo is seven processes. */
const DEMOS_MAX = 2;
const LIMIT_MS = 240_000;
const STOP_MS = 15_000;

/** The classes that an open incident of a scenario may be of; the first one is what it is about. */
const SCENARIOS = {
  leak: ['leak'],
  fragmentation: ['fragmentation'],
  imbalance: ['imbalance'],
  host: ['host'],
  oom: ['out_of_memory', 'leak'],
  killed: ['died'],
  desync: ['desynchronised'],
};

const THEMES = ['light', 'dark'];
/** Widths of the views that are tried at more than one. */
const WIDTHS = { job: [360, 2560, 1280], incident: [360, 2560, 1280] };

const pause = ms => new Promise(done => setTimeout(done, ms));

class Demo {
  lines = [];

  static async start(scenario) {
    const demo = new Demo();
    const words = ['demo', '--scenario', scenario, '--port', '0', '--for', '120s'];
    demo.child = spawn(MEMTAPE, words, { stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [demo.child.stdout, demo.child.stderr]) {
      createInterface({ input: stream }).on('line', line => demo.lines.push(line));
    }
    demo.address = await demo.until('its address', () => demo.said(/page: (http:\S+)/)?.[1]);
    return demo;
  }

  said = pattern => this.lines.map(line => pattern.exec(line)).find(Boolean);

  /** What `ask` finds, once it finds something. */
  async until(what, ask) {
    for (const end = Date.now() + LIMIT_MS; Date.now() < end; await pause(300)) {
      // The demo starts its coordinator again: meanwhile it does not answer.
      const found = await Promise.resolve(ask()).catch(() => null);
      if (found) return found;
      if (this.child.exitCode !== null) break;
    }
    throw new Error(`the demo did not show ${what}:\n${this.lines.join('\n')}`);
  }

  get = async path => (await fetch(`${this.address}/api/v1/${path}`)).json();

  /** An open incident of one of the classes, with its diagnosis. */
  incident = classes =>
    this.until(`an incident of ${classes[0]}`, async () => {
      const { incidents } = await this.get('incidents');
      const found = incidents.find(of => of.class === classes[0]);
      return found?.state === 'open' && found.confidence > 0 && found.stored ? found : null;
    });

  async stop() {
    if (this.child.exitCode !== null) return;
    const ended = once(this.child, 'exit');
    this.child.kill('SIGINT');
    const killed = setTimeout(() => this.child.kill('SIGKILL'), STOP_MS);
    await ended;
    clearTimeout(killed);
  }
}

/** The boxes of answers that are wholly on the screen: name, text, detail. */
const answersOnScreen = page =>
  page.evaluate(() =>
    [...document.querySelectorAll('.answer')]
      .filter(box => {
        const { top, bottom, left, right } = box.getBoundingClientRect();
        return top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth;
      })
      .map(box => ({
        name: box.querySelector('dt').innerText,
        text: box.querySelector('.text').innerText.trim(),
        detail: box.querySelector('dd > .soft')?.innerText.trim() ?? '',
      })),
  );

/** Fails unless the first screen answers the questions, or says why there is no answer. */
async function firstScreen(page, incident) {
  await page.evaluate(() => scrollTo(0, 0));
  const boxes = await answersOnScreen(page);
  const answer = names => boxes.find(box => names.test(box.name)) ?? { text: '', detail: '' };
  const about = JSON.stringify(boxes, null, 1);
  assert.match(answer(/^Which rank$/).text, new RegExp(`rank ${incident.rank}\\b`), about);
  const line = answer(/^Which line$/);
  const { culprit } = incident;
  if (culprit) assert.ok(line.text.includes(`${culprit.file}:${culprit.line}`), about);
  else assert.ok(/^(none|not known)/.test(line.text) && line.detail.length > 10, about);
  const long = answer(/^(Out of (host )?memory( in)?|How long|Stands still)$/);
  assert.ok(/\d|over|it has happened/.test(long.text) || long.detail.length > 10, about);
  const kind = answer(/^Leak or just big$/);
  assert.ok(/\d+ % sure: \S/.test(kind.text) || kind.detail.length > 10, about);
  assert.match(answer(/^A restart helps$/).text, /^(yes|no|not known)$/, about);
  assert.ok(answer(/^Try first$/).text.length > 10, about);
  const heading = page.locator('h1').first();
  const { y, height } = await heading.boundingBox();
  assert.ok(y >= 0 && y + height <= 800, 'the sentence is on the screen');
  const unit = /undefined|NaN|\[object/;
  assert.doesNotMatch(await page.getByRole('main').innerText(), unit);
}

async function shoot(page, name, fullPage = false) {
  if (SCREENS) await page.screenshot({ path: join(SCREENS, `${name}.png`), fullPage });
}

/** The report of an incident, opened without a network: the same first screen, and no request. */
async function reportOf(browser, demo, incident, scenario) {
  const folder = await mkdtemp(join(tmpdir(), 'memtape-demo-'));
  const file = join(folder, 'report.html');
  await promisify(execFile)(MEMTAPE, ['report', incident.id, '--coordinator', demo.address, '-o', file]);
  const address = pathToFileURL(file).href;
  const { page, mistakes, close } = await open(browser, address);
  await page.context().setOffline(true);
  await page.goto(address);
  await settle(page);
  await firstScreen(page, incident);
  none(`${scenario}, report`, await cut(page), await nameless(page), await violations(page), mistakes);
  assert.equal(await page.locator('main .error').filter({ hasText: 'does not hold' }).count(), 0);
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme });
    await frames(page);
    await shoot(page, `${scenario}-report-1280-${theme}`);
    await shoot(page, `${scenario}-report-1280-${theme}-whole`, true);
  }
  await close();
  await rm(folder, { recursive: true });
}

describe('the demo', { skip, concurrency: DEMOS_MAX }, () => {
  let browser;
  before(async () => {
    browser = await launch();
    if (SCREENS) mkdirSync(SCREENS, { recursive: true });
  });
  after(() => browser?.close());

  for (const [scenario, classes] of Object.entries(SCENARIOS)) {
    test(scenario, { timeout: LIMIT_MS + 120_000 }, async () => {
      const demo = await Demo.start(scenario);
      const { page, mistakes, close } = await open(browser, demo.address);
      try {
        const incident = await demo.incident(classes);
        // The demo kills its coordinator once it has its result, and starts it again.
        await demo.until('its coordinator again', () => demo.said(/coordinator killed/) && demo.get('jobs'));
        await pause(1000);
        const views = {
          home: '#/',
          job: `#/job/${encodeURIComponent(incident.job)}`,
          incident: `#/incident/${incident.id}`,
          ...(incident.capture_id ? { capture: `#/capture/${incident.capture_id}` } : {}),
        };
        for (const [name, path] of Object.entries(views)) {
          await show(page, demo.address, path);
          if (name === 'incident') await firstScreen(page, await demo.get(`incidents/${incident.id}`));
          for (const width of WIDTHS[name] ?? [1280]) {
            await resize(page, width);
            for (const theme of THEMES) {
              await page.emulateMedia({ colorScheme: theme });
              await settle(page);
              await frames(page);
              const where = `${scenario}-${name}-${width}-${theme}`;
              await shoot(page, where);
              none(where, await cut(page), await nameless(page), await violations(page), mistakes);
              await shoot(page, `${where}-whole`, true);
            }
          }
        }
        await reportOf(browser, demo, incident, scenario);
      } finally {
        await close();
        await demo.stop();
      }
    });
  }
});

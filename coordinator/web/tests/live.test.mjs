// The page while it is open: answers that change, a coordinator that goes and comes back, a hidden
// tab, a browser that must sign in.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { answer } from './answers.mjs';
import { answers, incident, said } from './incidents.mjs';
import { MadeUp } from './made_up.mjs';
import { frames, launch, noBrowser, none, open, show, violations } from './browser.mjs';

/** Longer than the page waits between two requests for the same. */
const TURN_MS = 3500;
const INCIDENT = '#/incident/inc-train-7b';
const SENTENCE = incident('train-7b', {}).sentence;

let browser;
before(async () => {
  if (!noBrowser) browser = await launch();
});
after(() => browser?.close());

/** A test with a coordinator and a tab of its own, so that tests can wait beside each other. */
const live = (name, body) =>
  test(name, async () => {
    const made = await MadeUp.start();
    const { page, mistakes, close } = await open(browser, made.address);
    try {
      await body({ made, page, go: path => show(page, made.address, path) });
      none(name, mistakes);
    } finally {
      await close();
      await made.close();
    }
  });

/** Turns in which a page that asks when something has changed has asked its first questions. */
const TURNS_MAX = 10;

const asOf = page => page.locator('#as-of');
const pause = ms => new Promise(done => setTimeout(done, ms));
/** Lets `window.turnAway` hide the tab and show it. */
const canTurnAway = page =>
  page.addInitScript(() => {
    window.isAway = false;
    Object.defineProperty(document, 'hidden', { get: () => window.isAway });
    window.turnAway = isAway => {
      window.isAway = isAway;
      document.dispatchEvent(new Event('visibilitychange'));
    };
  });
/** Fields of an incident whose memory is full soon. */
const SOON = { steps_to_oom: 7, answers: answers({ time: said('Out of memory in', 'about 7 steps') }) };
const changed = (path, of) => (at, found) => (at === path ? { ...found, ...of } : found);

describe('the open page', { skip: noBrowser, concurrency: 5 }, () => {
  live('a new answer is shown without a reload, and nothing else is drawn again', async ({ made, page, go }) => {
    await go(INCIDENT);
    await page.evaluate(() => {
      document.querySelector('dl.answers').dataset.before = 'yes';
      window.isSame = true;
    });
    const link = page.getByRole('main').getByRole('link', { name: 'train-7b' }).first();
    await link.focus();
    made.change = changed('incidents/inc-train-7b', { sentence: 'rank 2 keeps 99 MiB more each step', ...SOON });
    await page.getByRole('heading', { name: 'rank 2 keeps 99 MiB more each step' }).waitFor();
    await page.getByText('about 7 steps').waitFor();
    await page.waitForFunction(() => document.title.startsWith('rank 2 keeps 99 MiB more'));
    assert.deepEqual(
      await page.evaluate(() => [window.isSame, document.querySelector('dl.answers').dataset.before]),
      [true, 'yes'],
    );
    assert.equal(await link.evaluate(node => node === document.activeElement), true, 'the focus stays');
  });

  live('the chart under the pointer holds still until the pointer leaves', async ({ made, page, go }) => {
    await go(INCIDENT);
    const plot = page.locator('.plot').first();
    await plot.hover({ position: { x: 400, y: 120 } });
    await page.evaluate(() => (document.querySelector('.uplot').dataset.before = 'yes'));
    made.change = (path, found) =>
      path === 'jobs/train-7b/series'
        ? { ...found, steps: found.steps.map(step => step + 5), step_min_bytes: found.step_min_bytes.map(level => level * 1.5) }
        : changed('incidents/inc-train-7b', SOON)(path, found);
    await page.getByText('about 7 steps').waitFor();
    const asked = made.requests.length;
    // Series are asked for every five seconds.
    while (!made.requests.slice(asked).includes('jobs/train-7b/series')) await pause(200);
    await pause(500);
    const isOld = () => page.evaluate(() => document.querySelector('.uplot').dataset.before === 'yes');
    assert.equal(await isOld(), true, 'under the pointer');
    await page.mouse.move(5, 5);
    await page.waitForFunction(() => !document.querySelector('.uplot').dataset.before);
    assert.match(await plot.getAttribute('aria-label'), /step 805/);
  });

  live('with a stream of changes, answers are asked for when something has changed', async ({ made, page, go }) => {
    made.isWhole = true;
    await go(INCIDENT);
    // On a machine with other work, the first answers may take longer than a turn.
    let asked = -1;
    for (let turn = 0; asked !== made.requests.length && turn < TURNS_MAX; turn += 1) {
      asked = made.requests.length;
      await pause(2 * TURN_MS);
    }
    assert.deepEqual(made.requests.slice(asked), [], 'nothing has changed');
    made.change = changed('incidents/inc-train-7b', { sentence: 'rank 2 keeps 99 MiB more each step' });
    made.tell('another');
    made.tell('train-7b');
    await page.getByRole('heading', { name: 'rank 2 keeps 99 MiB more each step' }).waitFor();
  });

  live('an answer of 404 is asked for again when something has changed', async ({ made, page, go }) => {
    made.isWhole = true;
    await go('#/incident/inc-none');
    await page.getByRole('heading', { name: 'There is no incident inc-none' }).waitFor();
    // The first event of the stream is about everything.
    await pause(TURN_MS);
    const asked = () => made.requests.filter(path => path === 'incidents/inc-none').length;
    const known = asked();
    assert.ok(known <= 2, `${known} requests`);
    await pause(TURN_MS);
    assert.equal(asked(), known, 'nothing has changed');
    made.change = (path, found) =>
      path === 'incidents/inc-none' ? answer('incidents/inc-train-7b') : found;
    made.tell('train-7b');
    await page.getByRole('heading', { name: SENTENCE }).waitFor();
  });

  live('a hidden tab closes the stream and opens it again', async ({ made, page, go }) => {
    made.isWhole = true;
    await canTurnAway(page);
    await go(INCIDENT);
    while (made.streams !== 1) await pause(50);
    await page.evaluate(() => window.turnAway(true));
    while (made.streams !== 0) await pause(50);
    made.change = changed('incidents/inc-train-7b', { sentence: 'rank 2 keeps 99 MiB more each step' });
    await page.evaluate(() => window.turnAway(false));
    await page.getByRole('heading', { name: 'rank 2 keeps 99 MiB more each step' }).waitFor();
    assert.equal(made.streams, 1);
  });

  live('what comes to be is found', async ({ made, page, go }) => {
    made.change = (path, found) => (path === 'jobs/eval/ranks' ? undefined : found);
    await go('#/job/eval');
    await page.getByRole('heading', { name: 'There is no job eval' }).waitFor();
    made.change = (_, found) => found;
    await page.getByRole('heading', { name: 'Job eval' }).waitFor();
  });

  live('without a job the page says how to begin', async ({ made, page, go }) => {
    const empty = { jobs: { jobs: [] }, incidents: { incidents: [] }, captures: { captures: [] }, nodes: { nodes: [] }, actions: { actions: [] } };
    made.change = (path, found) => empty[path] ?? found;
    await go('#/');
    await page.getByRole('heading', { name: 'No job has been recorded yet' }).waitFor();
    none('no job', await violations(page));
    await go('#/nodes');
    await page.getByText('No agent has connected since the coordinator started').waitFor();
    await go('#/');
    made.change = (_, found) => found;
    await page.getByRole('heading', { name: /open incidents$/ }).waitFor();
  });

  live('an answer without fields that the page reads leaves the rest of the page', async ({ made, page, go }) => {
    made.change = (path, found) => (path === 'jobs/train-7b/ranks' ? { job: 'train-7b', attempt: 0 } : found);
    await go('#/job/train-7b');
    await page.getByText(/This view cannot be drawn/).waitFor();
    await page.getByRole('link', { name: 'Nodes' }).click();
    await page.getByRole('heading', { name: 'Nodes', level: 1 }).waitFor();
  });

  live('the coordinator is gone and back: what was shown stays, marked as old, and goes on', async ({ made, page, go }) => {
    await go(INCIDENT);
    const heading = page.locator('h1').first();
    const sentence = await heading.innerText();
    await made.close();
    await page.locator('#as-of.stale').waitFor();
    assert.match(await asOf(page).innerText(), /the coordinator does not answer; still trying; as of \d{4}-/);
    assert.equal(await heading.innerText(), sentence);
    assert.ok(await page.locator('dl.answers').isVisible());
    // Also a view that was not shown before says why it is empty.
    await page.getByRole('link', { name: 'Nodes' }).click();
    await page.locator('main .error').filter({ hasText: 'the coordinator does not answer' }).waitFor();
    await page.goBack();
    assert.equal(await heading.innerText(), sentence, 'also from another view');
    made.change = changed('incidents/inc-train-7b', { sentence: 'rank 2 was restarted' });
    await made.listen();
    await page.getByRole('heading', { name: 'rank 2 was restarted' }).waitFor();
    await page.locator('#as-of:not(.stale)').waitFor();
  });

  live('a coordinator that is gone is not flooded with requests', async ({ made, page, go }) => {
    await go('#/');
    const failed = [];
    page.on('requestfailed', request => failed.push(request.url()));
    await made.close();
    await pause(TURN_MS);
    const paths = new Set(failed);
    assert.ok(failed.length > 0 && failed.length <= 5 * paths.size, `${failed.length} requests of ${paths.size} paths`);
    await made.listen();
    await page.locator('#as-of:not(.stale)').waitFor();
  });

  live('a hidden tab asks for nothing, and at once when it is seen again', async ({ made, page, go }) => {
    await canTurnAway(page);
    await go('#/');
    await page.evaluate(() => window.turnAway(true));
    await pause(300);
    const asked = made.requests.length;
    await pause(TURN_MS);
    assert.deepEqual(made.requests.slice(asked), []);
    made.change = changed('jobs', { jobs: [] });
    await page.evaluate(() => window.turnAway(false));
    await page.getByText('no job that you may see').waitFor({ timeout: 1500 });
  });

  live('a browser that must sign in gets the form, and then what it asked for', async ({ made, page, go }) => {
    made.token = 'mt_right';
    await go(INCIDENT);
    const field = page.getByLabel('Token');
    await field.waitFor();
    none('signing in', await violations(page));
    assert.equal(await field.evaluate(node => node === document.activeElement), true);
    const asked = made.requests.length;
    await pause(TURN_MS);
    assert.deepEqual(made.requests.slice(asked), [], 'nothing is asked for in between');
    await field.fill('mt_wrong');
    await page.keyboard.press('Enter');
    await page.getByRole('alert').filter({ hasText: 'this token is not known' }).waitFor();
    await field.fill('mt_right');
    await page.keyboard.press('Enter');
    await page.locator('dl.answers').waitFor();
    await frames(page);
    assert.equal(await page.getByLabel('Token').count(), 0);
    // The session ends elsewhere.
    made.token = 'mt_other';
    await page.getByLabel('Token').waitFor();
  });
});

// The thread of an incident: what a person does about it, what a viewer sees, and the marks and the
// links on other views.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { cut, launch, nameless, noBrowser, none, open, resize, show, violations } from './browser.mjs';
import { MadeUp } from './made_up.mjs';

const INCIDENT = '#/incident/inc-train-7b';
const SILENCED = '#/incident/inc-silenced';
const REPORTED = '#/incident/inc-reported';
const MS = 1e6;
const HOUR_MS = 3_600_000;

let browser;
before(async () => {
  if (!noBrowser) browser = await launch();
});
after(() => browser?.close());

const act = (name, path, body) =>
  test(name, async () => {
    const made = await MadeUp.start();
    const { page, mistakes, close } = await open(browser, made.address);
    try {
      await show(page, made.address, path);
      await body({ made, page, form: page.locator('.thread-form'), timeline: page.locator('.timeline') });
      none(name, mistakes);
    } finally {
      await close();
      await made.close();
    }
  });

describe('the thread of an incident', { skip: noBrowser, concurrency: 4 }, () => {
  act('is acknowledged, and the acknowledgement taken back', INCIDENT, async ({ made, page, form }) => {
    await form.getByRole('button', { name: 'Acknowledge' }).click();
    await form.getByRole('button', { name: 'Take the acknowledgement back' }).click();
    await form.getByRole('button', { name: 'Acknowledge' }).waitFor();
    assert.deepEqual(made.posted, [{ acknowledge: true }, { acknowledge: false }]);
    await form.getByRole('status').filter({ hasText: 'taken back' }).waitFor();
    assert.equal(await page.getByText('acknowledged by').count(), 0);
  });

  act('is silenced for a time, until a time and until a step, and the silence ended', INCIDENT, async ({ made, page, form }) => {
    const silence = form.getByRole('button', { name: 'Silence', exact: true });
    const kind = form.getByLabel('Raise no alert');
    await kind.selectOption('for 4 hours');
    const from = Date.now();
    await silence.click();
    await page.locator('.line-of-facts .chip').filter({ hasText: 'silenced' }).waitFor();
    const end = made.posted[0].silence_until_wall_ns / MS;
    assert.ok(end >= from + 4 * HOUR_MS - 1 && end <= Date.now() + 4 * HOUR_MS, `${end}`);
    await kind.selectOption('until a time');
    await form.getByLabel('Time at which the silence ends').fill('2031-01-02T03:04');
    await silence.click();
    await page.getByText('until 2031-01-02 03:04:00').first().waitFor();
    assert.equal(made.posted[1].silence_until_wall_ns, new Date('2031-01-02T03:04').getTime() * MS);
    await kind.selectOption('until a step');
    await form.getByLabel('The step that ends the silence').fill('5000');
    await page.keyboard.press('Enter');
    await page.getByText('until step 5,000 by piet').first().waitFor();
    assert.deepEqual(made.posted[2], { silence_until_step: 5000 });
    await form.getByRole('button', { name: 'End the silence' }).click();
    await page.getByText('until step 5,000 by piet').first().waitFor({ state: 'detached' });
    assert.deepEqual(made.posted[3], { end_silence: true });
  });

  act('is assigned, and a note is written, with its lines', INCIDENT, async ({ made, page, form, timeline }) => {
    await form.getByLabel('Assigned to').fill(' team-b ');
    await page.keyboard.press('Enter');
    await page.getByText('assigned to team-b').first().waitFor();
    const note = form.getByLabel('Note');
    await note.fill('<b>one</b>\ntwo \u202e');
    // What is typed stays when an answer comes.
    const asked = made.requests.length;
    while (!made.requests.slice(asked).includes('incidents/inc-train-7b')) await page.waitForTimeout(100);
    assert.equal(await note.inputValue(), '<b>one</b>\ntwo \u202e');
    await form.getByRole('button', { name: 'Add the note' }).click();
    await timeline.getByText('piet wrote').waitFor();
    assert.equal(await timeline.locator('.note').innerText(), '<b>one</b>\ntwo \\u{202e}');
    assert.equal(await note.inputValue(), '');
    assert.deepEqual(made.posted, [{ assignee: 'team-b' }, { note: '<b>one</b>\ntwo \u202e' }]);
  });

  act('has all that happened in one list, the newest first', SILENCED, async ({ timeline }) => {
    const rows = await timeline.locator('li').allInnerTexts();
    const at = text => rows.findIndex(row => row.includes(text));
    const order = [
      'piet wrote',
      'verdict: no effect',
      'olga silenced it until step 5,000',
      'had the garbage collected',
      'the silence ended',
      'piet silenced it until',
      'olga assigned it to team-a',
      'olga acknowledged it',
      'capture, growth',
      'growth on rank 4 detected',
    ].map(at);
    assert.ok(order.every((row, i) => row >= 0 && (i === 0 || row > order[i - 1])), `${order}\n${rows.join('\n')}`);
  });

  act('a refusal is shown, and what was typed stays', INCIDENT, async ({ form }) => {
    await form.getByLabel('Note').fill('  ');
    await form.getByRole('button', { name: 'Add the note' }).click();
    await form.getByRole('status').filter({ hasText: 'the note is empty: write a text' }).waitFor();
    assert.equal(await form.getByLabel('Note').inputValue(), '  ');
  });

  act('a viewer sees it, cannot change it, and reads why', REPORTED, async ({ made, page, form }) => {
    await form.getByText('that takes the role operator of its job').waitFor();
    const controls = form.locator('button, input, select, textarea');
    for (const control of await controls.all()) assert.equal(await control.isDisabled(), true);
    assert.ok((await controls.count()) >= 5);
    for (const width of [360, 1280]) {
      await resize(page, width);
      none(`at ${width}`, await cut(page), await nameless(page), await violations(page));
    }
    assert.deepEqual(made.posted, []);
  });

  act('a failure is silenced until a time only, and what is closed not at all', '#/incident/inc-death', async ({ made, page, form }) => {
    assert.equal(await form.getByRole('option', { name: 'until a step' }).count(), 0);
    assert.equal(await form.getByRole('option', { name: 'until a time' }).count(), 1);
    await show(page, made.address, '#/incident/inc-closed');
    assert.equal(await form.getByLabel('Raise no alert').count(), 0);
    assert.equal(await form.getByLabel('Note').count(), 1);
  });

  act('incidents of one cause lead to each other, and so do a failure and the growth before it', SILENCED, async ({ page }) => {
    const link = name => page.locator('.related').getByRole('link', { name });
    await link('inc-reported').click();
    await page.getByText('The same cause is reported in:').waitFor();
    await link('inc-silenced').click();
    await page.getByText('It also reports:').waitFor();
    await page.evaluate(() => (location.hash = '#/incident/inc-death'));
    await page.getByText('Before it:').waitFor();
    await link('inc-died').click();
    await page.getByText('It ended in:').waitFor();
    await link('inc-death').click();
    const kind = page.locator('.answer').filter({ hasText: 'Leak or just big' });
    await kind.getByRole('link', { name: 'inc-died' }).click();
    await page.getByText('It ended in:').waitFor();
  });

  act('home marks what is silenced, and says who has it', '#/', async ({ page }) => {
    const card = page.locator('article').filter({ hasText: 'rank 4 keeps' });
    assert.match(await card.getAttribute('class'), /silenced/);
    const text = await card.innerText();
    for (const part of ['silenced', 'until step 5,000 by olga', 'acknowledged by olga', 'assigned to team-a']) {
      assert.ok(text.includes(part), `${part}: ${text}`);
    }
    const other = page.locator('article').filter({ hasText: 'rank 2 keeps 27.5' }).first();
    assert.doesNotMatch(await other.innerText(), /silenced|acknowledged|assigned/);
  });
});

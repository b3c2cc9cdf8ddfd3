// Keys, the palette, tables and the parts that open: how the page is used beside its charts.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { noBrowser, none, settle, violations } from './browser.mjs';
import { heading, INCIDENT, made, page, SENTENCE, title, to, valueOf } from './tab.mjs';

describe('keys', { skip: noBrowser }, () => {
  test('the palette leads anywhere by the keyboard alone', async () => {
    await to(INCIDENT);
    await page.keyboard.press('Control+k');
    const field = page.getByRole('combobox', { name: /Find a job/ });
    await field.waitFor();
    none('the palette', await violations(page));
    await page.keyboard.type('rank 3');
    await page.locator('dialog').getByRole('option', { selected: true }).filter({ hasText: /^rank.*rank 3/ }).waitFor();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowUp');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Rank 3', exact: true }).waitFor();
    assert.equal(await page.locator('dialog').count(), 0);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'content');
    await page.keyboard.press('Control+k');
    await page.keyboard.type('nosuchthing');
    await page.getByText('nothing fits').waitFor();
    await page.keyboard.press('Enter');
    await page.keyboard.press('Escape');
    await page.locator('dialog').waitFor({ state: 'detached' });
    await page.keyboard.press('Control+k');
    await page.keyboard.type('accumulate_predictions');
    await page.keyboard.press('Enter');
    await title(`${SENTENCE} · Memtape`);
  });

  test('the palette finds a rank by its number, a failure by its short name, and begins with views', async () => {
    const options = page.locator('dialog').getByRole('option');
    await to(INCIDENT);
    await page.keyboard.press('Control+k');
    await options.first().filter({ hasText: /^view/ }).waitFor();
    await page.keyboard.type('oom');
    await options.first().filter({ hasText: /^incident.*out of memory \(OOM\)/ }).waitFor();
    await page.keyboard.press('Control+a');
    await page.keyboard.type('rank 4');
    await options.first().filter({ hasText: /^rank.*rank 4/ }).waitFor();
    const ranks = await options.filter({ hasText: /^rank/ }).allInnerTexts();
    assert.equal(ranks.length, 1, `the pids have the digit: ${ranks}`);
    await page.keyboard.press('Escape');
  });

  test('the palette of a view without a job finds the ranks of the newest job', async () => {
    made.change = (path, found) =>
      path === 'jobs'
        ? { jobs: found.jobs.map(of => (of.job === 'eval' ? { ...of, started_wall_ns: of.started_wall_ns + 1e9 } : of)) }
        : found;
    try {
      await to('#/');
      await page.keyboard.press('Control+k');
      await page.keyboard.type('rank 11');
      await page.locator('dialog').getByRole('option', { selected: true }).filter({ hasText: 'job eval' }).waitFor();
      await page.keyboard.press('Enter');
      await page.getByRole('heading', { name: 'Rank 11', exact: true }).waitFor();
      assert.match(page.url(), /#\/job\/eval\?rank=11$/);
    } finally {
      made.change = (_, found) => found;
    }
  });

  test('? lists the keys, and each key does what the list says', async () => {
    await to('#/');
    await page.keyboard.press('?');
    const list = page.getByRole('dialog', { name: 'Keys' });
    await list.waitFor();
    none('the keys', await violations(page));
    await page.keyboard.press('Escape');
    await list.waitFor({ state: 'detached' });
    for (const [keys, text] of [['gn', 'Nodes'], ['ga', 'Actions'], ['gh', 'open incidents']]) {
      for (const key of keys) await page.keyboard.press(key);
      await page.getByRole('heading', { name: new RegExp(`${text}$`), level: 1 }).waitFor();
    }
    await to('#/capture/cap-later');
    await page.keyboard.press('[');
    await page.getByRole('heading', { name: 'Capture cap-train-7b' }).waitFor();
    await page.keyboard.press(']');
    await page.getByRole('heading', { name: 'Capture cap-later' }).waitFor();
  });

  test('keys do nothing in a field', async () => {
    await to('#/');
    await page.getByRole('searchbox').fill('');
    await page.getByRole('searchbox').pressSequentially('g?n');
    assert.equal(await page.locator('dialog').count(), 0);
    assert.equal(valueOf('filter'), 'g?n');
  });

  test('Skip to content is the first link, and works', async () => {
    await to('#/');
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent.trim()), 'Skip to content');
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'content');
    assert.match(await heading(), /open incidents$/, 'the view stays');
  });
});

describe('tables and parts', { skip: noBrowser }, () => {
  test('a heading turns the order, and the filter leaves fitting rows', async () => {
    await to('#/');
    const jobs = page.getByRole('region', { name: 'Jobs' });
    await jobs.getByRole('button', { name: 'job', exact: true }).click();
    await jobs.locator('[aria-sort=descending]').waitFor();
    await jobs.getByRole('button', { name: /^job/ }).click();
    await jobs.locator('[aria-sort=ascending]').waitFor();
    await page.getByRole('searchbox').fill('healthy');
    assert.equal(await jobs.locator('tbody tr').count(), 1);
    await page.getByText('1 of 4').waitFor();
  });

  test('an action leads to the attempt of its job', async () => {
    await to('#/actions');
    const link = page.getByRole('row').filter({ hasText: 'would restart' }).getByRole('link', { name: 'train-7b', exact: true });
    assert.equal(await link.getAttribute('href'), '#/job/train-7b?attempt=0');
  });

  test('the uncertainty of times has digits, and no column where there is none', async () => {
    const parts = page.getByRole('region', { name: 'Ranks of the capture' });
    const of = error => (path, found) =>
      path === 'captures/cap-train-7b' ? { ...found, parts: found.parts.map(part => ({ ...part, wall_error_ns: error })) } : found;
    for (const [error, text] of [[7, '0.007'], [410, '0.41'], [12_345, '12'], [1_540_000, '1,500'], [0, null]]) {
      made.change = of(error);
      try {
        await to('#/nodes');
        await page.reload();
        await to('#/capture/cap-train-7b');
      } finally {
        made.change = (_, found) => found;
      }
      const cells = await parts.locator('td[data-title="± µs"]').allInnerTexts();
      assert.deepEqual([...new Set(cells)], text === null ? [] : [text]);
    }
  });

  test('all of a view has one word for the end of a rank', async () => {
    made.change = (path, found) => {
      const missing = [{ rank: 2, outcome: 'dead', detail: '' }];
      if (path === 'captures') return { captures: found.captures.map(of => ({ ...of, missing })) };
      if (path !== 'captures/cap-died') return found;
      const parts = found.parts.map(of => (of.rank === 2 ? { ...of, outcome: 'dead', dead: true, bytes: 0 } : of));
      return { ...found, parts, missing };
    };
    try {
      for (const [path, places] of [['#/job/died', 4], ['#/incident/inc-died', 4], ['#/capture/cap-died', 2]]) {
        await to(path);
        await page.getByText('OOM killed').first().waitFor();
        const text = await page.getByRole('main').innerText();
        assert.ok(text.split('OOM killed').length > places, `${path}: ${text}`);
        const ofRanks = text.replaceAll(/A request for .* failed later/g, '').replaceAll('the failed request', '');
        assert.doesNotMatch(ofRanks, /\b(dead|failed|exited)\b(?!\))/, path);
      }
    } finally {
      made.change = (_, found) => found;
    }
  });

  test('an attempt is explained where it is first named', async () => {
    for (const path of ['#/', '#/job/train-7b']) {
      await to(path);
      const word = page.locator('abbr', { hasText: /^attempt$/ });
      assert.match(await word.getAttribute('title'), /^one run of the job.*a restart begins the next/);
      assert.equal(await page.locator('td[title]').count(), 0, 'not again on each cell');
    }
  });

  test('the strip of a job is of the account that its incident is about', async () => {
    const job = () => page.getByRole('row').filter({ has: page.getByRole('link', { name: 'train-7b' }) });
    const strip = name => job().getByRole('img', { name: new RegExp(`^${name}, at steps 785 to 800: median rank`) });
    await to('#/');
    await strip('allocated, minimum of each step').waitFor();
    made.change = (path, found) =>
      path === 'incidents' ? { incidents: found.incidents.map(of => ({ ...of, layer: 'host' })) } : found;
    try {
      await page.reload();
      await settle(page);
    } finally {
      made.change = (_, found) => found;
    }
    await strip('host memory, private').waitFor();
    await job().getByText('host memory, private', { exact: true }).last().waitFor();
  });

  test('the highest line of a strip ends where its rank has ended', async () => {
    const ended = cells => cells.map((cell, at) => (at < cells.length / 2 ? cell : null));
    const job = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'died' }) });
    const strip = name => job.getByRole('img', { name });
    let hasRow = false;
    made.change = (path, found) => {
      if (path !== 'jobs/died/area') return found;
      const [row] = found.rows;
      const isAlone = row.first_rank === row.last_rank;
      const others = row.cells.map((cell, at) => (at < row.cells.length / 2 ? cell : found.medians[at]));
      if (isAlone && !hasRow) return null;
      return { ...found, rows: [{ ...row, cells: isAlone ? ended(row.cells) : others }] };
    };
    try {
      await to('#/');
      await strip(/: median rank [\d.]+ GiB$/).waitFor();
      hasRow = true;
      await page.reload();
      await settle(page);
    } finally {
      made.change = (_, found) => found;
    }
    const endOf = async line => {
      const points = await job.locator(`polyline.${line}`).getAttribute('points');
      return points.split(' ').at(-1).split(',').map(Number);
    };
    const [[median], [highest, height]] = [await endOf('peer'), await endOf('step-min')];
    assert.ok(highest > 60 && highest < 75 && median === 139, `${highest} and ${median} of 140`);
    assert.ok(height < 4, `at ${height}: as high as it was`);
    await strip(/, highest 28\.\d GiB on rank 2, its last value$/).waitFor();
  });

  test('the theme is chosen and kept', async () => {
    await to('#/');
    for (const name of ['light', 'dark']) await page.getByRole('button', { name: /^Theme/ }).click();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
    await page.reload();
    await settle(page);
    assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), 'dark');
  });

  test('a flame is shown alone and all again, by keys and by clicks', async () => {
    await to(`${INCIDENT}?steps=120-149`);
    const flames = page.locator('canvas.flames');
    await flames.focus();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown');
    assert.match(await flames.getAttribute('aria-label'), /train_step.*accumulate_predictions\.py:123: 8\d\d MiB/);
    await page.keyboard.press('Enter');
    await page.keyboard.press('Escape');
    await flames.click({ position: { x: 200, y: 45 } });
    assert.match(await flames.getAttribute('aria-label'), /train_step/);
  });
});

describe('sources', { skip: noBrowser }, () => {
  const table = () => page.getByRole('region', { name: 'Lines that hold memory' });

  test('a line is shown in its file, on demand', async () => {
    await to('#/job/train-7b');
    assert.equal(await table().locator('pre').count(), 0);
    await table().getByText(/^source of \S+:\d+$/).first().click();
    assert.match(await table().locator('pre').innerText(), /▶ \d+ {6}losses\.append\(loss\)/);
    none('a source', await violations(page));
    await to(INCIDENT);
    assert.match(await page.locator('pre .culprit').innerText(), /losses\.append/);
  });

  test('the table says why a line is not shown', async () => {
    await to('#/job/eval');
    await table().getByText(/^source of \S+:\d+$/).first().click();
    await table().getByText('below no folder of --source-dir').waitFor();
  });
});

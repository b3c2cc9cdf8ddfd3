// The heat map of a job under pointers and keys: what it draws and says, and what stands in the
// address then.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { noBrowser, settle } from './browser.mjs';
import { drag, made, page, stepsOf, to, valueOf } from './tab.mjs';

describe('the heat map', { skip: noBrowser }, () => {
  const map = () => page.locator('canvas.heat');

  test('a rectangle chooses ranks and steps, a click a rank', async () => {
    await to('#/job/train-7b');
    await drag(map(), [0.3, 0.25], [0.6, 0.55]);
    await page.waitForFunction(() => /ranks=/.test(location.hash));
    const [low, high] = stepsOf(valueOf('ranks'));
    const [from, last] = stepsOf(valueOf('steps'));
    assert.ok(low >= 1 && low < high && high <= 6, `ranks ${low} to ${high}`);
    assert.ok(from > 100 && from < last && last < 600, `steps ${from} to ${last}`);
    const before = made.requests.length;
    await page.getByRole('button', { name: 'Zoom into the rectangle' }).click();
    await page.waitForFunction(() => /shown_steps=/.test(location.hash));
    await settle(page);
    assert.ok(
      made.requests.slice(before).some(path => path.endsWith('/area')),
      'the part is asked for',
    );
    assert.match(
      await map().getAttribute('aria-label'),
      new RegExp(`${high - low + 1} rows of ranks, steps ${from} to`),
    );
    await page.getByRole('button', { name: 'Show all ranks and steps' }).click();
    await page.waitForFunction(() => !/shown_/.test(location.hash));
    await settle(page);
    const { height } = await map().boundingBox();
    await map().click({ position: { x: 300, y: height * 0.2 } });
    await page.waitForFunction(() => /rank=\d/.test(location.hash));
  });

  test('the frame and the bar of an incident stand out on the reddest cells', async () => {
    made.change = (path, found) =>
      path === 'incidents'
        ? { incidents: found.incidents.map(of => ({ ...of, detected_step: 700 })) }
        : found;
    try {
      await to('#/job/train-7b');
      // What is lighter than cells so red, in a line of pixels across the row of rank 2.
      const lighter = (share, line) =>
        map().evaluate(
          (canvas, [share, line]) => {
            const scale = canvas.width / canvas.clientWidth;
            const [left, width] = [76, canvas.clientWidth - 176];
            const [from, to] = [share, share + 0.1].map(of =>
              Math.round((left + width * of) * scale),
            );
            const row = Math.round((30 + 2 * 22 + line) * scale);
            const { data } = canvas.getContext('2d').getImageData(from, row, to - from, 1);
            return Array.from({ length: to - from }, (_, at) => data[at * 4 + 1]).filter(
              green => green > 200,
            ).length;
          },
          [share, line],
        );
      assert.equal(await lighter(0.75, 11), 0, 'a red cell');
      assert.ok((await lighter(0.82, 11)) >= 2, 'beside the bar');
      assert.ok((await lighter(0.75, 1)) > 50, 'above the line of the frame');
    } finally {
      made.change = (_, found) => found;
    }
  });

  test('each section of a job says which steps its figures are of', async () => {
    await to('#/job/train-7b?rank=2');
    const main = page.getByRole('main');
    await page
      .getByRole('heading', { name: 'Lines that hold memory of rank 2, counted at step 640' })
      .waitFor();
    const text = await main.innerText();
    assert.match(
      text,
      /growth \+27.5 MiB a step\s+grown 18.4 GiB\s+at step 800\s+out of memory in/,
      'the card',
    );
    assert.match(text, /numbers at the right: at steps 793 to 800/, 'the map');
    assert.match(text, /rank 2 at step 800: minimum/, 'the chart');
    assert.match(text, /\nat step 800\nnot measured/, 'the bytes');
  });

  test('frames stand out on the reddest cells of low rows, light and dark', async () => {
    const row = (of, i) => ({ ...of, first_rank: i, last_rank: i, extreme_rank: i });
    made.change = (path, found) =>
      path.endsWith('/area')
        ? {
            ...found,
            rows: Array.from({ length: 64 }, (_, i) =>
              row(found.rows[[2, 20, 21].includes(i) ? 2 : 1], i),
            ),
          }
        : found;
    const HEIGHT = 6;
    // Pixels in a colour of the style sheet, across the upper edge of a row.
    const count = (row, name) =>
      map().evaluate(
        (canvas, [top, name]) => {
          const scale = canvas.width / canvas.clientWidth;
          const x = 76 + (canvas.clientWidth - 176) * 0.85;
          const { data } = canvas
            .getContext('2d')
            .getImageData(x * scale, (top - 4) * scale, 30 * scale, 6 * scale);
          const probe = document.createElement('i');
          probe.style.color = `var(${name})`;
          document.body.append(probe);
          const wanted = getComputedStyle(probe).color.match(/\d+/g).map(Number);
          probe.remove();
          const isIt = (_, at) =>
            at % 4 === 0 && wanted.every((value, i) => data[at + i] === value);
          return data.filter(isIt).length;
        },
        [30 + row * HEIGHT, name],
      );
    try {
      for (const colorScheme of ['light', 'dark']) {
        await page.emulateMedia({ colorScheme });
        await to('#/job/train-7b?rank=20&ranks=21-23&steps=600-790');
        for (const [row, name] of [
          [2, '--mark'],
          [20, '--link'],
          [21, '--link'],
        ]) {
          const found = [await count(row, name), await count(row, '--back')];
          assert.ok(
            Math.min(...found) >= 20,
            `row ${row}, ${colorScheme}: ${found} pixels of the line and its casing`,
          );
        }
      }
    } finally {
      made.change = (_, found) => found;
      await page.emulateMedia({ colorScheme: null });
    }
    const legend = page.locator('figure', { has: map() }).locator('figcaption');
    const colourOf = of => of.evaluate(node => getComputedStyle(node).color);
    assert.equal(
      await colourOf(legend.getByText('┃', { exact: true })),
      await colourOf(page.locator('.chip.bad').first()),
    );
  });

  test('steps that are not there yet are empty, and gaps are hatched', async () => {
    const cut = (row, from, to) => ({
      ...row,
      cells: row.cells.map((cell, at) => (at >= from && at < to ? null : cell)),
    });
    made.change = (path, found) =>
      path.endsWith('/area')
        ? {
            ...found,
            rows: found.rows.map((row, i) =>
              i === 4 ? cut(row, 60, 100) : i === 5 ? cut(row, 60, 999) : row,
            ),
          }
        : found;
    try {
      await to('#/job/train-7b');
    } finally {
      made.change = (_, found) => found;
    }
    // Pixels that are drawn in the columns 70 to 90 of a row.
    const drawn = row =>
      map().evaluate((canvas, row) => {
        const scale = canvas.width / canvas.clientWidth;
        const width = canvas.clientWidth - 176;
        const [x, y, w, h] = [76 + width * 0.7, 30 + row * 22 + 4, width * 0.2, 14].map(of =>
          Math.round(of * scale),
        );
        const { data } = canvas.getContext('2d').getImageData(x, y, w, h);
        return data.filter((value, at) => at % 4 === 3 && value > 0).length;
      }, row);
    assert.ok((await drawn(4)) > 100, 'a gap between steps');
    assert.equal(await drawn(5), 0, 'after the newest step');
    await map().focus();
    for (const key of [
      'Home',
      'ArrowDown',
      'ArrowDown',
      'ArrowDown',
      'ArrowDown',
      'ArrowDown',
      'End',
    ])
      await page.keyboard.press(key);
    assert.match(
      await map().getAttribute('aria-label'),
      /rank 5 at steps \d+ to 800: no step yet, or the rank has ended/,
    );
    assert.match(
      await page.locator('figure', { has: map() }).locator('figcaption').innerText(),
      /empty: no step yet/,
    );
  });

  test('the legend has the frames of the map', async () => {
    const legend = page.locator('figure', { has: map() }).locator('figcaption');
    await to('#/job/eval');
    assert.doesNotMatch(await legend.innerText(), /open incident/);
    // The page chooses the rank of the open incident.
    await to('#/job/train-7b');
    assert.match(await legend.innerText(), /open incident, from where it began.*chosen rank\b/s);
    assert.doesNotMatch(await legend.innerText(), /chosen ranks and steps/);
    await to('#/job/train-7b?rank=2&ranks=1-4&steps=300-500');
    assert.match(await legend.innerText(), /chosen ranks and steps/);
  });

  test('a rectangle of all ranks, or of one, says so', async () => {
    await to('#/job/train-7b?ranks=0-7&steps=100-400');
    await page.getByText('All ranks are chosen: choose fewer to see what sets them apart.').waitFor();
    await to('#/job/train-7b?ranks=2-2&steps=100-400');
    await page.getByRole('button', { name: 'rank 2 ✕' }).waitFor();
    assert.equal(await page.getByText('All ranks are chosen').count(), 0);
  });

  test('all ranks stay in view where a rectangle has too few for a median', async () => {
    await to('#/job/train-7b?ranks=2-3&steps=100-400');
    await page.getByRole('button', { name: 'Zoom into these steps' }).click();
    await page.waitForFunction(() => /shown_steps=100-400/.test(location.hash));
    assert.equal(valueOf('shown_ranks'), null);
  });

  test('a rectangle of ranks says what sets them apart', async () => {
    await to('#/job/train-7b?ranks=2-4&steps=100-400');
    const section = page.locator('section', {
      has: page.getByRole('heading', { name: 'What sets ranks 2 to 4 apart' }),
    });
    const rows = section.getByRole('row');
    await rows.nth(4).waitFor();
    assert.match(
      await rows.nth(1).innerText(),
      /97 %\s+line, newest count\s+.*accumulate_predictions\.py:123.*900 MiB.*1 MiB/s,
    );
    assert.match(
      await rows.nth(2).innerText(),
      /setting\s+expandable_segments:True\s+3 ranks\s+0 ranks/,
    );
    assert.match(await rows.nth(4).innerText(), /step time\s+12 ms/);
    assert.match(
      await section.innerText(),
      /smaller differences; lines counted at steps 640 to 800: .* in the compared steps/,
    );
    const peak = rows.nth(3);
    assert.equal(
      await peak.locator('td[data-title="these ranks, highest"]').innerText(),
      '4 GiB, rank 2',
    );
    assert.equal(
      await peak.locator('td[data-title="others, highest"]').innerText(),
      '2 GiB, rank 0',
    );
    const asked = made.requests.find(path => path.endsWith('/differences'));
    assert.ok(asked, 'the coordinator is asked');
  });

  test('arrow keys say the numbers, and with Shift they choose', async () => {
    await to('#/job/train-7b');
    await map().focus();
    for (const key of ['Home', 'ArrowDown', 'ArrowDown']) await page.keyboard.press(key);
    assert.match(await map().getAttribute('aria-label'), /rank 2 at steps 1 to 8: .* [KMG]iB/);
    for (const key of ['Shift+ArrowRight', 'Shift+ArrowDown']) await page.keyboard.press(key);
    await page.waitForFunction(() => /ranks=2-3/.test(location.hash));
    assert.equal(valueOf('steps'), '1-16');
  });

  test('another account and another ground are a part of the address', async () => {
    await to('#/job/train-7b');
    await page.getByLabel('Show').selectOption('host');
    await page.locator('label', { hasText: /^as / }).locator('select').selectOption('growth');
    await page.waitForFunction(
      () => /account=host/.test(location.hash) && /against=growth/.test(location.hash),
    );
    await to('#/job/train-7b?account=workers');
    await page.getByText('the ranks have no worker processes').first().waitFor();
  });

  test('readings that a restart of the coordinator has lost are named', async () => {
    made.change = (path, found) =>
      path.endsWith('/area') ? { ...found, source: 'readings', known_from_step: 1280 } : found;
    try {
      await to('#/job/train-7b?account=host');
    } finally {
      made.change = (_, found) => found;
    }
    const note = 'no reading of this account before step 1,280: the coordinator keeps readings in ';
    await page.getByText(`${note}memory, and loses them when it restarts`).waitFor();
  });
});

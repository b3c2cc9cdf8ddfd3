// How the page is used: links, the history, pointers, keys, tables.

import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';

import { capture, incident, segments, series } from './answers.mjs';
import { launch, noBrowser, none, open, settle, show, violations } from './browser.mjs';
import { MadeUp } from './made_up.mjs';

const INCIDENT = '#/incident/inc-train-7b';
const SENTENCE = incident('train-7b', {}).sentence;

let [made, browser, page, mistakes, close] = [];
before(async () => {
  if (noBrowser) return;
  made = await MadeUp.start();
  browser = await launch();
});
beforeEach(async () => {
  if (noBrowser) return;
  await close?.();
  ({ page, mistakes, close } = await open(browser, made.address));
});
after(async () => {
  if (mistakes) none('the last test', mistakes);
  await browser?.close();
  await made?.close();
});

const to = path => show(page, made.address, path);
/** A value behind the question mark of the address. */
const valueOf = name => new URLSearchParams(new URL(page.url()).hash.split('?')[1] ?? '').get(name);
const heading = () => page.locator('h1').first().innerText();
const title = text => page.waitForFunction(text => document.title === text, text);
/** Presses the pointer at one point of an element and lets it go at another; in shares of its size. */
async function drag(locator, [x0, y0], [x1, y1]) {
  await locator.scrollIntoViewIfNeeded();
  const { x, y, width, height } = await locator.boundingBox();
  await page.mouse.move(x + x0 * width, y + y0 * height);
  await page.mouse.down();
  await page.mouse.move(x + x1 * width, y + y1 * height, { steps: 6 });
  await page.mouse.up();
}
const stepsOf = text => text.split('-').map(Number);
const plot = () => page.locator('.plot').first();
const keptHeading = () => page.getByRole('heading', { name: /, and kept$/ });

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

describe('addresses', { skip: noBrowser }, () => {
  test('what cannot be read in an address is said once', async () => {
    const note = page.locator('[role=status]', { hasText: 'ignored in the address' });
    await to('#/job/train-7b?steps=9-1&ranks=a&rank=-1&account=toString&baseline=none');
    assert.equal(
      await note.innerText(),
      'ignored in the address: steps=9-1, ranks=a, rank=-1, account=toString, baseline=none',
    );
    none('a note', await violations(page));
    await to('#/job/train-7b?steps=1-9&ranks=0-1&rank=1&account=peak&baseline=died%230');
    await note.waitFor({ state: 'detached' });
  });

  test('a link restores the rank, the steps and the order of a table', async () => {
    await to('#/job/train-7b?rank=5&steps=100-149&sort=rank.down');
    for (const isReloaded of [false, true]) {
      if (isReloaded) await page.reload().then(() => settle(page));
      assert.match(await keptHeading().innerText(), /rank 5 in steps 100 to 149/);
      assert.equal(await page.getByRole('heading', { name: 'Rank 5', exact: true }).count(), 1);
      const marked = await page.locator('.u-select').boundingBox();
      const field = await page.locator('.u-over').boundingBox();
      assert.ok(marked.width > 10 && marked.width < field.width / 8, `${marked.width} of ${field.width}`);
      const table = page.getByRole('region', { name: 'Ranks', exact: true });
      assert.equal(await table.locator('tbody tr td').first().innerText(), '7');
      assert.equal(await table.locator('[aria-sort=descending]').innerText(), 'rank ↓');
      assert.match(await table.locator('tr.selected td').first().innerText(), /^5$/);
    }
  });

  test('a card names its job where the view is about more than that', async () => {
    const jobs = () => page.locator('.alert').getByRole('link', { name: 'train-7b', exact: true });
    await to('#/');
    await jobs().first().waitFor();
    for (const view of ['#/job/train-7b', '#/capture/cap-train-7b']) {
      await to(view);
      await page.locator('.alert').first().waitFor();
      assert.equal(await jobs().count(), 0, view);
    }
  });

  test('Back and Forward go through what was looked at, and not through the order of a table', async () => {
    await to('#/');
    await page.getByRole('link', { name: SENTENCE }).click();
    await title(`${SENTENCE} · Memtape`);
    await page.getByRole('main').getByRole('link', { name: 'train-7b' }).first().click();
    await page.getByRole('heading', { name: 'Job train-7b' }).waitFor();
    const ranks = page.getByRole('region', { name: 'Ranks', exact: true });
    await ranks.getByRole('button', { name: 'step', exact: true }).click();
    await ranks.locator('[aria-sort]').waitFor();
    await ranks.getByRole('link', { name: '3', exact: true }).click();
    await page.getByRole('heading', { name: 'Rank 3', exact: true }).waitFor();
    await page.goBack();
    await page.getByRole('heading', { name: 'Rank 2', exact: true }).waitFor();
    assert.equal(valueOf('sort'), 'step.down', 'Back does not change the order');
    await page.goBack();
    await title(`${SENTENCE} · Memtape`);
    await page.goBack();
    await page.getByRole('heading', { name: /open incidents$/ }).waitFor();
    await page.goForward();
    await title(`${SENTENCE} · Memtape`);
    assert.equal(await heading(), SENTENCE);
  });

  test('steps and ranks that are none are left out', async () => {
    await to('#/job/train-7b?rank=99&steps=9-1&ranks=x&sort=nosuch.down&account=nosuch&against=nosuch');
    assert.equal(await keptHeading().count(), 0);
  });

  test('an address of no view says so, and leads home', async () => {
    await to('#/nosuchview/x');
    assert.equal(await heading(), 'There is no view nosuchview');
    await title('There is no view nosuchview · Memtape');
    assert.equal(await page.locator('nav [aria-current]').count(), 0);
    await page.getByRole('link', { name: 'All jobs and incidents' }).click();
    await page.getByRole('heading', { name: /open incidents$/ }).waitFor();
  });

  test('the title of the tab is the sentence that matters', async () => {
    for (const [path, expected] of [
      [INCIDENT, `${SENTENCE} · Memtape`],
      ['#/incident/inc-death', 'rank 2 ran out of device memory and was killed after step 800 · Memtape'],
      ['#/job/train-7b', `${SENTENCE} · Memtape`],
      ['#/job/eval', 'Job eval · Memtape'],
      ['#/capture/cap-train-7b', 'Capture of 7 of 8 ranks of train-7b at step 149 · Memtape'],
    ]) {
      await to(path);
      await title(expected);
    }
    await to('#/');
    await page.waitForFunction(() => /^\d open incidents · Memtape$/.test(document.title));
  });
});

describe('the memory chart', { skip: noBrowser }, () => {
  test('dragging over steps shows what they kept', async () => {
    await to(INCIDENT);
    await drag(plot(), [0.12, 0.5], [0.16, 0.5]);
    await keptHeading().waitFor();
    const [from, last] = stepsOf(valueOf('steps'));
    assert.ok(from >= 1 && from < last && last < 800, `${from} to ${last}`);
    await settle(page);
    assert.match(await keptHeading().innerText(), new RegExp(`steps ${from} to ${last}, and kept`));
    assert.ok(made.requests.some(path => path.endsWith('/kept')), 'the capture was asked');
    assert.match(await page.getByRole('main').innerText(), /blocks? alive at the end of step/);
    await page.goBack();
    await keptHeading().waitFor({ state: 'detached' });
  });

  test('peers are compared by the level that the incident is about, and it is named', async () => {
    const legend = () => page.locator('figcaption', { hasText: 'reserved' }).innerText();
    for (const [path, name] of [[INCIDENT, 'minimum'], ['#/incident/inc-closed', 'peak']]) {
      await to(path);
      assert.match(await legend(), new RegExp(`7 peers: ${name}`));
      assert.match(await plot().getAttribute('aria-label'), new RegExp(`: ${name} goes from`));
      assert.match(await plot().getAttribute('aria-valuetext'), new RegExp(`: ${name} \\S+ GiB \\(median of the peers`));
    }
  });

  test('the chart of any rank of a job is about the account of the map', async () => {
    made.change = (path, found) =>
      path === 'incidents' ? { incidents: found.incidents.map(of => ({ ...of, layer: 'spread' })) } : found;
    try {
      await to('#/job/train-7b?rank=0');
    } finally {
      made.change = (_, found) => found;
    }
    assert.equal(await page.getByLabel('Show').inputValue(), 'peak');
    assert.match(await plot().getAttribute('aria-label'), /rank 0 over steps: peak goes from/);
  });

  test('the readout has the newest median of the peers, where they are behind', async () => {
    const own = series(2);
    made.change = (path, found) =>
      path.endsWith('/series') && found.step_min_bytes[299] !== own.step_min_bytes[299]
        ? { ...found, steps: found.steps.slice(0, 298), step_min_bytes: found.step_min_bytes.slice(0, 298) }
        : found;
    try {
      await to(INCIDENT);
    } finally {
      made.change = (_, found) => found;
    }
    const said = await plot().getAttribute('aria-valuetext');
    assert.match(said, new RegExp(`step ${own.steps[299]}: minimum .* \\(median of the peers .*GiB at step ${own.steps[297]}\\)`));
  });

  test('the legend has the captures, and what happened before or after the chart', async () => {
    const legend = () => page.locator('figcaption', { hasText: 'reserved' }).innerText();
    await to('#/job/train-7b?rank=2');
    assert.match(await legend(), /capture\n/);
    assert.doesNotMatch(await legend(), /this chart/);
    const { onset_step: onset, detected_step: detected } = incident('train-7b', {});
    made.change = (path, found) =>
      path.endsWith('/series') ? { ...found, steps: found.steps.map(step => step + 700) } : found;
    try {
      await page.reload();
      await settle(page);
    } finally {
      made.change = (_, found) => found;
    }
    const lines = `began at step ${onset}, detected at step ${detected}, 2 captures`;
    assert.ok((await legend()).includes(`before this chart: ${lines}`), await legend());
    assert.doesNotMatch(await legend(), /capture\n/);
  });

  test('a click chooses nothing, and takes no range away', async () => {
    await to(`${INCIDENT}?steps=120-149`);
    await plot().click({ position: { x: 400, y: 100 } });
    assert.equal(valueOf('steps'), '120-149');
  });

  test('arrow keys move, and with Shift they choose steps', async () => {
    await to(INCIDENT);
    await plot().focus();
    const now = () => plot().getAttribute('aria-valuetext');
    await page.keyboard.press('Home');
    assert.match(await now(), /rank 2, step 1:/);
    const first = await now();
    await page.keyboard.press('ArrowRight');
    assert.notEqual(await now(), first);
    await page.keyboard.press('Shift+ArrowRight');
    await keptHeading().waitFor();
    const short = stepsOf(valueOf('steps'));
    await page.keyboard.press('Shift+PageUp');
    await page.waitForFunction(last => !location.hash.endsWith(`-${last}`), short[1]);
    const long = stepsOf(valueOf('steps'));
    assert.equal(long[0], short[0], 'the other end stays');
    assert.ok(long[1] > short[1], `${short} then ${long}`);
    await page.keyboard.press('Escape');
    await keptHeading().waitFor({ state: 'detached' });
  });

  test('the bars of births are chosen as steps are', async () => {
    await to(INCIDENT);
    const bars = page.getByRole('slider', { name: /^Bytes alive by the step/ });
    const { age_buckets: buckets } = incident('train-7b', {});
    const stepsAre = text =>
      page.waitForFunction(text => new URLSearchParams(location.hash.split('?')[1]).get('steps') === text, text);
    await bars.click({ position: { x: 300, y: 60 } });
    assert.equal(valueOf('steps'), null, 'a click chooses nothing');
    await drag(bars, [0.2, 0.5], [0.01, 0.5]);
    await page.getByText(/^looked at: steps 113 to 1\d\d: /).waitFor();
    assert.match(valueOf('steps'), /^113-1\d\d$/, 'beyond the first bar');
    await keptHeading().waitFor();
    await page.goBack();
    await stepsAre(null);
    await bars.focus();
    await page.keyboard.press('Home');
    await page.locator('.births[aria-valuetext="steps 113 to 116: 110 MiB in 4 blocks"]').waitFor();
    await page.keyboard.press('Shift+ArrowRight');
    await stepsAre(`113-${buckets[1].last_step}`);
    await page.keyboard.press('Shift+ArrowRight');
    await stepsAre(`113-${buckets[2].last_step}`);
    assert.equal(await page.locator('.birth.looked-at').count(), 3);
    await page.keyboard.press('Escape');
    await stepsAre(null);
  });

  test('a capture at the end of the steps can be asked for', async () => {
    await to(`${INCIDENT}?steps=700-750`);
    assert.match(await page.getByRole('main').innerText(), /No capture of this attempt is at or after step 750/);
    const offer = page.getByRole('button', { name: /^Capture all ranks at the end of step/ });
    assert.equal(
      await offer.innerText(),
      'Capture all ranks at the end of step 750, if a tape still has it',
    );
    await offer.click();
    await page.getByText('capture cap-later is being collected').waitFor();
    for (const [steps, why] of [['140-149', 'one is there'], ['700-801', 'it is not finished']]) {
      await to(`${INCIDENT}?steps=${steps}`);
      assert.equal(await offer.count(), 0, why);
    }
    made.change = (path, found) =>
      path === 'jobs' ? { jobs: found.jobs.map(of => ({ ...of, attempt: 1 })) } : found;
    try {
      await to(`${INCIDENT}?steps=700-750`);
      await page.reload();
      await settle(page);
    } finally {
      made.change = (_, found) => found;
    }
    assert.equal(await offer.count(), 0, 'another attempt would be captured');
  });
});

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
    assert.ok(made.requests.slice(before).some(path => path.endsWith('/area')), 'the part is asked for');
    assert.match(await map().getAttribute('aria-label'), new RegExp(`${high - low + 1} rows of ranks, steps ${from} to`));
    await page.getByRole('button', { name: 'Show all ranks and steps' }).click();
    await page.waitForFunction(() => !/shown_/.test(location.hash));
    await settle(page);
    const { height } = await map().boundingBox();
    await map().click({ position: { x: 300, y: height * 0.2 } });
    await page.waitForFunction(() => /rank=\d/.test(location.hash));
  });

  test('all ranks stay in view where a rectangle has too few for a median', async () => {
    await to('#/job/train-7b?ranks=2-3&steps=100-400');
    await page.getByRole('button', { name: 'Zoom into these steps' }).click();
    await page.waitForFunction(() => /shown_steps=100-400/.test(location.hash));
    assert.equal(valueOf('shown_ranks'), null);
  });

  test('a rectangle of ranks says what sets them apart', async () => {
    await to('#/job/train-7b?ranks=2-4&steps=100-400');
    const section = page.locator('section', { has: page.getByRole('heading', { name: 'What sets ranks 2 to 4 apart' }) });
    const rows = section.getByRole('row');
    await rows.nth(4).waitFor();
    assert.match(await rows.nth(1).innerText(), /97 %\s+line, newest count\s+.*accumulate_predictions\.py:123.*900 MiB.*1 MiB/s);
    assert.match(await rows.nth(2).innerText(), /setting\s+expandable_segments:True\s+3 ranks\s+0 ranks/);
    assert.match(await rows.nth(4).innerText(), /step time\s+12 ms/);
    assert.match(
      await section.innerText(),
      /not shown: 3 lines with smaller differences; a line has the size of each rank's newest count/,
    );
    const asked = made.requests.find(path => path.endsWith('/differences'));
    assert.ok(asked, 'the coordinator is asked');
  });

  test('arrow keys say the numbers, and with Shift they choose', async () => {
    await to('#/job/train-7b');
    await map().focus();
    for (const key of ['Home', 'ArrowDown', 'ArrowDown']) await page.keyboard.press(key);
    assert.match(await map().getAttribute('aria-label'), /rank 2, steps 1 to 8: .* [KMG]iB/);
    for (const key of ['Shift+ArrowRight', 'Shift+ArrowDown']) await page.keyboard.press(key);
    await page.waitForFunction(() => /ranks=2-3/.test(location.hash));
    assert.equal(valueOf('steps'), '1-16');
  });

  test('another account and another ground are a part of the address', async () => {
    await to('#/job/train-7b');
    await page.getByLabel('Show').selectOption('host');
    await page.locator('label', { hasText: /^as / }).locator('select').selectOption('growth');
    await page.waitForFunction(() => /account=host/.test(location.hash) && /against=growth/.test(location.hash));
    await to('#/job/train-7b?account=workers');
    await page.getByText('the ranks have no worker processes').first().waitFor();
  });
});

describe('the map of segments', { skip: noBrowser }, () => {
  const CAPTURE = '#/capture/cap-train-7b';
  const map = () => page.locator('canvas.segments');
  const said = () => map().getAttribute('aria-label');
  const slider = () => page.getByRole('slider', { name: /^Blocks at the end of step/ });
  const pinned = () => page.getByRole('region', { name: 'Pinned block' });

  test('pointing says what a block is, and a click pins it with its stack', async () => {
    await to(`${CAPTURE}?rank=2`);
    await map().scrollIntoViewIfNeeded();
    const { width } = await map().boundingBox();
    const x = 132 + ((width - 132) * 2.5) / 12;
    await map().hover({ position: { x, y: 8 } });
    assert.match(await said(), /24 MiB allocated .*step 113, .*accumulate_predictions.py:123 train_step/);
    assert.match(await said(), /mse_loss functional.py:3952 ← train_step .* ← main train.py:157$/, 'the stack');
    await map().click({ position: { x, y: 8 } });
    await pinned().getByText(/mse_loss/).waitFor();
    assert.match(valueOf('block'), /^0x7f12a7000000$/);
    assert.equal(await pinned().locator('.culprit').innerText(), '/app/training/metrics/accumulate_predictions.py:123 train_step');
    await page.reload().then(() => settle(page));
    await pinned().getByText(/mse_loss/).waitFor();
    await pinned().getByRole('button', { name: 'Show its segment alone' }).click();
    await page.waitForFunction(() => /segment=0x/.test(location.hash));
    assert.match(await said(), /Map of 8 rows/);
    await page.getByText('Blocks of the segment as a table').click();
    assert.equal(await page.getByRole('region', { name: 'Blocks of the segment' }).locator('tbody tr').count(), 12);
    await pinned().getByRole('button', { name: /Unpin/ }).click();
    await pinned().waitFor({ state: 'detached' });
  });

  test('arrow keys go from block to block, Enter pins and Escape unpins', async () => {
    await to(`${CAPTURE}?rank=2&map=address`);
    await map().focus();
    for (const key of ['ArrowDown', 'ArrowRight', 'ArrowRight']) await page.keyboard.press(key);
    assert.match(await said(), /step 113/);
    await page.keyboard.press('ArrowDown');
    assert.match(await said(), /step 116/, 'the block below');
    await page.keyboard.press('End');
    assert.match(await said(), /24 MiB free/);
    await page.keyboard.press('Enter');
    await pinned().waitFor();
    await page.keyboard.press('Escape');
    await pinned().waitFor({ state: 'detached' });
  });

  test('the slider goes from event to event, and the lines follow it', async () => {
    await to(`${CAPTURE}?rank=2`);
    assert.equal(await slider().inputValue(), '149');
    await page.keyboard.press(',');
    await page.waitForFunction(() => /at=121/.test(location.hash));
    assert.equal(await slider().inputValue(), '121');
    await page.keyboard.press(',');
    await page.waitForFunction(() => /at=120/.test(location.hash));
    await settle(page);
    await page.getByRole('heading', { name: 'What rank 2 holds, by line, of steps 1 to 120' }).waitFor();
    assert.ok(made.asked.some(of => /kept\?.*to=120/.test(of)), 'the lines are asked for');
    assert.match(await page.getByRole('main').innerText(), /end of step 120: .* in \d+ of \d+ blocks were there; pale ones/);
    await page.keyboard.press('.');
    await page.waitForFunction(() => /at=121/.test(location.hash));
    await slider().fill('149');
    await page.waitForFunction(() => !/at=/.test(location.hash));
    await slider().focus();
    await page.keyboard.press(',');
    await page.waitForFunction(() => /at=121/.test(location.hash), null, { timeout: 5000 });
  });

  test('the order, the colours and the scale are a part of the address', async () => {
    await to(`${CAPTURE}?rank=2`);
    await page.getByLabel('sorted by').selectOption('address');
    await page.getByLabel('coloured by').selectOption('age');
    await page.locator('label', { hasText: /^rows / }).locator('select').selectOption('bytes');
    await page.waitForFunction(() => ['map=address', 'colour=age', 'scale=bytes'].every(of => location.hash.includes(of)));
    await page.getByText('allocated in step 149').waitFor();
  });

  test('of 60,000 blocks each can be reached', async () => {
    const held = capture('train-7b', {});
    made.change = (path, found) => (path.endsWith('/segments') ? segments(held, 2, 20_000) : found);
    try {
      await to(`${CAPTURE}?rank=2&map=address`);
      await map().focus();
      for (const key of ['ArrowDown', 'End', 'ArrowLeft']) await page.keyboard.press(key);
      assert.match(await said(), /step 149/);
      await page.keyboard.press('Enter');
      await pinned().getByRole('button', { name: 'Show its segment alone' }).click();
      await page.waitForFunction(() => /segment=0x/.test(location.hash));
      assert.match(await said(), /Map of 64 rows/);
    } finally {
      made.change = (_, found) => found;
    }
  });

  test('a capture that no incident uses any more leads to the one that is used', async () => {
    made.change = (path, found) =>
      path === 'captures/cap-later' ? { ...found, trigger: 'growth', trigger_rank: 2 } : found;
    try {
      await to('#/capture/cap-later');
    } finally {
      made.change = (_, found) => found;
    }
    const none = page.getByText('No incident uses this capture now: inc-train-7b of rank 2 uses cap-train-7b');
    await none.getByRole('link', { name: 'cap-train-7b' }).click();
    await page.getByRole('heading', { name: 'Capture cap-train-7b' }).waitFor();
    assert.equal(await page.getByRole('link', { name: 'cap-train-7b', exact: true }).count(), 0, 'it is in view');
  });

  test('an incident leads to the map of its rank', async () => {
    await to(INCIDENT);
    await page.getByRole('link', { name: 'Segments, blocks and lines of rank 2 in this capture' }).click();
    await page.getByRole('heading', { name: 'Segments of rank 2' }).waitFor();
  });
});

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

  test('the strip of a job is of the account that its incident is about', async () => {
    const job = () => page.getByRole('row').filter({ has: page.getByRole('link', { name: 'train-7b' }) });
    const strip = name => job().getByRole('img', { name: new RegExp(`^${name}: median rank`) });
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
    made.change = (path, found) => {
      if (path !== 'jobs/died/area') return found;
      const [row] = found.rows;
      const isAlone = row.first_rank === row.last_rank;
      const others = row.cells.map((cell, at) => (at < row.cells.length / 2 ? cell : found.medians[at]));
      return { ...found, rows: [{ ...row, cells: isAlone ? ended(row.cells) : others }] };
    };
    try {
      await to('#/');
    } finally {
      made.change = (_, found) => found;
    }
    const job = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'died' }) });
    const endOf = async line => {
      const points = await job.locator(`polyline.${line}`).getAttribute('points');
      return points.split(' ').at(-1).split(',').map(Number);
    };
    const [[median], [highest, height]] = [await endOf('peer'), await endOf('step-min')];
    assert.ok(highest > 60 && highest < 75 && median === 139, `${highest} and ${median} of 140`);
    assert.ok(height < 4, `at ${height}: as high as it was`);
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

describe('the baseline', { skip: noBrowser }, () => {
  const pill = () => page.getByRole('button', { name: 'Remove the baseline ✕' });

  test('a run that is taken with b goes along, stands in the address, and is removed', async () => {
    await to('#/job/died');
    await page.getByRole('heading', { name: 'Job died' }).waitFor();
    await page.keyboard.press('b');
    await pill().waitFor();
    assert.equal(valueOf('baseline'), 'died#0');
    assert.equal(await page.getByRole('heading', { name: /^Beside the baseline/ }).count(), 0, 'it is the run itself');
    await to('#/job/train-7b');
    await page.getByRole('heading', { name: 'Beside the baseline, died, attempt 0' }).waitFor();
    await page.waitForFunction(() => /baseline=died%230/.test(location.hash));
    await page.getByText("memtape diff --run 'died#0' 'train-7b#0'").waitFor();
    await page.getByText('baseline: minimum').waitFor();
    await pill().click();
    await pill().waitFor({ state: 'detached' });
    assert.equal(valueOf('baseline'), null);
    assert.equal(await page.getByRole('heading', { name: /^Beside the baseline/ }).count(), 0);
  });

  test('the pill stands only where something is compared', async () => {
    await to('#/job/train-7b?baseline=cap-later');
    await page.getByRole('heading', { name: 'Job train-7b' }).waitFor();
    assert.equal(await pill().count(), 0, 'a job has nothing beside a capture');
    await to('#/job/train-7b?baseline=cap-later&steps=100-149');
    await pill().waitFor();
    await to('#/capture/cap-train-7b?baseline=died%230');
    await page.getByRole('heading', { name: 'Capture cap-train-7b' }).waitFor();
    assert.equal(await pill().count(), 0, 'a capture has nothing beside a run');
    await to('#/nodes');
    assert.equal(await pill().count(), 0);
  });

  test('a capture stands in place of the peers', async () => {
    await to('#/capture/cap-train-7b?baseline=cap-later');
    await page.getByText('colour by the difference from the baseline').waitFor();
    await page.getByRole('columnheader', { name: 'baseline' }).waitFor();
    await page.locator('.readout').filter({ hasText: 'the same rank in cap-later' }).waitFor();
    assert.equal(await page.getByText('median of the peers').count(), 0);
    await pill().click();
    await page.getByText('colour by the difference from the peers').waitFor();
  });
});

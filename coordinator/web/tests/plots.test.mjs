// The charts under pointers and keys: what is said, what is chosen, and what then stands in the
// address.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { noBrowser, settle } from './browser.mjs';
import { capture, segments } from './captures.mjs';
import { incident } from './incidents.mjs';
import { series } from './ranks.mjs';
import { drag, INCIDENT, keptHeading, made, page, plot, stepsOf, to, valueOf } from './tab.mjs';

/** Loads an incident again whose memory is full after these steps. */
async function reloadWithForecast(steps_to_oom_p10, steps_to_oom, steps_to_oom_p90) {
  const forecast = { steps_to_oom_p10, steps_to_oom, steps_to_oom_p90 };
  made.change = (path, found) => (path.startsWith('incidents/') ? { ...found, ...forecast } : found);
  try {
    await page.reload();
    await settle(page);
  } finally {
    made.change = (_, found) => found;
  }
}

describe('the memory chart', { skip: noBrowser }, () => {
  test('steps that no capture and no tape shows are said to be gone', async () => {
    made.change = (path, found) =>
      path === 'jobs' ? { jobs: found.jobs.map(of => ({ ...of, step_on_tapes: 300 })) } : found;
    try {
      await to('#/job/eval?rank=3&steps=100-200');
      await page.getByText('what was alive then is not known, and no tape shows it any more').waitFor();
      await to('#/job/eval?rank=3&steps=100-400');
      await page.getByText('what was alive then is not known yet').waitFor();
    } finally {
      made.change = (_, found) => found;
    }
  });

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

  test('the map of a job keeps the account of an incident that has closed', async () => {
    const [first, ...others] = ['host', 'pinned', 'blocks'].map((layer, i) => incident('train-7b', { id: `inc-${i}`, layer, state: 'closed' }));
    const death = incident('train-7b', { id: 'inc-death', layer: 'process', class: 'died' });
    const lists = { host: [first, ...others], pinned: [death, others[0], first] };
    for (const [account, incidents] of Object.entries(lists)) {
      made.change = (path, found) =>
        path === 'incidents' ? { incidents } : path === 'incidents/inc-1' ? others[0] : found;
      try {
        await to('#/nodes');
        await page.reload();
        await to('#/job/train-7b');
        assert.equal(await page.getByLabel('Show').inputValue(), account);
        await to('#/incident/inc-1');
        await page.locator('.answers').getByRole('link', { name: 'rank 2' }).click();
        await page.getByLabel('Show').waitFor();
      } finally {
        made.change = (_, found) => found;
      }
      assert.equal(await page.getByLabel('Show').inputValue(), 'pinned', 'of the incident that led here');
    }
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
    assert.match(said, new RegExp(`rank 2 at step ${own.steps[299]}: minimum .* \\(median of the peers .*GiB at step ${own.steps[297]}\\)`));
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

  test('the legend says where the forecast ends, where the axis does not reach it', async () => {
    const legend = () => page.locator('figcaption', { hasText: 'reserved' }).innerText();
    await to(INCIDENT);
    assert.doesNotMatch(await legend(), /after this chart/);
    await reloadWithForecast(6000, 7040, 8000);
    assert.match(await legend(), /after this chart: full about 7,000 steps after step 800/);
  });

  test('a chart whose memory is full says so in place of 0 steps', async () => {
    // What is drawn on a canvas is no text of the page.
    await page.addInitScript(() => {
      window.drawn = [];
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
        window.drawn.push(text);
        fillText.call(this, text, ...at);
      };
    });
    const marks = () => page.evaluate(() => window.drawn.filter(text => text.startsWith('●')));
    await to(INCIDENT);
    assert.equal((await marks()).at(-1), '● full about 1,000 steps after step 800');
    await reloadWithForecast(0, 0, 3);
    assert.deepEqual([...new Set(await marks())], ['● memory is full']);
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
    assert.match(await now(), /rank 2 at step 1:/);
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
    const figure = page.locator('figure', { has: bars });
    assert.match(await figure.innerText(), /^steps 113 to 116: 110 MiB in 4 blocks$/m, 'the readout');
    assert.match(await figure.innerText(), /drag over steps to see what they allocated and kept/);
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
      'Capture all ranks at the end of step 750',
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
    await page.locator('canvas.segments[aria-label^="Map of 8 rows"]').waitFor();
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
      await page.locator('canvas.segments[aria-label^="Map of 64 rows"]').waitFor();
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

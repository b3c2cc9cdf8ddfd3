// The address as the state of the page: what it restores, what it ignores, the history, the title,
// and the baseline.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { noBrowser, none, settle, violations } from './browser.mjs';
import {
  heading,
  INCIDENT,
  keptHeading,
  made,
  page,
  SENTENCE,
  title,
  to,
  valueOf,
} from './tab.mjs';

describe('addresses', { skip: noBrowser }, () => {
  test('what cannot be read in an address is said once', async () => {
    const note = page.locator('[role=status]', { hasText: 'ignored in the address' });
    await to('#/job/train-7b?steps=9-1&ranks=a&rank=-1&account=toString&baseline=none&held=noon');
    assert.equal(
      await note.innerText(),
      'ignored in the address: steps=9-1, ranks=a, rank=-1, account=toString, baseline=none, held=noon',
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

  test('links to a rank and from an incident to its job name the attempt', async () => {
    made.change = (path, found) => {
      if (path === 'incidents/inc-train-7b') return { ...found, attempt: 1 };
      return path === 'jobs/train-7b/ranks' ? { ...found, attempt: 1 } : found;
    };
    const ofJob = () => page.getByRole('main').getByRole('link', { name: 'train-7b', exact: true });
    try {
      for (const [view, rank, values] of [
        [INCIDENT, 'rank 2', 'attempt=1&rank=2&account=allocated'],
        ['#/incident/inc-death', 'rank 2', 'attempt=0&rank=2'],
        ['#/job/train-7b', '3', 'attempt=1&rank=3'],
      ]) {
        await to(view);
        const link = page.getByRole('main').getByRole('link', { name: rank, exact: true }).first();
        const href = await link.getAttribute('href');
        assert.match(href, new RegExp(`^#/job/[^?]+\\?${values}$`), view);
      }
      await to(INCIDENT);
      assert.equal(await ofJob().getAttribute('href'), '#/job/train-7b?attempt=1');
    } finally {
      made.change = (_, found) => found;
    }
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

  test('a capture shows what was held at the peak and when a request failed', async () => {
    const shown = page.getByRole('combobox', { name: /^shown at/ });
    await to('#/capture/cap-train-7b');
    await page.getByText('alive at the end of step 149').waitFor();
    const times = await shown.locator('option').allInnerTexts();
    assert.deepEqual(times, ['the end of the step', 'the peak of rank 2']);
    await shown.selectOption('the peak of rank 2');
    await page.getByText('alive at the peak of rank 2, in step 149').waitFor();
    await page.getByText('median of 6 peers, each at its peak: 3.5 MiB').waitFor();
    assert.match(page.url(), /held=peak/);
    await page.getByText(/^memtape lines cap-train-7b --rank 2 --at peak/).waitFor();
    await to('#/capture/cap-train-7b?held=peak&baseline=cap-later');
    await page.getByText('the same rank in cap-later, at its peak there: 3.5 MiB').waitFor();
    await pill().click();

    await to('#/capture/cap-died?rank=2&steps=3-9&at=8');
    const later = page.getByText('A request for 96 MiB failed later, in step 150.');
    await later.nth(1).waitFor();
    assert.equal(await later.count(), 2, 'beside the segments and beside the lines');
    await page.getByRole('link', { name: 'Show the memory at the failed request' }).first().click();
    await page.getByText('alive when a request failed, in step 150').waitFor();
    await page
      .getByText(
        '96 MiB asked for at /app/train.py:88 did not fit: the allocator held 7.81 GiB, ' +
          '7.71 GiB of it in tensors, 40 MiB of the device free',
      )
      .waitFor();
    assert.doesNotMatch(page.url(), /steps=|[?&]at=/);
    await page.goBack();
    await later.nth(1).waitFor();
  });

  test('another rank is shown at the end of the step; a time that it lacks is named', async () => {
    const shown = page.getByRole('combobox', { name: /^shown at/ });
    await to('#/capture/cap-died?rank=2&held=failed_request');
    await page.getByText('alive when a request failed, in step 150').waitFor();
    await page.getByRole('combobox', { name: /^rank/ }).selectOption('3');
    await page.getByText('alive at the end of step 149').waitFor();
    assert.equal(valueOf('held'), null);

    await to('#/capture/cap-died?rank=3&held=failed_request');
    await page.getByText('rank 3 has no failed request in this capture', { exact: true }).waitFor();
    await shown.selectOption('the peak of rank 3');
    await page.getByText('alive at the peak of rank 3, in step 149').waitFor();
    made.change = (path, found) => (path.endsWith('/kept') ? undefined : found);
    try {
      await page.reload();
      await page
        .getByText('this capture has no events of the steps of rank 3', { exact: true })
        .waitFor();
      assert.equal(await shown.inputValue(), 'peak');
      await to('#/capture/cap-died?rank=3&held=peak&baseline=cap-later');
      await page.getByText(/^this capture or cap-later has no events of the steps/).waitFor();
    } finally {
      made.change = (_, found) => found;
    }
    await shown.selectOption('the end of the step');
    await page.getByText('alive at the end of step 149').waitFor();
  });

  test('a baseline within faults that were found later names them', async () => {
    const later = page.getByText('This baseline is not a healthy state');
    await to('#/capture/cap-train-7b');
    await page.getByText('alive at the end of step 149').waitFor();
    assert.equal(await later.count(), 0);
    const listed = count => ({ incidents }) => {
      const [first] = incidents;
      const within = { onset_step: 113, last_step: 800, attempt: 0 };
      const turns = { ...first, ...within, id: 'inc-turns', rank: 4, clock: 'turns' };
      const other = (_, i) => ({ ...first, ...within, id: `inc-${i}` });
      const others = Array.from({ length: count - 1 }, other);
      return { incidents: [turns, ...others, { ...first, id: 'inc-before', last_step: 148 }] };
    };
    const sentence = (id, rank, unit) =>
      `This baseline is not a healthy state of rank ${rank}: ${id}, found later, ` +
      `began at ${unit} 113.`;
    const three = ['inc-0', 'inc-1', 'inc-2'].map(id => sentence(id, 2, 'step'));
    for (const [count, expected] of [
      [1, [sentence('inc-turns', 4, 'turn')]],
      [6, [sentence('inc-turns', 4, 'turn'), ...three, 'And 2 more incidents.']],
    ]) {
      made.change = (path, found) =>
        path === 'captures/cap-train-7b'
          ? { ...found, trigger: 'baseline' }
          : path === 'incidents'
            ? listed(count)(found)
            : found;
      try {
        await page.reload();
        await later.waitFor();
        assert.equal((await later.innerText()).trim(), expected.join(' '));
      } finally {
        made.change = (_, found) => found;
      }
    }
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

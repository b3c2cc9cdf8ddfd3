// Every view at three widths, light and dark, and on paper; with hostile names; and how large the
// page is.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { gzipSync } from 'node:zlib';

import { cut, frames, launch, nameless, noBrowser, none, open, resize, show, violations } from './browser.mjs';
import { HOSTILE, HOSTILE_JOB } from './hostile.mjs';
import { MadeUp } from './made_up.mjs';

// A4 with the margins that browsers print with.
const PAPER = { width: 718, height: 1047 };
/** Marks of the hostile names that hide text or turn its direction. */
const HIDDEN = /[\u202e\u2066\u200f\u2028\u200d\ufe0f]/;
const HOSTILE_PATH = encodeURIComponent(HOSTILE_JOB);

const VIEWS = {
  home: '#/',
  'home, filtered': '#/jobs?filter=nosuchjob',
  actions: '#/actions',
  nodes: '#/nodes',
  job: '#/job/train-7b',
  'job with a rectangle': '#/job/train-7b?rank=2&ranks=1-3&steps=100-400&account=host&against=growth',
  incident: '#/incident/inc-train-7b',
  'incident with steps': '#/incident/inc-train-7b?steps=120-149',
  'incident, silenced': '#/incident/inc-silenced',
  'incident of a viewer': '#/incident/inc-reported',
  'incident of a death': '#/incident/inc-death',
  'incident of the host, closed': '#/incident/inc-host',
  capture: '#/capture/cap-train-7b',
  'capture with a pinned block': '#/capture/cap-train-7b?rank=2&at=120&block=0x7f12a7000000&colour=age&scale=bytes',
  'capture with a segment alone': '#/capture/cap-train-7b?rank=2&segment=0x7f12a4000000&colour=state',
  'unknown incident': '#/incident/inc-nosuch',
  'unknown job': '#/job/nosuch',
  'unknown capture': '#/capture/cap-nosuch',
};
const HOSTILE_VIEWS = {
  'hostile home': '#/',
  'hostile actions': '#/actions',
  'hostile nodes': '#/nodes',
  'hostile job': `#/job/${HOSTILE_PATH}?steps=100-149&rank=2`,
  'hostile incident': '#/incident/inc-hostile?steps=100-149',
  'hostile capture': '#/capture/cap-hostile?rank=2&block=0x7f12a7000000',
  'hostile id': `#/incident/${encodeURIComponent(HOSTILE.html + HOSTILE.lines + HOSTILE.long)}`,
};

let [made, browser, seen] = [];
before(async () => {
  if (noBrowser) return;
  made = await MadeUp.start();
  browser = await launch();
  seen = await open(browser, made.address);
});
after(async () => {
  await browser?.close();
  await made?.close();
});

/** All that must hold of a view. Rows are cards on the narrow screen, and colours go with the theme:
 * axe-core sees each once. */
const LOOKS = [
  { width: 360, theme: 'light', hasAxe: true },
  { width: 1280, theme: 'dark', hasAxe: true },
  { width: 2560, theme: 'light', hasAxe: false },
];

async function look(path) {
  const { page, mistakes } = seen;
  mistakes.length = 0;
  await page.emulateMedia({ media: 'screen', colorScheme: 'light' });
  await page.setViewportSize({ width: 360, height: 800 });
  await show(page, made.address, path);
  for (const { width, theme, hasAxe } of LOOKS) {
    await resize(page, width);
    await page.emulateMedia({ colorScheme: theme });
    await frames(page);
    const found = hasAxe ? await violations(page) : [];
    none(`${path} at ${width}, ${theme}`, await cut(page), await nameless(page), found, mistakes);
  }
}

describe('views', { skip: noBrowser }, () => {
  for (const [name, path] of Object.entries(VIEWS)) {
    test(`${name}: fits, has names, and axe-core finds nothing`, () => look(path));
  }
});

describe('the width of a screen', { skip: noBrowser }, () => {
  const right = page =>
    page.evaluate(() => Math.max(...[...document.querySelectorAll('main figure, main .scroll')].map(of => of.getBoundingClientRect().right)));

  for (const name of ['home', 'job', 'incident', 'capture']) {
    test(`${name}: a screen of 2,560 px is used to its end`, async () => {
      const { page } = seen;
      await page.setViewportSize({ width: 2560, height: 800 });
      await show(page, made.address, VIEWS[name]);
      assert.ok((await right(page)) > 2500, `${await right(page)} px`);
    });
  }

  test('the columns of an incident have no gap on a screen of 2,560 px', async () => {
    const { page } = seen;
    await page.setViewportSize({ width: 2560, height: 800 });
    await show(page, made.address, '#/incident/inc-host');
    const box = name => page.locator(`.incident-${name}`).boundingBox();
    const [answers, evidence, history, capture] = await Promise.all(
      ['answers', 'evidence', 'history', 'capture'].map(box),
    );
    assert.ok(evidence.height < answers.height - 100, 'the evidence is the shorter one');
    assert.ok(Math.abs(capture.y - evidence.y - evidence.height) < 2);
    assert.ok(Math.abs(history.y - answers.y - answers.height) < 2);
  });

  test('an incident of many words has its chart, with the legend, on a screen of 1,280 × 800', async () => {
    const { page } = seen;
    const remedy = 'first see where it lies: record with memtape run --detail, because private pools of CUDA graphs look ' +
      'the same without it, and these settings do not help them; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; ' +
      '178 different sizes were asked for lately: pad to a few lengths, or set roundup_power2_divisions:8; a restart ' +
      'gives the memory back';
    const sentence = 'rank 2 reserved 7 MiB more each step from step 112 to about step 704, and its tensors did not need it; ' +
      'the median of its 3 peers was flat';
    made.change = (path, found) =>
      path === 'incidents/inc-closed'
        ? { ...found, sentence, answers: { ...found.answers, remedy: { ...found.answers.remedy, text: remedy } } }
        : found;
    try {
      await page.setViewportSize({ width: 1280, height: 800 });
      await show(page, made.address, '#/incident/inc-closed');
      await page.getByText(remedy).waitFor();
    } finally {
      made.change = (_, found) => found;
    }
    const { y, height } = await page.locator('figcaption').first().boundingBox();
    assert.ok(y + height <= 800, `the legend ends at ${y + height} px`);
  });

  test('a rank of a capture takes few lines on a screen of 360 px', async () => {
    const { page } = seen;
    await page.setViewportSize({ width: 360, height: 800 });
    await show(page, made.address, VIEWS.capture);
    const ranks = page.getByRole('region', { name: 'Ranks of the capture' });
    const { height } = await ranks.boundingBox();
    assert.ok(height / 8 < 110, `${height / 8} px for each rank`);
  });
});

describe('lines for a terminal', { skip: noBrowser }, () => {
  const all = { ...VIEWS, ...HOSTILE_VIEWS };
  for (const name of ['incident', 'capture', 'hostile incident', 'hostile capture']) {
    test(`${name}: whole on a screen of 360 px and on paper`, async () => {
      const { page } = seen;
      await page.setViewportSize({ width: 360, height: 800 });
      await show(page, made.address, all[name]);
      for (const media of ['screen', 'print']) {
        await page.emulateMedia({ media });
        await frames(page);
        const beyond = await page
          .locator('.command pre')
          .evaluateAll(all => all.map(node => node.scrollWidth - node.clientWidth));
        assert.ok(beyond.length > 0, 'there are some');
        assert.deepEqual(beyond.filter(width => width > 0), [], media);
      }
      await page.emulateMedia({ media: 'screen' });
    });
  }
});

describe('hostile names', { skip: noBrowser }, () => {
  for (const [name, path] of Object.entries(HOSTILE_VIEWS)) {
    test(`${name}: names are text, and fit`, async () => {
      await look(path);
      const found = await seen.page.evaluate(() => ({
        hurt: document.hurt ?? null,
        made: document.querySelectorAll('#page img, #page script, #page #hurt, #page iframe').length,
        isSaid: document.querySelector('main').textContent.includes('<img src=x onerror='),
        title: document.title,
        texts: [
          document.title,
          document.body.innerText,
          ...[...document.querySelectorAll('[title], [aria-label]')].map(node => `${node.title} ${node.ariaLabel}`),
        ],
      }));
      for (const text of found.texts) assert.doesNotMatch(text, HIDDEN, 'what hides text is written out');
      assert.deepEqual([found.hurt, found.made, found.isSaid], [null, 0, true]);
      assert.ok(found.title.length < 11_000);
    });
  }

  test('a note is text, with its lines and with its hidden marks written out', async () => {
    const { page } = seen;
    await show(page, made.address, '#/incident/inc-hostile');
    const note = await page.locator('.timeline .note').innerText();
    for (const part of [HOSTILE.html, 'safe\\u{202e}gnp', 'first\nsecond']) assert.ok(note.includes(part), part);
    assert.equal(await page.getByLabel('Assigned to').inputValue().then(text => text.length > 10_000), true);
  });

  test('the palette and its commands', async () => {
    const { page, mistakes } = seen;
    await show(page, made.address, '#/incident/inc-hostile');
    await page.keyboard.press('Control+k');
    await page.locator('dialog').getByRole('option').first().waitFor();
    assert.equal(await page.locator('dialog img, dialog script, dialog #hurt').count(), 0);
    await resize(page, 360);
    none('the palette', await cut(page), await violations(page), mistakes);
    await page.keyboard.press('Escape');
  });
});

describe('on paper', { skip: noBrowser }, () => {
  for (const name of ['home', 'job', 'incident with steps', 'incident, silenced', 'incident of a death', 'capture', 'nodes', 'actions']) {
    test(`${name}: nothing is cut on A4`, async () => {
      const { page } = seen;
      await page.emulateMedia({ media: 'screen', colorScheme: 'dark' });
      await page.setViewportSize({ width: 1280, height: 800 });
      await show(page, made.address, VIEWS[name]);
      const pdf = await page.pdf({ format: 'A4', margin: { top: '1cm', bottom: '1cm', left: '1cm', right: '1cm' } });
      assert.ok(pdf.length > 5_000);
      await page.emulateMedia({ media: 'print' });
      await page.setViewportSize(PAPER);
      none(name, await cut(page, true));
      const { back, scheme } = await page.evaluate(() => ({
        back: getComputedStyle(document.body).backgroundColor,
        scheme: getComputedStyle(document.documentElement).colorScheme,
      }));
      assert.deepEqual([back, scheme], ['rgb(255, 255, 255)', 'light'], 'paper is white');
    });
  }
});

describe('size', { skip: noBrowser }, () => {
  test('what a browser loads is at most 150 KiB, compressed', () => {
    const sizes = ['index.html', 'app.js', 'app.css'].map(name => gzipSync(made.files[name]).length);
    const sum = sizes.reduce((total, size) => total + size, 0);
    assert.ok(sum <= 150 * 1024, `${sum} bytes: ${sizes}`);
  });
});

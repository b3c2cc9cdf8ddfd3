// Pictures of the recorded store: every view at three widths, light and dark, and on paper, beside
// the sheets in `screens/` (screens.mjs says what a sheet is).
//
//     MEMTAPE=target/debug/memtape node --test tests/screens.test.mjs
//     MEMTAPE_GOLDEN=make MEMTAPE=… node --test tests/screens.test.mjs
//
// The second command writes the sheets again; look at them before they are committed. The page is
// that of the sources, only the answers are the program's. SCREENS names a folder for whole pictures
// of what differs.

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { after, before, describe, test } from 'node:test';

import { PNG } from 'pngjs';

import { launch, none, open, resize, settle, show } from './browser.mjs';
import { page as filesOfPage } from './bundle.mjs';
import { noStore as skip, Recorded } from './recorded.mjs';
import { differences, sheetOf } from './screens.mjs';

const SHEETS = fileURLToPath(new URL('screens/', import.meta.url));
const FONT = join(SHEETS, 'font.txt');
const isMade = process.env.MEMTAPE_GOLDEN === 'make';
const { SCREENS } = process.env;

/** The page has this address whatever the port of the coordinator is: it shows it. */
const ADDRESS = 'http://localhost:7770';
const WIDTHS = [360, 1280, 2560];
const THEMES = ['light', 'dark'];
const PAPER = { width: 718, height: 1047 };
/** What is drawn late is compared again. */
const TRIES = 5;

/** Shares of a block that may differ. Measured, as the largest difference of a view:
 *
 *  | what was changed                          | of a drawing | of text      |
 *  |-------------------------------------------|--------------|--------------|
 *  | nothing; --font-render-hinting=none       | 0            | 0            |
 *  | DejaVu Serif or Sans Condensed for Sans   | 0.001        | up to 0.23   |
 *  | charts hidden                             | from 0.038   |              |
 *  | the last column of each table cut off     |              | from 0.012   |
 *  | tables 20 px too wide, 360 and 1280 px    |              | from 0.020   |
 *  | tables 20 px too wide, 2560 px            |              | from 0.005   |
 *  | the other theme                           | from 0.48    | from 0.97    |
 */
const MOST = { drawn: 0.02, text: 0.004, textInAnotherFont: 0.35 };

const recorded = new Recorded();
let browser, page, mistakes, close, mostOfText;

/** The page of the sources with the answers of the coordinator. */
async function serve() {
  const files = await filesOfPage();
  const types = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' };
  await page.route(`${ADDRESS}/**`, async route => {
    const path = route.request().url().slice(ADDRESS.length + 1) || 'index.html';
    if (files[path]) {
      return route.fulfill({ body: files[path], contentType: types[path.split('.').pop()] });
    }
    // A stream does not end.
    if (path.endsWith('/changes')) return route.abort();
    return route.fulfill({ response: await route.fetch({ url: `${recorded.address}/${path}` }) });
  });
}

/** Widths of a text in both fonts of the page: other fonts break lines elsewhere. */
const fontOf = () =>
  page.evaluate(() =>
    ['body', 'code']
      .map(name => {
        const context = new OffscreenCanvas(1, 1).getContext('2d');
        context.font = `100px ${getComputedStyle(document.querySelector(name)).fontFamily}`;
        return `${name} ${context.measureText('Memtape 0123456789').width.toFixed(0)}\n`;
      })
      .join(''),
  );

/** What is beyond the tolerance on the page as it is shown. */
const beyond = (found, stored) =>
  differences(found, stored)
    .filter(({ isDrawn, share }) => share > (isDrawn ? MOST.drawn : mostOfText))
    .map(({ name, share }) => `${share.toFixed(3)} of ${name}`);

/** The sheet of the page once nothing changes on it any more, as a file. */
async function lastSheet() {
  for (let before = null, turn = 0; turn < TRIES; turn += 1) {
    const file = PNG.sync.write((await sheetOf(page)).sheet);
    if (before?.equals(file)) return file;
    before = file;
    await settle(page);
  }
  throw new Error('the page does not come to rest');
}

async function compare(name) {
  const file = join(SHEETS, `${name}.png`);
  if (isMade) return writeFileSync(file, await lastSheet());
  const stored = PNG.sync.read(readFileSync(file));
  let found = [];
  for (let turn = 0; turn < TRIES; turn += 1) {
    found = beyond(await sheetOf(page), stored);
    if (found.length === 0) return;
    await settle(page);
  }
  if (SCREENS) await page.screenshot({ path: join(SCREENS, `${name}.png`), fullPage: true });
  assert.deepEqual(found, [], `${name}: MEMTAPE_GOLDEN=make writes the sheets again`);
}

describe('pictures', { skip }, () => {
  before(async () => {
    for (const folder of [SHEETS, SCREENS]) if (folder) mkdirSync(folder, { recursive: true });
    await recorded.start();
    browser = await launch();
    const options = { reducedMotion: 'reduce', timezoneId: 'UTC', locale: 'en-US' };
    ({ page, mistakes, close } = await open(browser, ADDRESS, options));
    const { incidents } = await recorded.get('incidents');
    const last = Math.max(...incidents.map(of => of.closed_wall_ns));
    await page.clock.setFixedTime(new Date(last / 1e6 + 3_600_000));
    await serve();
    await show(page, ADDRESS, '#/');
    const font = await fontOf();
    if (isMade) writeFileSync(FONT, font);
    mostOfText = readFileSync(FONT, 'utf8') === font ? MOST.text : MOST.textInAnotherFont;
  });
  after(async () => {
    await close?.();
    await browser?.close();
    if (recorded.child) await recorded.end();
  });

  for (const view of ['home', 'job', 'incident', 'capture', 'actions', 'nodes']) {
    test(view, async () => {
      await show(page, ADDRESS, (await recorded.views())[view]);
      for (const width of WIDTHS) {
        await resize(page, width);
        for (const colorScheme of THEMES) {
          await page.emulateMedia({ colorScheme });
          await settle(page);
          await compare(`${view}-${width}-${colorScheme}`);
        }
      }
      none(view, mistakes);
    });
  }

  for (const view of ['job', 'incident']) {
    test(`${view} on paper`, async () => {
      await resize(page, 1280);
      await show(page, ADDRESS, (await recorded.views())[view]);
      await page.emulateMedia({ media: 'print', colorScheme: 'light' });
      await page.setViewportSize(PAPER);
      await settle(page);
      await compare(`${view}-paper`);
      await page.emulateMedia({ media: 'screen' });
    });
  }

  test('a hidden chart, the other theme, a wide table and a missing column are seen', async () => {
    await resize(page, 1280);
    await show(page, ADDRESS, (await recorded.views()).incident);
    await page.emulateMedia({ colorScheme: 'light' });
    await compare('incident-1280-light');
    const stored = PNG.sync.read(readFileSync(join(SHEETS, 'incident-1280-light.png')));
    const isSeen = async of => assert.notDeepEqual(beyond(await sheetOf(page), stored), [], of);
    const faults = ['.uplot { visibility: hidden }', 'main { width: calc(100% + 20px) }'];
    // In another font, text says less.
    if (mostOfText === MOST.text) {
      faults.push('table { width: calc(100% + 20px) }', ':is(td, th):last-child { display: none }');
    }
    for (const content of faults) {
      const style = await page.addStyleTag({ content });
      await isSeen(content);
      await style.evaluate(node => node.remove());
    }
    await page.emulateMedia({ colorScheme: 'dark' });
    await settle(page);
    await isSeen('the other theme');
  });
});

// A report: the page as one file with its answers inside, as `memtape report` writes it (the
// skeleton is that of `cli/src/report/mod.rs`), opened from a disk without a network.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { pathToFileURL } from 'node:url';

import { answer } from './answers.mjs';
import { CULPRIT } from './captures.mjs';
import { cut, frames, launch, nameless, noBrowser, none, open, resize, settle, violations } from './browser.mjs';
import { modules, page as filesOfPage } from './bundle.mjs';
import { HOSTILE } from './hostile.mjs';

const {
  api: { paths },
} = await modules(['api']);
const REPORT_RS = new URL('../../../cli/src/report/mod.rs', import.meta.url);

/** The HTML skeleton, from the program's own source. */
async function skeleton() {
  const source = await readFile(REPORT_RS, 'utf8');
  const text = /Ok\(format!\(\s*"((?:[^"\\]|\\.)*)"\s*\)\)/s.exec(source)[1];
  return text.replace(/\\n\\\n\s*/g, '\n').replace(/\\\n\s*/g, '').replaceAll('\\"', '"').replaceAll('\\n', '\n');
}

const hash = text => `sha256-${createHash('sha256').update(text).digest('base64')}`;

async function html(report) {
  const { 'app.js': script, 'app.css': style } = await filesOfPage();
  const policy = `default-src 'none'; style-src '${hash(style)}'; script-src '${hash(script)}'; base-uri 'none'; form-action 'none'`;
  // What hides text is written as JSON may, as the program does.
  const data = JSON.stringify(report)
    .replace(/[\u2028-\u202e\u2066-\u2069\u200b-\u200f]/g, mark => `\\u${mark.charCodeAt(0).toString(16)}`)
    .replaceAll('<', '\\u003c');
  const parts = { '{policy}': policy, '{STYLE}': style, '{SCRIPT}': script, '{data}': data };
  return (await skeleton()).replace(/\{policy\}|\{STYLE\}|\{SCRIPT\}|\{data\}/g, name => parts[name]);
}

/** The answers that the program puts into the report of an incident, by the paths of the page. */
function answersOf(id) {
  const subject = answer(paths.incident(id));
  const { job, attempt, capture_id: capture, rank, layer } = subject;
  const account = layer === 'host' ? layer : 'allocated';
  const answers = {};
  const add = path => {
    const [name, query] = path.split('?');
    const asked = new URLSearchParams(query);
    if (name === 'actions') asked.set('job', job);
    // By the path unescaped, with the query in the order of its names.
    const values = (query ?? '').split('&').filter(Boolean).map(decodeURIComponent).sort();
    answers[decodeURIComponent(name) + (values.length ? `?${values.join('&')}` : '')] = answer(name, asked);
  };
  for (const path of [
    paths.incident(id),
    paths.incidents(job),
    paths.captures(job),
    paths.actions,
    paths.ranks(job, null),
    paths.ranks(job, attempt),
    paths.ranksNear(job, attempt, rank),
    paths.lines(job, attempt, null),
    paths.area({ job, attempt, account, steps: null, ranks: null }),
  ]) {
    add(path);
  }
  if (capture) [paths.capture(capture), paths.collectives(capture), paths.kept(capture, rank, null)].forEach(add);
  if (subject.culprit) add(paths.source(job, attempt, subject.culprit));
  const [near, values] = paths.ranksNear(job, attempt, rank).split('?');
  for (const { rank } of answer(near, new URLSearchParams(values)).ranks) {
    add(paths.series({ job, attempt, rank, device: 0, account: account === 'allocated' ? null : account }));
  }
  return { answers, job, subject };
}

const INCIDENT = answersOf('inc-train-7b');
const reportOf = (id, { answers, subject }, of = {}) => ({
  sentences: [subject.sentence],
  start: ['incident', id],
  answers,
  made: 'memtape 0.2.0 at 2026-11-26 10:59:19 UTC',
  ...of,
});

describe('a report', { skip: noBrowser }, () => {
  let [browser, folder] = [];
  before(async () => {
    browser = await launch();
    folder = await mkdtemp(join(tmpdir(), 'memtape-report-'));
  });
  after(async () => {
    await browser?.close();
    await rm(folder, { recursive: true });
  });

  /** Opens a report without a network; only the file itself may be asked for. */
  async function opened(name, report, body) {
    const file = join(folder, `${name}.html`);
    await writeFile(file, await html(report));
    const address = pathToFileURL(file).href;
    const { page, mistakes, close } = await open(browser, address);
    await page.context().setOffline(true);
    await page.goto(address);
    await settle(page);
    await body(page);
    none(name, mistakes);
    await close();
  }
  const main = page => page.getByRole('main');

  /** Fails where something is offered that needs the coordinator, or that the report lacks. */
  async function offersNothing(page) {
    assert.equal(await page.locator('footer.keys, .command').count(), 0);
    const here = await page.evaluate(() => location.hash);
    const links = await page.locator('a[href^="#/"]').evaluateAll(all => all.map(of => of.getAttribute('href')));
    for (const href of new Set(links)) {
      await page.evaluate(to => (location.hash = to), href);
      await settle(page);
      const text = await main(page).innerText();
      assert.doesNotMatch(text, /does not hold|the device is not known/, `${here} leads to ${href}`);
    }
    await page.evaluate(to => (location.hash = to), here);
    await settle(page);
  }

  test('shows the answers of its incident, and asks for nothing', () =>
    opened('incident', reportOf('inc-train-7b', INCIDENT), async page => {
      const text = await main(page).innerText();
      assert.equal(await page.locator('h1').innerText(), INCIDENT.subject.sentence);
      for (const part of [
        'rank 2',
        'about 1,000 steps (84 min)',
        `${CULPRIT.file}:${CULPRIT.line}`,
        '98 % sure: a leak',
        'keep numbers, not tensors',
        'blocks of 36 different steps are alive under this line',
        '▶ 123      losses.append(loss)',
        'rank 6 (unreachable',
      ]) {
        assert.ok(text.includes(part), part);
      }
      await page.locator('.uplot canvas').first().waitFor();
      assert.doesNotMatch(text, /\bago\b/, 'when a report is read is not known');
      const source = await page.getByRole('figure').filter({ hasText: '▶ 123' }).locator('figcaption').innerText();
      assert.match(source, new RegExp(`${CULPRIT.file}:${CULPRIT.line} +${CULPRIT.function}\\s+everybody who has this report`));
      await offersNothing(page);
      assert.equal(await page.title(), `${INCIDENT.subject.sentence} · Memtape`);
      for (const [width, colorScheme] of [[360, 'dark'], [1280, 'light']]) {
        await resize(page, width);
        await page.emulateMedia({ colorScheme });
        await frames(page);
        none(`at ${width}`, await cut(page), await nameless(page), await violations(page));
      }
    }));

  test('shows the thread of its incident, and none of its buttons', () =>
    opened('thread', reportOf('inc-silenced', answersOf('inc-silenced')), async page => {
      const text = await main(page).innerText();
      for (const part of [
        'until step 5,000 by olga',
        'olga assigned it to team-a',
        'the silence ended: the incident became more urgent',
        'fix in review',
        'verdict: no effect: the rank holds as much as before',
        '2 earlier entries of the thread not shown',
        'inc-reported',
      ]) {
        assert.ok(text.includes(part), part);
      }
      assert.equal(await page.locator('.thread-form, textarea').count(), 0);
      assert.equal(await page.getByRole('button', { name: /^(Acknowledge|Silence|Assign|Add)/ }).count(), 0);
      await resize(page, 360);
      none('the thread', await cut(page), await violations(page));
    }));

  test('says of a standstill nothing that only growth and lines have', () => {
    const NEWEST = '8 of 8 ranks at the end of step 149, the newest step that all ranks could show';
    const { subject, answers: known } = INCIDENT;
    const of = { ...subject, layer: 'progress', class: 'desynchronised', ranks: 8, culprit: null, unexplained_bytes: 0 };
    const answers = {
      ...known,
      [paths.incident(of.id)]: { ...of, answers: { ...of.answers, growth: [] } },
      [decodeURIComponent(paths.incidents(of.job))]: { incidents: [of] },
      [paths.capture(of.capture_id)]: { ...known[paths.capture(of.capture_id)], aligned: 8, shown: NEWEST, missing: [] },
    };
    return opened('standstill', reportOf(of.id, { subject, answers }), async page => {
      const figures = page.locator('section').filter({ has: page.getByRole('heading', { name: 'Figures' }) });
      assert.deepEqual(await figures.locator('dt').allInnerTexts(), ['began', 'detected', 'compared with', 'opened']);
      none('the incident', await nameless(page));
      await page.getByText(NEWEST).waitFor();
      await page.goto(page.url().replace(/#.*/, `#/job/${of.job}`));
      await page.getByRole('heading', { name: `Job ${of.job}` }).waitFor();
      assert.doesNotMatch(await page.locator('.alert').innerText(), /\bline\b/);
    });
  });

  test('leads from view to view, and back to its start', () =>
    opened('links', reportOf('inc-train-7b', INCIDENT), async page => {
      const back = page.getByRole('link', { name: 'Back to the start' });
      assert.equal(await back.count(), 0);
      await main(page).getByRole('link', { name: 'train-7b', exact: true }).first().click();
      await page.getByRole('heading', { name: 'Job train-7b' }).waitFor();
      assert.equal(await page.getByRole('button', { name: /^Capture all/ }).count(), 0, 'nothing can be changed');
      await settle(page);
      none('the job', await cut(page), await violations(page));
      await offersNothing(page);
      assert.equal(await main(page).locator('.error').count(), 0, 'what it lacks is no error');
      await back.click();
      await page.getByRole('heading', { name: INCIDENT.subject.sentence }).waitFor();
      await main(page).getByRole('link', { name: 'cap-train-7b' }).first().click();
      await page.getByRole('heading', { name: 'Capture cap-train-7b' }).waitFor();
      await page.goBack();
      await page.getByRole('heading', { name: INCIDENT.subject.sentence }).waitFor();
      await page.evaluate(() => (location.hash = '#/incident/inc-closed'));
      await page.getByRole('heading', { name: 'This report does not hold incident inc-closed' }).waitFor();
      await back.click();
      await page.keyboard.press('Control+k');
      assert.equal(await page.locator('dialog').count(), 0);
    }));

  test('of a capture shows the rank whose memory it holds', () => {
    const capture = INCIDENT.subject.capture_id;
    const answers = { ...INCIDENT.answers };
    delete answers[paths.kept(capture, INCIDENT.subject.rank, null)];
    answers[paths.kept(capture, 0, null)] = answer(`captures/${capture}/kept`, new URLSearchParams({ rank: '0' }));
    const of = { sentences: [], start: ['capture', capture] };
    return opened('capture', reportOf('inc-train-7b', { ...INCIDENT, answers }, of), async page => {
      await page.getByRole('heading', { name: 'What rank 0 holds, by line' }).waitFor();
      assert.equal(await page.getByText('A report does not hold this').count(), 0);
      assert.equal(await page.getByRole('combobox').count(), 0, 'there is no other rank to choose');
      await offersNothing(page);
      assert.equal(await page.getByRole('columnheader', { name: 'download' }).count(), 0);
    });
  });

  test('of a closed incident shows the account that grew', () =>
    opened('closed', reportOf('inc-host', answersOf('inc-host')), async page => {
      await page.getByLabel(/host memory, private goes from/).waitFor();
      await offersNothing(page);
      await page.goto(page.url().replace(/#.*/, `#/job/${answersOf('inc-host').subject.job}`));
      await page.getByLabel(/^Heat map of host memory, private/).waitFor();
      const ranks = page.getByRole('region', { name: 'Ranks', exact: true });
      assert.equal(await ranks.locator('tbody tr').count(), 12);
      assert.equal(await ranks.getByRole('link').count(), 8, 'the steps of so many are here');
      await offersNothing(page);
    }));

  test('says of a capture nothing twice, and calls no rank missing that it holds', () => {
    const { answers: known, subject } = INCIDENT;
    const id = subject.capture_id;
    const [capture, collectives] = [known[paths.capture(id)], known[paths.collectives(id)]];
    const parts = capture.parts.map(of => ({ ...of, outcome: 'late', bytes: of.rank === 6 ? 0 : 1000 }));
    const missing = parts.map(({ rank }) => ({ rank, outcome: 'late', detail: '' }));
    const answers = {
      ...known,
      [paths.capture(id)]: { ...capture, step: 0, aligned: 0, parts, missing },
      [paths.collectives(id)]: { ...collectives, sentences: [`group dp: ${collectives.groups[0].sentence}`] },
    };
    return opened('late', reportOf(subject.id, { answers, subject }, { start: ['capture', id] }), async page => {
      assert.equal(await main(page).locator('p.error').innerText(), 'Missing: rank 6 (late)');
      await page.getByText('group dp: rank 2 is behind').waitFor();
      assert.equal(await page.getByRole('region', { name: 'Process groups' }).count(), 0);
    });
  });

  test('is printed', () =>
    opened('paper', reportOf('inc-train-7b', INCIDENT), async page => {
      const pdf = await page.pdf({ format: 'A4', margin: { left: '1cm', right: '1cm' } });
      assert.ok(pdf.length > 10_000, `${pdf.length} bytes`);
      await page.emulateMedia({ media: 'print' });
      await page.setViewportSize({ width: 718, height: 1047 });
      none('on A4', await cut(page, true));
    }));

  test('shows hostile names as text', () =>
    opened('hostile', reportOf('inc-hostile', answersOf('inc-hostile'), { made: HOSTILE.html }), async page => {
      assert.equal(await page.evaluate(() => document.hurt ?? null), null);
      assert.equal(await page.locator('#page img, #page script, #page #hurt').count(), 0);
      const text = await main(page).innerText();
      assert.ok(text.includes('<img src=x onerror='));
      assert.ok(text.includes('safe\\u{202e}gnp'), 'written out');
      assert.doesNotMatch(text, /[\u202e\u2066\u200f\u2028]/);
      await page.locator('.uplot canvas').first().waitFor();
      none('hostile', await cut(page));
    }));
});

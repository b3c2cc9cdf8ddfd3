// Chromium as tests use it, and what must hold of every view: no error in the console, no request to
// another host, no text beside the screen or cut, a name for every control, nothing that axe-core
// finds serious.
//
// CHROMIUM names the browser. Without one the tests are skipped, but not where CI is set.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import { chromium } from 'playwright-core';

const PATH = process.env.CHROMIUM ?? '/usr/bin/chromium';
const ARGUMENTS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Why tests with a browser are skipped; false where they are not. */
export const noBrowser =
  existsSync(PATH) || process.env.CI ? false : `there is no ${PATH}: CHROMIUM names another browser`;

export const launch = () => chromium.launch({ executablePath: PATH, args: ARGUMENTS });

/** A page that notes errors and requests to other hosts than that of `address`. */
export async function open(browser, address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const mistakes = [];
  page.on('pageerror', error => mistakes.push(`error: ${error.stack}`));
  page.on('console', message => {
    // That an answer is not 200, or has not come, is what some tests are about.
    const isAnswer = /Failed to load resource/.test(message.text());
    if (message.type() === 'error' && !isAnswer) mistakes.push(`console: ${message.text()}`);
  });
  page.on('request', request => {
    if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(address)) {
      mistakes.push(`a request to ${request.url()}`);
    }
  });
  // Requests on their way, for `settle`; a stream does not end.
  page.asked = 0;
  const count = change => request => {
    if (!request.url().endsWith('/changes')) page.asked += change;
  };
  page.on('request', count(1));
  for (const end of ['requestfinished', 'requestfailed']) page.on(end, count(-1));
  page.on('dialog', dialog => mistakes.push(`a dialog: ${dialog.message()}`) && dialog.dismiss());
  return { page, mistakes, close: () => context.close() };
}

/** Goes to a view and waits until nothing is awaited any more. */
export async function show(page, address, path) {
  await page.goto(`${address}/${path}`);
  await settle(page);
}

export async function settle(page) {
  await page.waitForFunction(() => {
    const main = document.querySelector('main');
    return main?.querySelector(':scope > :not([role=status])') && !/asking the coordinator…|counting…/.test(main.textContent);
  });
  // An answer may be what leads to the next request.
  for (let quiet = 0; quiet < 3; quiet = page.asked === 0 ? quiet + 1 : 0) await frames(page);
}

/** Until what was changed is drawn. */
export const frames = page =>
  page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));

/** Gives the page another width, and waits until its charts have it too. */
export async function resize(page, width) {
  await page.setViewportSize({ width, height: 800 });
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.uplot, .chart svg')].every(
      node => Math.abs(node.getBoundingClientRect().width - node.parentElement.clientWidth) < 2,
    ),
  );
  await frames(page);
}

/** Text that is not wholly to be seen; `isPaper` where nothing can be scrolled. */
export const cut = (page, isPaper = false) =>
  page.evaluate(isPaper => {
    const found = new Set();
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width) {
      found.add(`the page is ${document.documentElement.scrollWidth} wide, of ${width}`);
    }
    const isHidden = node => !node.checkVisibility({ visibilityProperty: true }) || node.closest('.skip, thead');
    const scroller = node => {
      for (let at = node; at; at = at.parentElement) {
        const { overflowX, position } = getComputedStyle(at);
        if (/auto|scroll/.test(overflowX)) return at;
        if (position === 'fixed') return null;
      }
      return null;
    };
    const walker = document.createTreeWalker(document.querySelector('#page'), NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      const parent = text.parentElement;
      if (!text.data.trim() || isHidden(parent) || (!isPaper && scroller(parent))) continue;
      const range = document.createRange();
      range.selectNodeContents(text);
      for (const box of range.getClientRects()) {
        if (box.width < 1) continue;
        const svg = parent.closest('svg')?.getBoundingClientRect();
        const right = svg ? Math.min(width, svg.right) : width;
        if (box.right > right + 1 || box.left < (svg?.left ?? 0) - 1) {
          found.add(`${parent.tagName} ${Math.round(box.left)} to ${Math.round(box.right)} of ${right}: ${text.data.slice(0, 60)}`);
        }
      }
    }
    for (const node of document.querySelectorAll('button, .chip, dt')) {
      const range = document.createRange();
      range.selectNodeContents(node);
      const isWord = /^\S{1,12}$/.test(node.textContent) && node.checkVisibility();
      const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (isWord && tops.size > 1) found.add(`a broken word: ${node.outerHTML.slice(0, 80)}`);
    }
    for (const node of document.querySelectorAll('#page *')) {
      const { overflowX } = getComputedStyle(node);
      if (/hidden|clip/.test(overflowX) && node.scrollWidth > node.clientWidth + 1 && node.textContent.trim() && !isHidden(node)) {
        found.add(`cut: ${node.tagName}.${node.className} ${node.textContent.slice(0, 60)}`);
      }
      // What is drawn must lie on the paper, too.
      if (isPaper && node.matches('canvas, svg, meter, input') && node.checkVisibility()) {
        const { left, right } = node.getBoundingClientRect();
        if (right > width + 1 || left < -1) found.add(`${node.tagName}.${node.getAttribute('class')} ends at ${right} of ${width}`);
      }
    }
    return [...found].slice(0, 12);
  }, isPaper);

const CONTROLS =
  'a, button, input, select, summary, meter, [tabindex]:not(main), [role=slider], [role=img], [role=application], dialog';

/** Controls of which a screen reader says nothing, and lists and sections of nothing. */
export const nameless = page =>
  page.evaluate(
    controls => {
      const silent = selector => [...document.querySelectorAll(selector)].filter(node => !node.textContent.trim());
      const unnamed = silent(controls).filter(node => !node.getAttribute('aria-label') && !node.labels?.length);
      return [
        ...unnamed.map(node => `without a name: ${node.outerHTML.slice(0, 100)}`),
        ...silent('dl, ul, ol, section').map(node => `empty: ${node.outerHTML.slice(0, 100)}`),
      ];
    },
    CONTROLS,
  );

/** What axe-core finds of impact serious or critical. */
export async function violations(page) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(AXE);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run({ resultTypes: ['violations'], preload: false });
    return violations.map(({ id, impact, nodes }) => ({
      id,
      impact,
      nodes: nodes.slice(0, 3).map(({ html, failureSummary }) => `${html.slice(0, 120)}: ${failureSummary.slice(0, 300)}`),
    }));
  });
  return found
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `axe ${id}: ${nodes.join(' | ')}`);
}

/** Fails where one of the lists has something. */
export function none(where, ...lists) {
  assert.deepEqual(lists.flat(), [], where);
}

// A tab of the made-up page, a new one for each test of the file that imports it, and how tests use
// it.

import { after, afterEach, before, beforeEach } from 'node:test';

import { launch, noBrowser, none, open, show } from './browser.mjs';
import { incident } from './incidents.mjs';
import { MadeUp } from './made_up.mjs';

export const INCIDENT = '#/incident/inc-train-7b';
export const SENTENCE = incident('train-7b', {}).sentence;

export let [made, page] = [];
let [browser, mistakes, close] = [];
before(async () => {
  if (noBrowser) return;
  made = await MadeUp.start();
  browser = await launch();
});
beforeEach(async () => {
  if (!noBrowser) ({ page, mistakes, close } = await open(browser, made.address));
});
afterEach(async () => {
  await close?.();
  none('the page', mistakes ?? []);
});
after(async () => {
  await browser?.close();
  await made?.close();
});

export const to = path => show(page, made.address, path);
/** A value behind the question mark of the address. */
export const valueOf = name =>
  new URLSearchParams(new URL(page.url()).hash.split('?')[1] ?? '').get(name);
export const heading = () => page.locator('h1').first().innerText();
export const title = text => page.waitForFunction(text => document.title === text, text);
/** Presses the pointer at one point of an element, in shares of its size; lets it go at another. */
export async function drag(locator, [x0, y0], [x1, y1]) {
  await locator.scrollIntoViewIfNeeded();
  const { x, y, width, height } = await locator.boundingBox();
  await page.mouse.move(x + x0 * width, y + y0 * height);
  await page.mouse.down();
  await page.mouse.move(x + x1 * width, y + y1 * height, { steps: 6 });
  await page.mouse.up();
}
export const stepsOf = text => text.split('-').map(Number);
export const plot = () => page.locator('.plot').first();
export const keptHeading = () => page.getByRole('heading', { name: /, and kept$/ });
